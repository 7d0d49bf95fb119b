// tests/support/deferred_ops.h - ops whose calls go on after their kernels have returned.
//
//   Value y = slept(x, 50);         // x, 50 ms after the node could start
//   Value y = held(x, "door");      // x, when a test opens the door:
//   HeldCalls::wait_for("door");    //   ... waits until a call stands before it
//   HeldCalls::open("door");        //   ... completes the calls that do
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <queue>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ir/op.h"

namespace lockstep::testing {

// A call that gives its input as its output when it is completed.
struct LaterCopy {
  explicit LaterCopy(KernelContext& c)
      : from(c.input(0)), to(c.output(0)), bytes(static_cast<std::size_t>(num_bytes(c.input_spec(0)))) {
    completion = &c.defer();
  }
  void complete() const {
    if (bytes > 0) std::memcpy(to, from, bytes);
    completion->done();
  }
  const void* from;
  void* to;
  std::size_t bytes;
  Completion* completion;
};

// Completes calls at their time, on a thread of its own that ends with the process.
class Sleepers {
 public:
  static Sleepers& global() {
    static auto* const sleepers = new Sleepers;
    return *sleepers;
  }
  void add(const LaterCopy& call, std::chrono::steady_clock::time_point when) {
    const std::lock_guard<std::mutex> lock(mutex_);
    calls_.emplace(when, call);
    changed_.notify_one();
  }

 private:
  Sleepers() {
    std::thread([this] {
      std::unique_lock<std::mutex> lock(mutex_);
      for (;;) {
        if (calls_.empty()) {
          changed_.wait(lock);
        } else if (const auto when = calls_.begin()->first; std::chrono::steady_clock::now() < when) {
          changed_.wait_until(lock, when);
        } else {
          const LaterCopy call = calls_.begin()->second;
          calls_.erase(calls_.begin());
          lock.unlock();
          call.complete();
          lock.lock();
        }
      }
    }).detach();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::multimap<std::chrono::steady_clock::time_point, LaterCopy> calls_;
};

// Calls that wait for a test, by the name of their door.
class HeldCalls {
 public:
  static void add(const std::string& door, const LaterCopy& call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    calls_[door].push_back(call);
    changed_.notify_all();
  }
  static std::vector<LaterCopy> take(const std::string& door) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<LaterCopy> taken;
    taken.swap(calls_[door]);
    return taken;
  }
  // False if fewer calls came within the time.
  static bool wait_for(const std::string& door, std::size_t count = 1,
                       std::chrono::seconds time = std::chrono::hours(1)) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, time, [&] { return calls_[door].size() >= count; });
  }
  static void open(const std::string& door) {
    for (const LaterCopy& call : take(door)) call.complete();
  }
  static void fail(const std::string& door, const std::exception_ptr& why) {
    for (const LaterCopy& call : take(door)) call.completion->failed(why);
  }

 private:
  static inline std::mutex mutex_;
  static inline std::condition_variable changed_;
  static inline std::map<std::string, std::vector<LaterCopy>> calls_;
};

inline const OpDef& add_deferred_op(const char* name, std::vector<AttributeSpec> attributes, KernelMaker make,
                                    CostFn cost = nullptr) {
  OpDef def;
  def.name = name;
  def.inputs = Arity::exactly(1);
  def.attributes = std::move(attributes);
  def.effects = Effect::kHost;
  def.infer = [](InferContext& c) { c.add_output(c.input(0)); };
  def.cost = std::move(cost);
  def.kernels["cpu"] = std::move(make);
  def.kernels["cpu"].deferred = true;
  return OpRegistry::global().add(std::move(def));
}

inline Value slept(Value x, double milliseconds) {
  static const OpDef& op = add_deferred_op(
      "test.sleep", {{"ms", AttributeType::kFloat}},
      [](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
        const std::chrono::duration<double, std::milli> time(node.get<double>("ms"));
        return [time = std::chrono::duration_cast<std::chrono::nanoseconds>(time)](KernelContext& c) {
          const LaterCopy call(c);
          Sleepers::global().add(call, std::chrono::steady_clock::now() + time);
        };
      },
      [](const NodeView& node, std::span<const TensorSpec>) {
        return Cost{0, 0, node.get<double>("ms") * 1e-3};
      });
  return x.builder().op1(op.name, {x}, {{"ms", milliseconds}});
}

inline Value held(Value x, const std::string& door) {
  static const OpDef& op = add_deferred_op("test.hold", {{"door", AttributeType::kString}},
                                           [](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
                                             return [door = node.get<std::string>("door")](KernelContext& c) {
                                               HeldCalls::add(door, LaterCopy(c));
                                             };
                                           });
  return x.builder().op1(op.name, {x}, {{"door", door}});
}

}  // namespace lockstep::testing
