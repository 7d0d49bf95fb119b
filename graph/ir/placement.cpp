// graph/ir/placement.cpp - where values of a placed graph are, and where nodes want them.
#include "lockstep/graph/ir/placement.h"

namespace lockstep {

const std::string& device_of(const Graph& level, ValueId value) {
  const Node& node = level.node(value.node);
  if (node.op().traits.is(ReplicaRole::kCollective) && node.inputs().size() == node.outputs().size() &&
      node.inputs().size() > 1)
    return device_of(level, node.inputs()[value.output]);
  if (node.op().region_kind == RegionKind::kCond || node.op().region_kind == RegionKind::kWhile) {
    const Graph& region = node.regions().back();
    if (value.output < region.results().size()) return device_of(region, region.results()[value.output]);
  }
  return node.device();
}

const std::string& wanted_device(const Node& node, std::size_t input) {
  const bool choice = node.op().region_kind == RegionKind::kCond;
  if ((choice && input > 0) || node.op().region_kind == RegionKind::kWhile) {
    const Graph& region = node.regions().back();
    return region.node(region.parameters()[input - (choice ? 1 : 0)]).device();
  }
  return node.device();
}

Memories::Memories(const Topology* topology) : topology_(topology) {
  static const Topology unknown;
  if (topology_ == nullptr) topology_ = &unknown;
}

bool Memories::same(const std::string& a, const std::string& b) {
  return a == b || topology_->same_memory(parsed(a), parsed(b));
}

const Device& Memories::parsed(const std::string& name) {
  const auto found = parsed_.find(name);
  if (found != parsed_.end()) return found->second;
  const bool first = name.empty() && !topology_->devices().empty();
  return parsed_
      .emplace(name, first          ? topology_->devices().front().device
                     : name.empty() ? Device{}
                                    : Device::parse(name))
      .first->second;
}

}  // namespace lockstep
