#include "lockstep/strategies/central_storage.h"

#include "lockstep/core/device.h"

namespace lockstep {

namespace {

MirroredOptions sharing(MirroredOptions options) {
  if (!options.share_mirrored) {
    throw InvalidArgument(
        "CentralStorageStrategy keeps variables in one place: share_mirrored cannot be off");
  }
  return options;
}

}  // namespace

CentralStorageStrategy::CentralStorageStrategy(MirroredOptions options, const std::string& parameter_device)
    : MirroredStrategy(sharing(std::move(options))),
      parameter_devices_{Device::parse(parameter_device).to_string()} {
  const Decision decision = runtime().has_device(Device::parse(parameter_devices_[0]));
  if (!decision) throw InvalidArgument(str("device '", parameter_devices_[0], "': ", decision.reason()));
}

CentralStorageStrategy::~CentralStorageStrategy() = default;

}  // namespace lockstep
