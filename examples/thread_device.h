// examples/thread_device.h - a small backend with streams: each is a thread that does what is put on it, in order.
//
// Its memory is ordinary memory under another number, its kernels are the CPU's. What a real backend does at the
// same places: memory of the card, events of its driver, kernels that are launched.
#pragma once

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/lockstep.h"

namespace thread_device {

using namespace lockstep;

class ThreadEvent final : public Event {
 public:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t set = 0, done = 0;
    Completion* waiting = nullptr;
  };
  bool is_done() const override {
    const std::lock_guard lock(state->mutex);
    return state->done >= state->set;
  }
  bool wait(std::optional<SteadyTime> deadline) const override {
    std::unique_lock lock(state->mutex);
    const auto over = [this] { return state->done >= state->set; };
    if (deadline) return state->changed.wait_until(lock, *deadline, over);
    state->changed.wait(lock, over);
    return true;
  }
  void when_done(Completion& completion) override {
    {
      const std::lock_guard lock(state->mutex);
      if (state->done < state->set) {
        state->waiting = &completion;
        return;
      }
    }
    completion.done();
  }
  const std::shared_ptr<State> state = std::make_shared<State>();
};

class ThreadStream final : public Stream {
 public:
  ThreadStream() : thread_([this] { work(); }) {}
  ~ThreadStream() override {
    put(nullptr);
    thread_.join();
  }

  // Null ends the thread.
  void put(std::function<void()> call) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
    changed_.notify_one();
  }

  void record(Event& event) override {
    const auto state = static_cast<ThreadEvent&>(event).state;
    const std::lock_guard lock(state->mutex);
    put([state, number = ++state->set] {
      Completion* waiting = nullptr;
      {
        const std::lock_guard reached(state->mutex);
        state->done = number;
        waiting = std::exchange(state->waiting, nullptr);
        state->changed.notify_all();
      }
      if (waiting != nullptr) waiting->done();
    });
  }
  void wait(const Event& event) override {
    const auto state = static_cast<const ThreadEvent&>(event).state;
    const std::lock_guard lock(state->mutex);
    put([state, number = state->set] {
      std::unique_lock waiting(state->mutex);
      state->changed.wait(waiting, [&] { return state->done >= number; });
    });
  }
  void copy(void* to, MemoryId, const void* from, MemoryId, std::size_t bytes) override {
    put([=] { std::memcpy(to, from, bytes); });
  }
  void fill(void* to, std::byte value, std::size_t bytes) override {
    put([=] { std::memset(to, std::to_integer<int>(value), bytes); });
  }
  void latch(void* decision, const void* words, std::size_t count) override {
    put([=] {
      const auto* word = static_cast<const std::uint64_t*>(words);
      auto& decided = *static_cast<std::uint64_t*>(decision);
      for (std::size_t i = 0; i < count; ++i) decided = std::min(decided, word[i]);
    });
  }
  void copy_unless(const void* decision, void* to, const void* from, std::size_t bytes) override {
    put([=] {
      if (commits(decision)) std::memcpy(to, from, bytes);
    });
  }
  static bool commits(const void* decision) {
    return decision == nullptr || ~*static_cast<const std::uint64_t*>(decision) == 0;
  }
  void begin_recording() override { throw FailedPrecondition("threads record nothing"); }
  std::unique_ptr<Recording> end_recording() override { throw FailedPrecondition("threads record nothing"); }
  void* native() override { return this; }

 private:
  void work() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !calls_.empty(); });
      const std::function<void()> call = std::move(calls_.front());
      calls_.pop_front();
      lock.unlock();
      if (call == nullptr) return;
      call();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> calls_;
  std::thread thread_;
};

class ThreadDevice final : public ComputeDevice {
 public:
  using ComputeDevice::ComputeDevice;
  ThreadStream* stream(StreamRole role) override { return &streams_[static_cast<std::size_t>(role)]; }
  std::unique_ptr<Event> make_event() override { return std::make_unique<ThreadEvent>(); }

 private:
  std::array<ThreadStream, kStreamRoles> streams_;
};

// The kernel of the CPU, on the stream of the call.
inline KernelDef on_stream(const KernelDef& cpu) {
  KernelDef def = cpu;
  def.make = [make = cpu.make](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return [kernel = make(node, outputs)](KernelContext& c) {
      static_cast<ThreadStream*>(c.stream())->put([kernel, call = c]() mutable {
        const DeviceBlocks& blocks = call.blocks();
        if (!ThreadStream::commits(blocks.decision)) return;
        try {
          kernel(call);
        } catch (const RefusedData& refused) {
          auto& word = *static_cast<std::uint64_t*>(blocks.refusal);
          word = std::min(word, blocks.refused(static_cast<std::uint32_t>(refused.position())));
        }
      });
    };
  };
  return def;
}

// gpu:0.
class ThreadBackend final : public DeviceBackend {
 public:
  ThreadBackend() {
    OpRegistry& registry = OpRegistry::global();
    for (const std::string& name : registry.names()) {
      const OpDef& op = registry.get(name);
      const KernelDef* const cpu = registry.kernel(op, "cpu");
      if (cpu == nullptr || !cpu->make || cpu->deferred || registry.kernel(op, "thread") != nullptr) continue;
      registry.add_kernel(name, "thread", on_stream(*cpu));
    }
  }
  std::vector<std::shared_ptr<ComputeDevice>> open() override {
    const MemoryId memory{1};
    const DeviceFacts facts{.device = Device::parse("gpu:0"), .memory = memory, .kernels = "thread"};
    return {std::make_shared<ThreadDevice>(facts, std::make_shared<MemoryPool>(DeviceKind::kGpu, memory))};
  }
};

}  // namespace thread_device
