// Tests: strategies/mirrored.cpp
// A bucket of gradients is reduced while the rest of the backward pass still runs; what is shared is computed
// by all cores.
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/run/observer.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/strategies/mirrored.h"
#include "support/test_devices.h"

namespace lockstep {
namespace {

using testing::test_devices;

// Lets the first reduction of gradients and a product meet: each waits for the other, the reduction where it
// begins, of the products the last one that replica 1 begins. Both are then under way at once, which no schedule
// of one thread has, and none that reduces only after all products.
class Meeting final : public Observer {
 public:
  explicit Meeting(std::size_t products) : products_(products) {}

  void on_node_begin(const NodeEvent& event) noexcept override {
    constexpr std::chrono::seconds kFarTooLong(30);  // only where they never meet
    const std::string& op = event.node.op().name;
    std::unique_lock<std::mutex> lock(mutex_);
    if (op == "matmul") {
      ++under_way_;
      met_ = met_ || waits_;  // though this product may have ended before the reduction's thread looks
      changed_.notify_all();
      if (event.replica == 1 && begun_.insert(&event.node).second && begun_.size() == products_)
        changed_.wait_for(lock, kFarTooLong, [&] { return reduces_; });
    } else if (op == "reduce_replicas" && event.node.name().find("gradients") != std::string::npos &&
               !std::exchange(reduces_, true)) {
      met_ = under_way_ > 0;
      waits_ = true;
      changed_.notify_all();
      changed_.wait_for(lock, kFarTooLong, [&] { return met_; });
      waits_ = false;
    }
  }
  void on_node_end(const NodeEvent& event) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (event.node.op().name == "matmul") --under_way_;
  }
  bool reduced() const { return reduces_; }
  bool met() const { return met_; }
  std::size_t begun() const { return begun_.size(); }

 private:
  const std::size_t products_;  // of a replica
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<const Node*> begun_;  // products of replica 1
  int under_way_ = 0;
  bool reduces_ = false, waits_ = false, met_ = false;  // of the reduction: it has begun, it waits now
};

TEST(Overlap, ABucketIsReducedWhileTheBackwardPassRuns) {
  if (testing::on_gpus()) GTEST_SKIP() << "its kernels are the host's";
  MirroredOptions options{.devices = test_devices(2), .bytes_per_pack = 1, .optimize = false};
  options.base.runtime = Runtime({.threads = 2, .cpu_devices = 2});
  options.base.compile.inline_seconds = 0;
  MirroredStrategy strategy(options);
  auto scope = strategy.scope();
  std::vector<Variable> weights;
  constexpr std::size_t kLayers = 6;
  for (std::size_t i = 0; i < kLayers; ++i)
    weights.emplace_back("w" + std::to_string(i), Tensor::full(DType::kF32, {256, 256}, 0.01));
  const auto step = strategy.function({InputSpec(DType::kF32, {kUnknown, 256}, "x")}, [=](Value x) {
    Value h = x;
    for (const Variable& w : weights) h = tanh(matmul(h, w));
    const Value loss = global_mean(square(h));
    Sgd(0.1).minimize(loss, std::vector<VariableRef>(weights.begin(), weights.end()));
    return loss;
  });
  const PerReplica<Tensor> x(
      {Tensor::full(DType::kF32, {256, 256}, 1), Tensor::full(DType::kF32, {256, 256}, 2)});
  // Of each layer one product forward and two backward, without the gradient of the input.
  constexpr std::size_t kProducts = 3 * kLayers - 1;
  Meeting meeting(kProducts);
  RunOptions run;
  run.observer = &meeting;
  step.call({&x, 1}, run);
  ASSERT_TRUE(meeting.reduced());
  ASSERT_EQ(meeting.begun(), kProducts);
  EXPECT_TRUE(meeting.met()) << "the reduction waited for all products";
}

// Which nodes wrote variables.
class Updates final : public Observer {
 public:
  void on_node_begin(const NodeEvent& event) noexcept override {
    const auto written = updated_variables(event.node);
    if (written.empty()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    entries.push_back({event.node.name(), written[0], event.shards});
  }
  void on_node_end(const NodeEvent&) noexcept override {}
  struct Entry {
    std::string name, variable;
    std::int64_t shards;
  };
  std::vector<Entry> entries;

 private:
  std::mutex mutex_;
};

// One update for all replicas, cut over their cores; without sharing there is one for each.
TEST(SharedUpdate, RunsInShards) {
  if (testing::on_gpus()) GTEST_SKIP() << "calls on devices have one shard";
  for (const bool share : {true, false}) {
    MirroredOptions options{.devices = test_devices(2), .share_mirrored = share};
    options.base.runtime = Runtime({.threads = 2, .cpu_devices = 2});
    MirroredStrategy strategy(options);
    auto scope = strategy.scope();
    const Variable w("w", Tensor::full(DType::kF32, {1 << 20}, 1));
    const auto step = strategy.function({InputSpec(DType::kF32, {1 << 20}, "x")}, [=](Value x) {
      const Value loss = global_sum(x * w);
      Sgd(0.5).minimize(loss, {w});
      return loss;
    });
    Updates seen;
    RunOptions run;
    run.observer = &seen;
    const PerReplica<Tensor> x(
        {Tensor::full(DType::kF32, {1 << 20}, 1), Tensor::full(DType::kF32, {1 << 20}, 2)});
    step.call({&x, 1}, run);
    std::set<std::string> updates;
    std::int64_t fewest = 1 << 20;
    for (const Updates::Entry& entry : seen.entries) {
      if (!entry.variable.starts_with('w')) continue;
      updates.insert(entry.name);
      fewest = std::min(fewest, entry.shards);
    }
    EXPECT_EQ(updates.size(), share ? 1U : 2U);
    if (share) {
      EXPECT_GT(fewest, 1) << "the shared update is serial";
    }
    for (const Tensor& copy : w.copies()) EXPECT_EQ(copy.data<float>()[12345], 1 - 0.5F * 3);
  }
}

}  // namespace
}  // namespace lockstep
