// graph/ops/updates.h - the nodes that optimizers are made of.
//
// The updates themselves (sgd, adam, ...) name a variable and its slots, and are made by the optimizers of
// graph/train/optimizer.h or with GraphBuilder::op; their formulas are in core/kernels/updates.h.
// Thread safety: as the builder.
#pragma once

#include <cstdint>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/value.h"

namespace lockstep {

// The indices (i32 or i64), unchanged; the step fails if one is outside of [0, limit). Updates by rows run in
// the commit stage, where nothing may fail, and silently skip such indices: so they are checked first.
LOCKSTEP_API Value check_indices(const Operand& indices, std::int64_t limit);
// The same, and the step also fails if their number is not that of `rows`: checked replica by replica, before
// the rows of all replicas are put together.
LOCKSTEP_API Value check_indices(const Operand& indices, std::int64_t limit, const Value& rows);
// Integers to divide by: a step in which one is 0 fails before anything is committed.
LOCKSTEP_API Value check_divisors(const Operand& divisors);

}  // namespace lockstep
