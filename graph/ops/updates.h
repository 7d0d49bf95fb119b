// graph/ops/updates.h - the nodes that optimizers are made of.
//
// The updates themselves (sgd, adam, ...) name a variable and its slots, and are made by the optimizers of
// graph/train/optimizer.h or with GraphBuilder::op; their formulas are in core/kernels/updates.h.
// Thread safety: as the builder.
#pragma once

#include <cstdint>

#include "lockstep/core/export.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/value.h"

namespace lockstep {

// The indices (i32 or i64), unchanged; the step fails where one is outside of [0, limit). Updates by rows run
// in the commit stage, where nothing may fail, and pass such indices over in silence: so they are checked
// first.
LOCKSTEP_API Value check_indices(const Operand& indices, std::int64_t limit);
// The same, and where there are not as many of them as `rows` has: replica by replica, before their rows are put
// together.
LOCKSTEP_API Value check_indices(const Operand& indices, std::int64_t limit, const Value& rows);
// Whole numbers to divide by: a step that has a 0 among them fails, before anything is committed.
LOCKSTEP_API Value check_divisors(const Operand& divisors);

}  // namespace lockstep
