// graph/ops/indexing.h - ops that pick and place elements by index.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/graph/builder.h"
#include "lockstep/graph/value.h"

namespace lockstep {

// Rows `indices` (i32 or i64, any shape) of x along an axis: the axis is replaced by the shape of `indices`.
// The gradient along axis 0 is IndexedSlices.
LOCKSTEP_API Value gather(const Operand& x, const Value& indices, std::int64_t axis = 0);
// A tensor of that shape, zero but for rows: row i of `values` is added at row indices[i] (i64[k]) along axis 0, in order of
// i. Indices outside of the shape are an error when the step runs.
LOCKSTEP_API Value scatter_add(const Value& indices, const Value& values, const Value& shape,
                               SourceSite site = SourceSite::current());

}  // namespace lockstep
