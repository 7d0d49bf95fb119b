// core/kernels/rows.h - picks and places rows by index.
//
// A tensor is seen as [outer, rows, inner]; indices (i32 or i64) name rows. Every function works on the
// elements [begin, end) of its output, counted row-major, so that the output can be cut anywhere: the result
// does not depend on the cuts. An index outside of [0, rows) throws RefusedData naming its position and
// value; negative ones do not count from the end.
//
// Thread safety: any thread, any number at once, on ranges of the output that do not overlap.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/core/base/export.h"
#include "lockstep/core/dtype.h"

namespace lockstep::kernels {

struct Indices {
  const void* data = nullptr;
  DType dtype = DType::kI64;  // or kI32
  std::int64_t count = 0;
};

struct RowsShape {
  std::int64_t outer = 1, rows = 0, inner = 1;
};

// out[o, i, :] = in[o, indices[i], :] for elements of any dtype. Indices are checked even if rows have no
// elements.
LOCKSTEP_API void gather_rows(std::size_t element_size, const void* in, const RowsShape& shape,
                              const Indices& indices, void* out, std::int64_t begin, std::int64_t end);

// out = 0, then out[indices[i], :] += values[i, :] for i = 0, 1, ... in this order (shape.outer must be 1).
// Every dtype but bool. f16 and bf16 add up in f32 and round once; they need `sums`, room for as many floats
// as `out` has elements. Every index is checked by every call that has elements to compute, and also if `out`
// has none.
LOCKSTEP_API void scatter_add_rows(DType dtype, const Indices& indices, const void* values,
                                   const RowsShape& shape, void* out, float* sums, std::int64_t begin,
                                   std::int64_t end);
// The bytes of `sums` that it needs.
constexpr std::size_t scatter_add_scratch(DType dtype, std::int64_t elements) {
  const bool half = dtype == DType::kF16 || dtype == DType::kBF16;
  return half ? static_cast<std::size_t>(elements) * sizeof(float) : 0;
}

// out[i, indices[i]] = 1 and 0 elsewhere in rows of `depth` elements, for the indices [begin, end).
LOCKSTEP_API void one_hot_rows(DType dtype, const Indices& indices, std::int64_t depth, void* out,
                               std::int64_t begin, std::int64_t end);

}  // namespace lockstep::kernels
