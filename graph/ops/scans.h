// graph/ops/scans.h - running sums, the places of extremes and the largest few, along one axis.
//
// Thread safety: as the builder.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/value.h"

namespace lockstep {

// For each element the sum of all elements up to it, including it unless `exclusive`; `reverse` counts from
// the end.
LOCKSTEP_API Value cumsum(const Operand& x, std::int64_t axis = -1, bool exclusive = false,
                          bool reverse = false);

// The index (i64) of the largest, or smallest, element along an axis; of several, the first. The axis is
// dropped, or kept with extent 1. NaN counts as the most extreme, as in NumPy. An axis without elements is
// refused.
LOCKSTEP_API Value argmax(const Operand& x, std::int64_t axis = -1, bool keepdims = false);
LOCKSTEP_API Value argmin(const Operand& x, std::int64_t axis = -1, bool keepdims = false);

// The k largest along the last axis, largest first, and their indices (i64). NaN counts as the largest; among
// equals the lower index comes first. Gradients flow into the elements that were taken.
struct TopKResult {
  Value values, indices;
};
LOCKSTEP_API TopKResult top_k(const Operand& x, std::int64_t k);

}  // namespace lockstep
