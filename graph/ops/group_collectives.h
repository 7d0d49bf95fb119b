// graph/ops/group_collectives.h - values that the members of a group compute together, each in its own
// program.
//
//   // In each of two processes, or threads, with a Runtime({.groups = {{"world", group}}}) of its own:
//   Value total = group_all_reduce(ReduceOp::kSum, local);      // the same in both
//
// Unlike the collectives of graph/ops/collectives.h, which combine values of replicas inside one program,
// these go through a Group (core/communicators/group.h) that the runtime knows by name. Every member runs the
// same calls in the same order: a program starts those of one group in the order of its nodes. A call that
// waits for other members keeps no thread; the nodes that do not need its result run meanwhile. The deadline of
// a run is the deadline of its calls.
//
// The runs of a program are committed by all members or by none: a run ends when those of all have come to their
// end. One that fails on a member, for whatever reason, fails on all; the next one is right. If members disagree,
// or one is lost, the run fails, and the group is over. (NCCL's groups cannot do this: there a run that fails
// ends the group.)
//
// Thread safety: as the builder.
#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/build/value.h"
#include "lockstep/graph/ops/collectives.h"

namespace lockstep {

// The values of all members combined in the order of their ranks, at every member. Specs must be equal. Sum
// and mean have gradients.
LOCKSTEP_API Value group_all_reduce(ReduceOp op, const Operand& value, std::string_view group = "world");
// The value of member `root`, at every member.
LOCKSTEP_API Value group_broadcast(const Operand& value, std::int64_t root = 0,
                                   std::string_view group = "world");

// The values of all members along the first axis, in the order of their ranks, at every member; `members` of them, whose specs must
// be equal.
LOCKSTEP_API Value group_all_gather(const Operand& value, std::int64_t members,
                                    std::string_view group = "world");

}  // namespace lockstep
