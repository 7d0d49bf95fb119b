// strategies/passes/internal/depths.h - when nodes can run, as far as the graph alone says.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/graph/ir/graph.h"

namespace lockstep::internal {

// By id: how many nodes run before a node, one behind the other, on the longest way to it. A node that runs after
// another is deeper.
std::vector<std::uint32_t> depths_of(const Graph& level);

}  // namespace lockstep::internal
