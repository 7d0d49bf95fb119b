// core/compute_device.cpp - devices that a backend brings into a Runtime.
#include "lockstep/core/compute_device.h"

#include <utility>

#include "lockstep/core/error.h"

namespace lockstep {

ComputeDevice::ComputeDevice(DeviceFacts facts, std::shared_ptr<MemoryPool> pool)
    : facts_(std::move(facts)), pool_(std::move(pool)) {
  if (pool_ == nullptr) throw InvalidArgument(str("device ", facts_.device, " has no memory pool"));
  if (pool_->memory() != facts_.memory) {
    throw InvalidArgument(str("device ", facts_.device, " computes in memory ", facts_.memory.value,
                              ", and its pool is of memory ", pool_->memory().value));
  }
  if (facts_.kernels.empty()) {
    throw InvalidArgument(
        str("device ", facts_.device, " names no kernel set: say in DeviceFacts::kernels what it runs"));
  }
}
ComputeDevice::~ComputeDevice() = default;

DeviceBackend::~DeviceBackend() = default;

}  // namespace lockstep
