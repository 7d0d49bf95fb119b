// testing/null_device.h - a device that does nothing, at once: what remains is what the host does for it.
//
//   const Runtime runtime({.backends = {std::make_shared<testing::NullBackend>()}});   // gpu:0
//
// For measuring and counting. Its kernel set "null" has all ops that the CPU has and that take any data; nothing is
// computed or copied, so that results are whatever was there. Thread safety: as ComputeDevice.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/compute_device.h"

namespace lockstep::testing {

class LOCKSTEP_API NullBackend final : public DeviceBackend {
 public:
  NullBackend();
  std::vector<std::shared_ptr<ComputeDevice>> open() override;  // gpu:0
};

}  // namespace lockstep::testing
