// core/runtime.h - what programs run on: devices, threads, memory, variables.
//
//   Runtime runtime;                                   // every core, one logical CPU device
//   Runtime runtime({.threads = 4, .cpu_devices = 8}); // cpu:0 .. cpu:7 share four threads
//   Runtime runtime({.scheduler = borrow(executor)});  // the application's tf::Executor (core/taskflow.h)
//   Runtime runtime({.backends = {cards}});            // and devices of another kind (core/compute_device.h)
//
// A Runtime is a cheap handle; copies share one state, which lives while a handle or a Program needs it. The
// last handle ends the threads. In a child that fork() made, which does not have these threads, it ends
// nothing and waits for nothing (graph/run/program.h says what else such a child may do).
// Thread safety: all methods may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/device.h"
#include "lockstep/core/error.h"
#include "lockstep/core/memory.h"
#include "lockstep/core/scheduler.h"
#include "lockstep/core/topology.h"
#include "lockstep/core/variable_store.h"

namespace lockstep {

class ComputeDevice;
class DeviceBackend;
class DeviceGroup;
class Group;

// The backends of runtimes that are not given others: those that Lockstep was built with and that find a device on this
// machine (docs/gpu.md), and those that were added. An application, or a library of devices that it uses, adds one at its
// start, and strategies and tools find the devices; runtimes that exist do not change. Any thread.
LOCKSTEP_API std::vector<std::shared_ptr<DeviceBackend>> default_backends();
LOCKSTEP_API void add_default_backend(
    std::shared_ptr<DeviceBackend> backend);  // throws InvalidArgument if null
// In place of all of them, those that Lockstep was built with too: with none, an application leaves the cards of its machine
// to others.
LOCKSTEP_API void set_default_backends(std::vector<std::shared_ptr<DeviceBackend>> backends);

struct RuntimeOptions {
  // Worker threads of the owned executor; 0: one per hardware thread. Must be 0 with `scheduler`.
  std::size_t threads = 0;
  // Logical CPU devices, cpu:0 .. cpu:n-1; at least 1.
  std::size_t cpu_devices = 1;
  // Run on this instead of an executor of our own.
  std::shared_ptr<Scheduler> scheduler = nullptr;
  // Seed of every random op's stream.
  std::uint64_t seed = 0;
  // Who brings devices besides the CPUs; {}: nobody.
  std::vector<std::shared_ptr<DeviceBackend>> backends = default_backends();
  // The logical devices that the backend's cards are cut into, gpu:0 and on. Empty: one for each card.
  //   {.backends = {...}, .gpus = {{.card = 0, .memory_bytes = 1 << 30}, {.card = 0, .memory_bytes = 1 << 30}}}
  std::vector<LogicalDevice> gpus = {};
  // This process among others; its devices may then be named "/job:worker/task:1/cpu:0" too. An empty job: it
  // is alone.
  struct Worker {
    std::string job = {};
    int task = -1;
  };
  Worker worker = {};
  // The groups of processes that nodes may name, such as "world" (core/communicators/group.h).
  std::map<std::string, std::shared_ptr<Group>, std::less<>> groups = {};
};

class LOCKSTEP_API Runtime {
 public:
  explicit Runtime(RuntimeOptions options = {});  // throws InvalidArgument

  Scheduler& scheduler() const;
  const std::vector<Device>& devices() const;
  // The devices with their memories; valid while a handle lives.
  const Topology& topology() const;
  // A no names the devices that exist.
  Decision has_device(const Device& device) const;
  const std::shared_ptr<MemoryPool>& pool(const Device& device) const;  // throws NotFound
  // The pool of the first device that computes in this memory; null: none does.
  std::shared_ptr<MemoryPool> find_pool(MemoryId memory) const;
  // The device that a backend brought; null for a CPU. Throws NotFound.
  ComputeDevice* backend_device(const Device& device) const;
  // The store that programs use unless told otherwise.
  const std::shared_ptr<VariableStore>& variables() const;
  std::uint64_t seed() const;
  // Throws NotFound, naming the groups there are.
  Group& group(std::string_view name) const;
  Group* find_group(std::string_view name) const;  // null: there is none
  // What combines values between these devices (DeviceFacts::collectives), in this order; every call gives the same one. Null:
  // nothing connects them, such as two devices of one memory. Throws NotFound for a device that does not exist. Calls of two
  // groups that share devices have no common order, and may wait for each other: start those of one when the other's are over.
  std::shared_ptr<DeviceGroup> device_group(std::span<const Device> devices) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
