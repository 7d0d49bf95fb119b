// A bucket of gradients is reduced while the rest of the backward pass still runs; what is shared is computed by all cores.
#include <atomic>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/graph/observer.h"
#include "lockstep/graph/ops.h"
#include "lockstep/graph/optimizer.h"
#include "lockstep/strategies/mirrored.h"

namespace lockstep {
namespace {

// The order in which nodes ended and began.
class Order final : public Observer {
 public:
  void on_node_begin(const NodeEvent& event) noexcept override { note(event, true); }
  void on_node_end(const NodeEvent& event) noexcept override { note(event, false); }
  struct Entry {
    std::string name, op;
    std::int32_t replica;
    bool begins;
    std::string updates;  // the variable; empty: none
    std::int64_t shards;
  };
  std::vector<Entry> entries;

 private:
  void note(const NodeEvent& event, bool begins) {
    const auto written = updated_variables(event.node);
    const Node& node = event.node;
    const std::lock_guard<std::mutex> lock(mutex_);
    entries.push_back({node.name(), node.op().name, node.provenance().replica, begins,
                       written.empty() ? std::string() : written[0], event.shards});
  }
  std::mutex mutex_;
};

TEST(Overlap, ABucketIsReducedWhileTheBackwardPassRuns) {
  MirroredStrategy strategy({.devices = {"cpu:0", "cpu:1"}, .bytes_per_pack = 1, .optimize = false});
  auto scope = strategy.scope();
  std::vector<Variable> weights;
  for (int i = 0; i < 6; ++i)
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
  Order order;
  RunOptions options;
  options.observer = &order;
  step.call({&x, 1}, options);
  // Where the first reduction began, and where the last product of a backward pass ended.
  std::size_t first_reduction = order.entries.size(), last_product = 0;
  for (std::size_t i = 0; i < order.entries.size(); ++i) {
    const Order::Entry& entry = order.entries[i];
    if (entry.op == "reduce_replicas" && entry.begins && entry.name.find("gradients") != std::string::npos)
      first_reduction = std::min(first_reduction, i);
    if (entry.op == "matmul" && !entry.begins) last_product = i;
  }
  ASSERT_LT(first_reduction, order.entries.size());
  EXPECT_LT(first_reduction, last_product);
}

// One update for all replicas, cut over their cores; without sharing there is one for each.
TEST(SharedUpdate, RunsInShards) {
  for (const bool share : {true, false}) {
    MirroredOptions options{.devices = {"cpu:0", "cpu:1"}, .share_mirrored = share};
    options.runtime = Runtime({.threads = 2, .cpu_devices = 2});
    MirroredStrategy strategy(options);
    auto scope = strategy.scope();
    const Variable w("w", Tensor::full(DType::kF32, {1 << 20}, 1));
    const auto step = strategy.function({InputSpec(DType::kF32, {1 << 20}, "x")}, [=](Value x) {
      const Value loss = global_sum(x * w);
      Sgd(0.5).minimize(loss, {w});
      return loss;
    });
    Order order;
    RunOptions run;
    run.observer = &order;
    const PerReplica<Tensor> x(
        {Tensor::full(DType::kF32, {1 << 20}, 1), Tensor::full(DType::kF32, {1 << 20}, 2)});
    step.call({&x, 1}, run);
    std::set<std::string> updates;
    std::int64_t fewest = 1 << 20;
    for (const Order::Entry& entry : order.entries) {
      if (!entry.updates.starts_with('w')) continue;
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
