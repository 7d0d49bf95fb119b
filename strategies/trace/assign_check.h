// strategies/trace/assign_check.h - checks what replicas assign, once the whole step is traced.
//
// Whether the values that replicas assign differ is known only once the whole step is traced. If a variable
// of aggregation sum is assigned a value that is the same on all replicas, it would count that value once per
// replica, which is never intended; and integers that differ have no mean. Strategies refuse such steps,
// whether they traced them or were given them as graphs:
//
//   check_assigns(graph);      // throws InvalidArgument naming the variable, the node and its line
//
// For the region form of a step (before `replicate`). Gradients are shares and always summed; values that an
// update() writes are final; both are left alone, and so is the number 0, which adds nothing. Linear.
// Thread safety: any thread, while nobody changes the graph.
#pragma once

#include "lockstep/core/base/export.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep {

LOCKSTEP_API void check_assigns(const Graph& step);

}  // namespace lockstep
