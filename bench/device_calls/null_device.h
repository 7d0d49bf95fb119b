// bench/device_calls/null_device.h - a device that does nothing, at once: what remains is what the host does for it.
//
// Its kernel set "null" has `add`, which puts nothing anywhere. Thread safety: as ComputeDevice.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/core/compute_device.h"

namespace lockstep::bench {

class NullBackend final : public DeviceBackend {
 public:
  NullBackend();
  std::vector<std::shared_ptr<ComputeDevice>> open() override;  // gpu:0
};

}  // namespace lockstep::bench
