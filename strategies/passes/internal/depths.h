// strategies/passes/internal/depths.h - when nodes can run, as far as the graph alone says.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/graph/ir/graph.h"

namespace lockstep::internal {

// By id: the number of nodes before a node on the longest path to it. A node that runs after another is
// deeper.
std::vector<std::uint32_t> depths_of(const Graph& level);

}  // namespace lockstep::internal
