// strategies/passes/device_checks.cpp - do the devices of a strategy exist, and a runtime that has them.
#include "lockstep/strategies/passes/internal/device_checks.h"

#include <algorithm>

#include "lockstep/core/device.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep::internal {

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

void check_devices(std::string_view pass, std::span<const std::string> devices, const Topology* topology) {
  if (topology == nullptr) return;
  for (const std::string& name : devices) {
    const Decision decision = topology->has_device(Device::parse(name));
    if (decision) continue;
    throw PassError(pass, str("device '", name, "' is not in the topology of the machine: ",
                              decision.reason(), "; add it to the topology, or name another device"));
  }
}

}  // namespace lockstep::internal
