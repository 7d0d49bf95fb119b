// strategies/passes/internal/device_checks.h - do the devices of a strategy exist, and a runtime that has
// them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "lockstep/core/runtime.h"
#include "lockstep/core/topology.h"

namespace lockstep::internal {

// A runtime with as many logical CPUs as these devices need, in any spelling.
Runtime runtime_with(std::span<const std::string> devices);

// Throws InvalidArgument if the runtime has no such device, in any spelling.
void check_device(const Runtime& runtime, const std::string& name);
// Throws PassError if the topology is known and lacks one of the devices that the pass is told to use.
void check_devices(std::string_view pass, std::span<const std::string> devices, const Topology* topology);

}  // namespace lockstep::internal
