// testing/null_device.cpp - a device that does nothing, at once.
#include "lockstep/testing/null_device.h"

#include <array>
#include <mutex>
#include <string>

#include "lockstep/graph/ir/op.h"

namespace lockstep::testing {

namespace {

class NullEvent final : public Event {
 public:
  bool is_done() const override { return true; }
  bool wait(std::optional<SteadyTime> /*deadline*/) const override { return true; }
  void when_done(Completion& completion) override { completion.done(); }
};

class NullRecording final : public Recording {
 public:
  void replay(Stream& /*stream*/) override {}
};

class NullStream final : public Stream {
 public:
  void record(Event& /*event*/) override {}
  void wait(const Event& /*event*/) override {}
  void copy(void* /*to*/, MemoryId /*to_memory*/, const void* /*from*/, MemoryId /*from_memory*/,
            std::size_t /*bytes*/) override {}
  void fill(void* /*to*/, std::byte /*value*/, std::size_t /*bytes*/) override {}
  void latch(void* /*decision*/, const void* /*words*/, std::size_t /*count*/) override {}
  void copy_unless(const void* /*decision*/, void* /*to*/, const void* /*from*/,
                   std::size_t /*bytes*/) override {}
  void begin_recording() override {}
  std::unique_ptr<Recording> end_recording() override { return std::make_unique<NullRecording>(); }
  void* native() override { return nullptr; }
};

class NullDevice final : public ComputeDevice {
 public:
  using ComputeDevice::ComputeDevice;
  Stream* stream(StreamRole role) override { return &streams_[static_cast<std::size_t>(role)]; }
  std::unique_ptr<Event> make_event() override { return std::make_unique<NullEvent>(); }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<NullStream>(); }
  Decision can_record() const override { return Decision::yes(); }

 private:
  std::array<NullStream, kStreamRoles> streams_;
};

}  // namespace

NullBackend::NullBackend() {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  KernelDef nothing;
  nothing.make = [](const NodeView&, std::span<const TensorSpec>) -> KernelFn {
    return [](KernelContext&) {};
  };
  OpRegistry& registry = OpRegistry::global();
  for (const std::string& name : registry.names()) {
    const OpDef& op = registry.get(name);
    const KernelDef* const cpu = registry.kernel(op, "cpu");
    if (name == "call" || cpu == nullptr || cpu->deferred || op.traits.refuses_integers ||
        op.traits.refuses_floats)
      continue;
    if (registry.kernel(op, "null") == nullptr) registry.add_kernel(name, "null", nothing);
  }
}

std::vector<std::shared_ptr<ComputeDevice>> NullBackend::open() {
  const MemoryId memory{1000};
  DeviceFacts facts{.device = Device::parse("gpu:0"), .memory = memory, .kernels = "null"};
  return {std::make_shared<NullDevice>(facts, std::make_shared<MemoryPool>(DeviceKind::kGpu, memory))};
}

}  // namespace lockstep::testing
