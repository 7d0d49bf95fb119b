// graph/ops/indexing.h - ops that pick and place elements by index.
//
// Thread safety: as the builder.
#pragma once

#include <cstdint>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/value.h"

namespace lockstep {

// Rows `indices` (i32 or i64, any shape) of x along an axis: the axis is replaced by the shape of `indices`.
// An index outside of [0, extent) is an error when the step runs: negative ones do not count from the end.
// The gradient along axis 0 is IndexedSlices.
LOCKSTEP_API Value gather(const Operand& x, const Value& indices, std::int64_t axis = 0);
// A tensor of that shape, zero except for some rows: row i of `values` is added at row indices[i] (i64[k])
// along axis 0, in order of i. Indices outside of the shape are an error when the step runs.
LOCKSTEP_API Value scatter_add(const Value& indices, const Value& values, const Value& shape,
                               SourceSite site = SourceSite::current());

// The sums of the rows of `values` by segment: row i is added to row segment_ids[i] of the result, in order
// of i. Ids (i32 or i64) may come in any order; segments that no id names are 0. The number of segments may
// be a Value that follows from shapes: an i64 vector of one.
LOCKSTEP_API Value segment_sum(const Value& values, const Value& segment_ids, std::int64_t num_segments,
                               SourceSite site = SourceSite::current());
LOCKSTEP_API Value segment_sum(const Value& values, const Value& segment_ids, const Value& num_segments,
                               SourceSite site = SourceSite::current());
// A new last axis of extent `depth`, 1 where it equals the index and 0 elsewhere. An index outside of [0,
// depth) is an error when the step runs.
LOCKSTEP_API Value one_hot(const Operand& indices, std::int64_t depth, DType dtype = DType::kF32);

}  // namespace lockstep
