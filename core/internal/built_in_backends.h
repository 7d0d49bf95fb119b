// core/internal/built_in_backends.h - the backends that Lockstep was built with.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/core/compute_device.h"

namespace lockstep::internal {

// Those that find a device on this machine; none in a build without any.
std::vector<std::shared_ptr<DeviceBackend>> built_in_backends();

// In core/cuda, where it was built: the cards of this machine. Null: there are none.
std::shared_ptr<DeviceBackend> find_cuda_backend();

}  // namespace lockstep::internal
