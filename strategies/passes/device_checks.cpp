// strategies/passes/device_checks.cpp - do the devices of a strategy exist, and a runtime that has them.
#include "lockstep/strategies/passes/internal/device_checks.h"

#include <algorithm>

#include "lockstep/core/device.h"

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

}  // namespace lockstep::internal
