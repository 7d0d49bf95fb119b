// graph/ops/rules/internal/shares.h - the share of a gradient that each of many elements gets.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/core/dtype.h"
#include "lockstep/graph/ops/elementwise.h"

namespace lockstep::internal {

// A dtype that can hold the number of elements: f16 ends at 65504, and bf16 tells 256 from 258 at best.
inline DType count_dtype(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

// As num_elements(), for gradients; a constant if the shape is known. (In graph/ops/reductions.cpp.)
Value count_elements(const Value& x, std::vector<std::int64_t> axes, DType dtype);

// flow / count, with a count of count_dtype; computed there, and rounded to the flow's dtype once.
inline Value share_of(const Value& flow, const Value& count) {
  const Value wide = cast(flow, count.dtype());
  return cast(wide / count, flow.dtype());
}

}  // namespace lockstep::internal
