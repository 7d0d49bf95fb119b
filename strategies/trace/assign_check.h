// strategies/trace/assign_check.h - what replicas assign, looked at when the whole step is traced.
//
// Whether the values that replicas assign differ is known when all of a step is there. A variable of
// aggregation sum that is assigned a value that is the same on all replicas would count it once for each,
// which nobody means; and integers that differ have no mean. Strategies refuse such steps, whether they
// traced them or were given them as graphs:
//
//   check_assigns(graph);      // throws InvalidArgument naming the variable, the node and its line
//
// For the region form of a step (before `replicate`). Gradients are shares and always summed; what an
// update() writes is final; both are left alone, and so is the number 0, which adds nothing. Linear.
// Thread safety: any thread, while nobody changes the graph.
#pragma once

#include "lockstep/core/export.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep {

LOCKSTEP_API void check_assigns(const Graph& step);

}  // namespace lockstep
