#include "lockstep/strategies/central_storage.h"

#include "lockstep/core/device.h"
#include "lockstep/strategies/internal/memories.h"

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
  internal::check_device(runtime(), parameter_devices_[0]);
}

CentralStorageStrategy::~CentralStorageStrategy() = default;

}  // namespace lockstep
