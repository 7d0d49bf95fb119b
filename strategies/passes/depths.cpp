// strategies/passes/depths.cpp - when nodes can run, as far as the graph alone says.
#include "lockstep/strategies/passes/internal/depths.h"

#include <algorithm>

namespace lockstep::internal {

std::vector<std::uint32_t> depths_of(const Graph& level) {
  std::vector<std::uint32_t> depths(level.id_bound());
  for (const NodeId id : level.topological_order()) {
    std::uint32_t depth = 0;
    for (const ValueId input : level.node(id).inputs())
      depth = std::max(depth, depths[input.node.index()] + 1);
    for (const NodeId before : level.node(id).controls()) depth = std::max(depth, depths[before.index()] + 1);
    depths[id.index()] = depth;
  }
  return depths;
}

}  // namespace lockstep::internal
