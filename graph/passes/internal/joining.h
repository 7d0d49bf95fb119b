// graph/passes/internal/joining.h - which nodes a pass may make one node of, and where they will run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/core/topology.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/ir/internal/gradient_nodes.h"

namespace lockstep::internal {

// Device, replica, whether it is a gradient that replicas have yet to sum (in the code of a replica alone), and what it runs
// after. Nodes may become one if theirs are equal.
using JoinKey = std::tuple<std::string_view, std::int32_t, bool, std::vector<NodeId>>;

inline JoinKey join_key(const Node& node, bool is_replica_code) {
  std::vector<NodeId> controls(node.controls().begin(), node.controls().end());
  std::ranges::sort(controls);
  return {std::string_view(node.device()), node.provenance().replica,
          is_replica_code && is_gradient_share(node), std::move(controls)};
}

// Nodes without a device run on `fallback`, or if that is empty on the first device of the topology. None: nobody knows.
inline std::optional<Device> device_of(const Node& node, const std::string& fallback,
                                       const Topology* topology) {
  if (!node.device().empty()) return Device::parse(node.device());
  if (!fallback.empty()) return Device::parse(fallback);
  if (topology == nullptr || topology->devices().empty()) return std::nullopt;
  return topology->devices().front().device;
}

}  // namespace lockstep::internal
