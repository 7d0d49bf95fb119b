// strategies/central_storage.cpp - variables in one place, replicas that compute on their slices.
#include "lockstep/strategies/central_storage.h"

#include "lockstep/core/device.h"
#include "lockstep/strategies/passes/internal/device_checks.h"

namespace lockstep {

namespace {

// Options with share_mirrored on, and with a runtime that has the parameter device.
MirroredOptions with_parameters_on(MirroredOptions options, const std::string& parameter_device) {
  if (!options.share_mirrored) {
    throw InvalidArgument(
        "CentralStorageStrategy keeps variables in one place: share_mirrored cannot be off");
  }
  if (!options.base.runtime) {
    std::vector<std::string> used = options.devices.names().value_or(std::vector<std::string>());
    used.push_back(parameter_device);
    if (!options.reduce_device.empty()) used.push_back(options.reduce_device);
    options.base.runtime = internal::runtime_with(used);
  }
  return options;
}

}  // namespace

CentralStorageStrategy::CentralStorageStrategy(MirroredOptions options, const std::string& parameter_device,
                                               SourceSite site) try
    : MirroredStrategy(with_parameters_on(std::move(options), parameter_device), site),
      parameter_devices_{Device::parse(parameter_device).to_string()} {
  internal::check_device(runtime(), parameter_devices_[0]);
} catch (Error& error) {
  error.add_call("CentralStorageStrategy", site);
  throw;
}

CentralStorageStrategy::~CentralStorageStrategy() = default;

}  // namespace lockstep
