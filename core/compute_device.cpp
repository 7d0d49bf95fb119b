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

const std::shared_ptr<MemoryPool>& ComputeDevice::staging() const { return default_host_pool(); }
Stream* ComputeDevice::stream(StreamRole /*role*/) { return nullptr; }
std::unique_ptr<Event> ComputeDevice::make_event() {
  throw FailedPrecondition(str("device ", facts_.device, " has no streams, and so no events"));
}
std::unique_ptr<Stream> ComputeDevice::make_stream() {
  throw FailedPrecondition(str("device ", facts_.device, " has no streams"));
}
Decision ComputeDevice::can_record() const {
  return Decision::no(str("device ", facts_.device, " cannot record its work"));
}
bool ComputeDevice::recordings_wait() const { return false; }

Event::~Event() = default;
std::optional<SteadyTime> Event::time() const { return std::nullopt; }
Stream::~Stream() = default;
void Stream::wait_in_replays(const Event& /*event*/) {
  throw Error(ErrorCode::kUnimplemented, "recordings of this device do not wait for events of outside");
}
Recording::~Recording() = default;

std::string_view to_string(StreamRole role) {
  switch (role) {
    case StreamRole::kCompute: return "compute";
    case StreamRole::kCopyIn: return "copy-in";
    case StreamRole::kCopyOut: return "copy-out";
    case StreamRole::kCommunication: return "communication";
  }
  return "unknown";
}

DeviceBackend::~DeviceBackend() = default;

std::vector<std::shared_ptr<ComputeDevice>> DeviceBackend::open_logical(
    std::span<const LogicalDevice> /*wanted*/) {
  throw Error(ErrorCode::kUnimplemented,
              "this backend has no logical devices: leave RuntimeOptions::gpus out");
}

std::shared_ptr<DeviceGroup> DeviceBackend::connect(std::span<const DeviceFacts> /*devices*/) {
  throw Error(ErrorCode::kUnimplemented, "nothing connects the devices of this backend");
}

}  // namespace lockstep
