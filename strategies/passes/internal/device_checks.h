// strategies/passes/internal/device_checks.h - do the devices of a strategy exist, and a runtime that has
// them.
#pragma once

#include <span>
#include <string>

#include "lockstep/core/runtime.h"

namespace lockstep::internal {

// A runtime with as many logical CPUs as these devices need, in any spelling.
Runtime runtime_with(std::span<const std::string> devices);

// Throws InvalidArgument if the runtime has no such device, in any spelling.
void check_device(const Runtime& runtime, const std::string& name);

}  // namespace lockstep::internal
