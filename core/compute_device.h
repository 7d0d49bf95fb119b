// core/compute_device.h - devices that a backend brings into a Runtime.
//
//   class MyCards : public DeviceBackend {
//     std::vector<std::shared_ptr<ComputeDevice>> open() override {
//       DeviceFacts facts{.device = Device::parse("gpu:0"), .memory = {1}, .kernels = "mine"};
//       return {std::make_shared<ComputeDevice>(facts, std::make_shared<MyPool>(MemoryId{1}))};
//     }
//   };
//   Runtime runtime({.backends = {std::make_shared<MyCards>()}});    // cpu:0 and gpu:0
//
// A Runtime always has CPUs; a backend adds devices of another kind. What it says about them becomes part of
// the Runtime's topology: the memory that a device computes in, and the name of its kernel set
// (OpRegistry::add_kernel says what runs there). Two devices with one MemoryId read each other's values, and
// have one pool. Numbers of memories are the same for all backends and runtimes of a process, since tensors
// keep them.
//
// Thread safety: a device may be used from any thread.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/memory.h"
#include "lockstep/core/topology.h"

namespace lockstep {

class LOCKSTEP_API ComputeDevice {
 public:
  // Throws InvalidArgument if the pool is missing or is of another memory than the facts say, or if they name
  // no kernel set.
  ComputeDevice(DeviceFacts facts, std::shared_ptr<MemoryPool> pool);
  virtual ~ComputeDevice();
  ComputeDevice(const ComputeDevice&) = delete;
  ComputeDevice& operator=(const ComputeDevice&) = delete;

  const DeviceFacts& facts() const { return facts_; }
  const std::shared_ptr<MemoryPool>& pool() const { return pool_; }

 private:
  DeviceFacts facts_;
  std::shared_ptr<MemoryPool> pool_;
};

class LOCKSTEP_API DeviceBackend {
 public:
  virtual ~DeviceBackend();
  // The devices for one Runtime, which keeps them. None: there are none on this machine.
  virtual std::vector<std::shared_ptr<ComputeDevice>> open() = 0;
};

}  // namespace lockstep
