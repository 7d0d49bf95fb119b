// testing/null_device.cpp - a device that does nothing, at once, and counts.
#include "lockstep/testing/null_device.h"

#include <array>
#include <atomic>
#include <mutex>
#include <ostream>
#include <string>

#include "lockstep/graph/ir/op.h"

namespace lockstep::testing {

class NullBackend::Counts {
 public:
  std::atomic<std::uint64_t> kernels{0}, copies{0}, fills{0}, latches{0}, replays{0}, records{0}, waits{0},
      queries{0};
};

class NullBackend::Event final : public lockstep::Event {
 public:
  explicit Event(std::shared_ptr<Counts> counts) : counts_(std::move(counts)) {}
  bool is_done() const override { return look(); }
  bool wait(std::optional<SteadyTime> /*deadline*/) const override { return look(); }
  void when_done(Completion& completion) override {
    look();
    completion.done();
  }

 private:
  bool look() const {
    ++counts_->queries;
    return true;
  }
  std::shared_ptr<Counts> counts_;
};

class NullBackend::Recording final : public lockstep::Recording {
 public:
  explicit Recording(std::shared_ptr<Counts> counts) : counts_(std::move(counts)) {}
  void replay(lockstep::Stream& /*stream*/) override { ++counts_->replays; }

 private:
  std::shared_ptr<Counts> counts_;
};

class NullBackend::Stream final : public lockstep::Stream {
 public:
  // `counted`: the host puts work here, and does not only record it.
  Stream(std::shared_ptr<Counts> counts, bool counted) : counts_(std::move(counts)), counted_(counted) {}
  void record(lockstep::Event& /*event*/) override { count(counts_->records); }
  void wait(const lockstep::Event& /*event*/) override { count(counts_->waits); }
  void copy(void* /*to*/, MemoryId /*to_memory*/, const void* /*from*/, MemoryId /*from_memory*/,
            std::size_t /*bytes*/) override {
    count(counts_->copies);
  }
  void fill(void* /*to*/, std::byte /*value*/, std::size_t /*bytes*/) override { count(counts_->fills); }
  void latch(void* /*decision*/, const void* /*words*/, std::size_t /*count*/) override {
    count(counts_->latches);
  }
  void copy_unless(const void* /*decision*/, void* /*to*/, const void* /*from*/,
                   std::size_t /*bytes*/) override {
    count(counts_->copies);
  }
  void begin_recording() override {}
  std::unique_ptr<lockstep::Recording> end_recording() override {
    return std::make_unique<Recording>(counts_);
  }
  void wait_in_replays(const lockstep::Event& /*event*/) override {}
  void* native() override { return this; }
  static void count_kernel(lockstep::Stream& stream) {
    const auto& self = *static_cast<const Stream*>(stream.native());
    self.count(self.counts_->kernels);
  }

 private:
  void count(std::atomic<std::uint64_t>& calls) const {
    if (counted_) calls.fetch_add(1, std::memory_order_relaxed);
  }
  std::shared_ptr<Counts> counts_;
  const bool counted_;
};

class NullBackend::Device final : public ComputeDevice {
 public:
  Device(DeviceFacts facts, std::shared_ptr<MemoryPool> pool, const std::shared_ptr<Counts>& counts)
      : ComputeDevice(std::move(facts), std::move(pool)),
        counts_(counts),
        streams_{Stream(counts, true), Stream(counts, true), Stream(counts, true), Stream(counts, true)} {}
  Stream* stream(StreamRole role) override { return &streams_[static_cast<std::size_t>(role)]; }
  std::unique_ptr<lockstep::Event> make_event() override { return std::make_unique<Event>(counts_); }
  // Work is recorded there.
  std::unique_ptr<lockstep::Stream> make_stream() override {
    return std::make_unique<Stream>(counts_, false);
  }
  Decision can_record() const override { return Decision::yes(); }
  bool recordings_wait() const override { return true; }

 private:
  std::shared_ptr<Counts> counts_;
  std::array<Stream, kStreamRoles> streams_;
};

std::ostream& operator<<(std::ostream& out, const NullCalls& calls) {
  return out << "kernels=" << calls.kernels << " copies=" << calls.copies << " fills=" << calls.fills
             << " latches=" << calls.latches << " replays=" << calls.replays << " records=" << calls.records
             << " waits=" << calls.waits << " queries=" << calls.queries;
}

NullBackend::NullBackend() : counts_(std::make_shared<Counts>()) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  KernelDef nothing;
  nothing.make = [](const NodeView&, std::span<const TensorSpec>) -> KernelFn {
    return [](KernelContext& c) { Stream::count_kernel(*c.stream()); };
  };
  OpRegistry& registry = OpRegistry::global();
  for (const std::string& name : registry.names()) {
    const OpDef& op = registry.get(name);
    const KernelDef* const cpu = registry.kernel(op, "cpu");
    if (name == "call" || cpu == nullptr || cpu->deferred) continue;
    if (registry.kernel(op, "null") == nullptr) registry.add_kernel(name, "null", nothing);
  }
}
NullBackend::~NullBackend() = default;

std::vector<std::shared_ptr<ComputeDevice>> NullBackend::open() {
  const MemoryId memory{1000};
  DeviceFacts facts{.device = lockstep::Device::parse("gpu:0"), .memory = memory, .kernels = "null"};
  return {std::make_shared<Device>(facts, std::make_shared<MemoryPool>(DeviceKind::kGpu, memory), counts_)};
}

NullCalls NullBackend::calls() const {
  return {counts_->kernels, counts_->copies,  counts_->fills, counts_->latches,
          counts_->replays, counts_->records, counts_->waits, counts_->queries};
}

}  // namespace lockstep::testing
