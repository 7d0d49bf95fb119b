// strategies/passes/memories.cpp - where values lie, and which devices there are.
#include "lockstep/strategies/passes/internal/memories.h"

#include <algorithm>

#include "lockstep/core/device.h"

namespace lockstep::internal {

std::string memory_of(std::string_view device) {
  if (device.empty()) return {};
  const Device parsed = Device::parse(device);
  return parsed.kind == DeviceKind::kCpu && parsed.job.empty() ? std::string() : parsed.to_string();
}

const std::string& Memories::of(const std::string& device) {
  auto found = known_.find(device);
  if (found == known_.end()) found = known_.emplace(device, memory_of(device)).first;
  return found->second;
}

Runtime runtime_with(std::span<const std::string> devices) {
  RuntimeOptions made;
  for (const std::string& name : devices) {
    const Device device = Device::parse(name);
    if (device.kind == DeviceKind::kCpu)
      made.cpu_devices = std::max(made.cpu_devices, static_cast<std::size_t>(device.index) + 1);
  }
  return Runtime(made);
}

void check_device(const Runtime& runtime, const std::string& name) {
  const Decision decision = runtime.has_device(Device::parse(name));
  if (!decision) throw InvalidArgument(str("device '", name, "': ", decision.reason()));
}

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

}  // namespace lockstep::internal
