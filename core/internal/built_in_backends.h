// core/internal/built_in_backends.h - the backends that Lockstep was built with.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/compute_device.h"

namespace lockstep::internal {

// Those that find a device on this machine; none in a build without any.
std::vector<std::shared_ptr<DeviceBackend>> built_in_backends();

// What connects the cards of this machine; a name, and how.
struct CardCollectives {
  std::string name = {};  // empty: nothing does
  std::shared_ptr<DeviceGroup> (*connect)(std::vector<int> cards) = nullptr;
};

// In core/cuda, where it was built: the cards of this machine. Null: there are none. `collectives` is asked where there are
// several.
std::shared_ptr<DeviceBackend> find_cuda_backend(CardCollectives (*collectives)());
// In core/nccl, where it was built.
CardCollectives find_nccl();

}  // namespace lockstep::internal
