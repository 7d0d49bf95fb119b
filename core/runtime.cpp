// core/runtime.cpp - what programs run on: devices, threads, memory, variables.
#include "lockstep/core/runtime.h"

#include <algorithm>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "lockstep/core/compute_device.h"
#include "lockstep/core/internal/built_in_backends.h"

namespace lockstep {
namespace {

constexpr std::size_t kMaxCpuDevices = 4096;

std::string list(const std::vector<Device>& devices) {
  std::string text;
  for (const Device& device : devices) text += (text.empty() ? "" : ", ") + device.to_string();
  return text;
}

struct DefaultBackends {
  std::mutex mutex;
  std::vector<std::shared_ptr<DeviceBackend>> all = internal::built_in_backends();
  static DefaultBackends& of_process() {
    static DefaultBackends backends;
    return backends;
  }
};

}  // namespace

std::vector<std::shared_ptr<DeviceBackend>> default_backends() {
  DefaultBackends& backends = DefaultBackends::of_process();
  const std::lock_guard<std::mutex> lock(backends.mutex);
  return backends.all;
}

void add_default_backend(std::shared_ptr<DeviceBackend> backend) {
  if (backend == nullptr) throw InvalidArgument("add_default_backend: the backend is an empty pointer");
  DefaultBackends& backends = DefaultBackends::of_process();
  const std::lock_guard<std::mutex> lock(backends.mutex);
  backends.all.push_back(std::move(backend));
}

void set_default_backends(std::vector<std::shared_ptr<DeviceBackend>> backends) {
  for (const std::shared_ptr<DeviceBackend>& backend : backends) {
    if (backend == nullptr) throw InvalidArgument("set_default_backends: a backend is an empty pointer");
  }
  DefaultBackends& kept = DefaultBackends::of_process();
  const std::lock_guard<std::mutex> lock(kept.mutex);
  kept.all = std::move(backends);
}

struct Runtime::State {
  std::shared_ptr<VariableStore> variables = std::make_shared<VariableStore>();
  std::vector<Device> devices;
  Topology topology;                               // the same devices in the same order
  std::vector<std::shared_ptr<MemoryPool>> pools;  // one per device
  std::vector<std::shared_ptr<DeviceBackend>> backends;
  std::vector<std::shared_ptr<ComputeDevice>> opened;  // by backends
  std::vector<DeviceBackend*> opened_by;               // each of them
  std::mutex connecting;
  std::map<std::vector<std::size_t>, std::shared_ptr<DeviceGroup>> device_groups;  // by places in `opened`
  std::uint64_t seed = 0;
  std::map<std::string, std::shared_ptr<Group>, std::less<>> groups;
  std::shared_ptr<Scheduler> scheduler;  // the last member: its threads end before anything that they may use

  void add(DeviceFacts facts, std::shared_ptr<MemoryPool> pool) {
    devices.push_back(facts.device);
    topology.add(std::move(facts));
    pools.push_back(std::move(pool));
  }
  void open_devices(const RuntimeOptions& options);
};

void Runtime::State::open_devices(const RuntimeOptions& options) {
  if (!options.gpus.empty() && options.backends.size() != 1) {
    throw InvalidArgument(str("Runtime: gpus cuts the cards of one backend, and there are ",
                              counted(options.backends.size(), "backend")));
  }
  for (const std::shared_ptr<DeviceBackend>& backend : options.backends) {
    if (backend == nullptr) throw InvalidArgument("Runtime: a backend is an empty pointer");
    backends.push_back(backend);
    std::vector<std::shared_ptr<ComputeDevice>> given =
        options.gpus.empty() ? backend->open() : backend->open_logical(options.gpus);
    for (std::shared_ptr<ComputeDevice>& device : given) {
      if (device == nullptr) throw InvalidArgument("Runtime: a backend gave an empty pointer for a device");
      const DeviceFacts& facts = device->facts();
      const auto other = std::ranges::find(topology.devices(), facts.memory, &DeviceFacts::memory);
      if (other != topology.devices().end() && facts.memory != kHostMemory &&
          &pools[static_cast<std::size_t>(other - topology.devices().begin())]->whole() !=
              &device->pool()->whole()) {
        throw InvalidArgument(str("Runtime: ", facts.device, " and ", other->device,
                                  " both compute in memory ", facts.memory.value,
                                  " and have two pools: give them one, or two memories"));
      }
      add(facts, device->pool());
      opened.push_back(std::move(device));
      opened_by.push_back(backend.get());
    }
  }
}

Runtime::Runtime(RuntimeOptions options) : state_(std::make_shared<State>()) {
  if (options.scheduler != nullptr && options.threads != 0) {
    throw InvalidArgument(str("Runtime: threads = ", options.threads,
                              " with a scheduler: the scheduler has its own threads, so leave threads at 0"));
  }
  if (options.cpu_devices == 0 || options.cpu_devices > kMaxCpuDevices) {
    throw InvalidArgument(str("Runtime: cpu_devices = ", options.cpu_devices, ": expected 1 to ",
                              kMaxCpuDevices, " logical devices"));
  }
  if (!options.worker.job.empty()) {
    const Device named =
        Device::parse(str("/job:", options.worker.job, "/task:", options.worker.task, "/cpu:0"));
    state_->topology.set_worker(named.job, named.task);
  }
  for (std::size_t i = 0; i < options.cpu_devices; ++i) {
    Device device;
    device.index = static_cast<int>(i);
    state_->add({.device = device, .card = 0}, std::make_shared<MemoryPool>(DeviceKind::kCpu));
  }
  state_->open_devices(options);
  state_->seed = options.seed;
  for (const auto& [name, group] : options.groups) {
    if (group == nullptr) throw InvalidArgument(str("Runtime: the group '", name, "' is an empty pointer"));
  }
  state_->groups = std::move(options.groups);
  state_->scheduler =
      options.scheduler != nullptr ? std::move(options.scheduler) : make_scheduler(options.threads);
}

Scheduler& Runtime::scheduler() const { return *state_->scheduler; }

const std::vector<Device>& Runtime::devices() const { return state_->devices; }

const Topology& Runtime::topology() const { return state_->topology; }

Decision Runtime::has_device(const Device& device) const {
  if (state_->topology.find(device) != nullptr) return Decision::yes();
  return Decision::no(str("this runtime has no device ", device, "; it has ", list(state_->devices)));
}

const std::shared_ptr<MemoryPool>& Runtime::pool(const Device& device) const {
  const DeviceFacts* found = state_->topology.find(device);
  if (found == nullptr) throw NotFound(has_device(device).reason());
  return state_->pools[static_cast<std::size_t>(found - state_->topology.devices().data())];
}

std::shared_ptr<MemoryPool> Runtime::find_pool(MemoryId memory) const {
  const std::vector<DeviceFacts>& devices = state_->topology.devices();
  const auto found = std::ranges::find(devices, memory, &DeviceFacts::memory);
  return found == devices.end() ? nullptr : state_->pools[static_cast<std::size_t>(found - devices.begin())];
}

ComputeDevice* Runtime::backend_device(const Device& device) const {
  const DeviceFacts* found = state_->topology.find(device);
  if (found == nullptr) throw NotFound(has_device(device).reason());
  const std::size_t cpus = state_->devices.size() - state_->opened.size();
  const auto index = static_cast<std::size_t>(found - state_->topology.devices().data());
  return index < cpus ? nullptr : state_->opened[index - cpus].get();
}

Tensor Tensor::to(const Device& device, const Runtime& runtime) const { return to(runtime.pool(device)); }

const std::shared_ptr<VariableStore>& Runtime::variables() const { return state_->variables; }

std::uint64_t Runtime::seed() const { return state_->seed; }

Group* Runtime::find_group(std::string_view name) const {
  const auto found = state_->groups.find(name);
  return found == state_->groups.end() ? nullptr : found->second.get();
}

Group& Runtime::group(std::string_view name) const {
  if (Group* const found = find_group(name)) return *found;
  std::string names;
  for (const auto& [known, group] : state_->groups) names += str(names.empty() ? "'" : ", '", known, "'");
  throw NotFound(str("this runtime has no group '", name, "'; ",
                     names.empty() ? "it has none: name it in RuntimeOptions::groups" : "it has " + names));
}

std::shared_ptr<DeviceGroup> Runtime::device_group(std::span<const Device> devices) const {
  const std::size_t cpus = state_->devices.size() - state_->opened.size();
  std::vector<std::size_t> places;
  std::vector<DeviceFacts> facts;
  for (const Device& device : devices) {
    const DeviceFacts& own = state_->topology.facts(device);
    const auto at = static_cast<std::size_t>(&own - state_->topology.devices().data());
    if (at < cpus || own.collectives.empty()) return nullptr;
    for (const DeviceFacts& other : facts) {
      if (other.memory == own.memory || other.collectives != own.collectives) return nullptr;
    }
    facts.push_back(own);
    places.push_back(at - cpus);
    if (state_->opened_by[places.back()] != state_->opened_by[places.front()]) return nullptr;
  }
  if (places.size() < 2) return nullptr;
  const std::lock_guard<std::mutex> lock(state_->connecting);
  std::shared_ptr<DeviceGroup>& known = state_->device_groups[places];
  if (known == nullptr) known = state_->opened_by[places.front()]->connect(facts);
  return known;
}

}  // namespace lockstep
