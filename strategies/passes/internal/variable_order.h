// strategies/passes/internal/variable_order.h - direct edges between the nodes that use a variable.
#pragma once

#include "lockstep/graph/ir/graph.h"

namespace lockstep::internal {

// Follows the order of one level, which must be acyclic and must order every conflicting pair. Adds missing
// edges as the builder makes them: a read gets an edge from the last write, a write from the last write and
// the reads since. Linear.
void order_variable_uses(Graph& level);

}  // namespace lockstep::internal
