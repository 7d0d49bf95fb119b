// tests/support/far_devices.h - GPUs that the CPU plays, in memory that the host must not touch.
//
//   Runtime runtime = far_runtime();      // cpu:0, cpu:1; gpu:0 and gpu:2 in one memory, gpu:1 in another
//
// Their kernel set "far" has the kernels of the CPU, for all ops but lambdas: results are the same to the bit.
// A kernel that is given an address of another memory than its device's throws.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/compute_device.h"
#include "lockstep/core/runtime.h"
#include "lockstep/graph/ir/kernel.h"
#include "lockstep/graph/ir/op.h"
#include "support/far_memory.h"

namespace lockstep::testing {

inline const std::shared_ptr<FarPool>& far_pool(MemoryId memory) {
  static std::map<MemoryId, std::shared_ptr<FarPool>> pools;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<FarPool>& pool = pools[memory];
  if (pool == nullptr) pool = std::make_shared<FarPool>(memory);
  return pool;
}

inline constexpr MemoryId kFarA{1001}, kFarB{1002};

inline MemoryId far_memory_of(const Device& device) { return device.index == 1 ? kFarB : kFarA; }

// The CPU's kernel on what lies in far memory.
inline KernelDef far_kernel(const OpDef& op, const KernelDef& cpu) {
  KernelDef def = cpu;
  def.make = [&op, make = cpu.make](const NodeView& view, std::span<const TensorSpec> outputs) -> KernelFn {
    KernelFn kernel = make(view, outputs);
    const std::shared_ptr<FarPool> pool = far_pool(far_memory_of(*view.device()));
    const std::size_t state = op.traits.updates_variable ? outputs.size() : 0;  // inputs before the node's
    return [&op, kernel, pool, state](KernelContext& c) {
      std::vector<TensorArg> inputs, results;
      for (std::size_t i = 0; i < c.num_inputs(); ++i) {
        auto* at = const_cast<void*>(c.input(i));
        const bool by_shape = i >= state && std::ranges::find(op.shape_operands, i - state) !=
                                                op.shape_operands.end();  // on the host
        inputs.push_back({by_shape ? at : pool->near(at), &c.input_spec(i)});
      }
      for (std::size_t i = 0; i < c.num_outputs(); ++i)
        results.push_back({pool->near(c.output(i)), &c.output_spec(i)});
      KernelContext near(inputs, results, &c.run());
      near.set_shard(c.shard(), c.num_shards(), c.scratch() == nullptr ? nullptr : pool->near(c.scratch()));
      near.set_replica(c.replica());
      kernel(near);
    };
  };
  return def;
}

inline void register_far_kernels() {
  static const bool once = [] {
    OpRegistry& registry = OpRegistry::global();
    for (const std::string& name : registry.names()) {
      const OpDef& op = registry.get(name);
      const KernelDef* cpu = registry.kernel(op, "cpu");
      if (name == "call" || cpu == nullptr || cpu->deferred || !cpu->make) continue;
      registry.add_kernel(name, "far", far_kernel(op, *cpu));
    }
    return true;
  }();
  static_cast<void>(once);
}

class FarBackend : public DeviceBackend {
 public:
  explicit FarBackend(int devices) : devices_(devices) {}
  std::vector<std::shared_ptr<ComputeDevice>> open() override {
    std::vector<std::shared_ptr<ComputeDevice>> opened;
    for (int i = 0; i < devices_; ++i) {
      const Device device = Device::parse(str("gpu:", i));
      const MemoryId memory = far_memory_of(device);
      opened.push_back(std::make_shared<ComputeDevice>(
          DeviceFacts{.device = device, .memory = memory, .kernels = "far"}, far_pool(memory)));
    }
    return opened;
  }

 private:
  int devices_;
};

inline Runtime far_runtime(RuntimeOptions options = {.threads = 2, .cpu_devices = 2}, int devices = 3) {
  register_far_kernels();
  options.backends = {std::make_shared<FarBackend>(devices)};
  return Runtime(std::move(options));
}

}  // namespace lockstep::testing
