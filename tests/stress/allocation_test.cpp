// Tests: graph/run/program.cpp, graph/run/run_context.cpp, testing/null_device.cpp
// Steady state allocates nothing per node, and nothing at all where a program runs inline.
#include <algorithm>
#include <memory>
#include <vector>

#include "lockstep/core/communicators/in_process_group.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/passes/optimize.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/testing/null_device.h"
#include "support/failing_allocations.h"
#include "support/program_test.h"
#include "support/sanitizers.h"
#include "support/test_devices.h"

namespace lockstep {
namespace {

using testing::allocations_so_far;
using testing::compile_here;
using testing::kSanitized;
using testing::on_gpus;
using testing::with_lanes;

constexpr int kRuns = 1000;

// Allocations a run of a program in steady state, on this and all other threads.
double allocations_per_run(const Program& program, const std::vector<Tensor>& feeds) {
  std::vector<Tensor> results = program.run(feeds);
  for (int i = 0; i < 50; ++i) program.run_into(feeds, results);
  const std::int64_t before = allocations_so_far();
  for (int i = 0; i < kRuns; ++i) program.run_into(feeds, results);
  return static_cast<double>(allocations_so_far() - before) / kRuns;
}

// A graph of `nodes` nodes: arithmetic, lambdas, a variable, a random op.
Graph graph_of(int nodes) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {64});
  const VariableRef v = b.variable("v", Tensor::zeros({64}));
  Value y = x * b.random_uniform({DType::kF32, {64}});
  for (int i = 0; i < nodes; ++i) {
    y = relu(y + x);
    b.call("lambda", [] {}, {.seconds = 1e-6});
  }
  b.assign_add(v, y);
  b.result(sum(y));
  return b.finish();
}

class Allocations : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "sanitizers have an allocator of their own";
    if (on_gpus()) GTEST_SKIP() << "the fake allocates";
  }
  const std::vector<Tensor> feeds_ = {Tensor::full(DType::kF32, {64}, 1)};
};

TEST_F(Allocations, TheCounterCounts) {
  const std::int64_t before = allocations_so_far();
  delete new int(3);
  std::vector<int> list(100);
  EXPECT_GE(allocations_so_far() - before, 1);
}

TEST_F(Allocations, NoneInline) {
  EXPECT_EQ(allocations_per_run(compile_here(graph_of(10), Runtime({.threads = 2})), feeds_), 0);
  EXPECT_EQ(allocations_per_run(compile_here(graph_of(100), Runtime({.threads = 1})), feeds_), 0);
}

TEST_F(Allocations, NoneForMergedUpdates) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {64});
  std::vector<VariableRef> variables;
  Value loss = sum(x);
  for (int i = 0; i < 30; ++i) {
    variables.push_back(b.variable(str("w", i), Tensor::zeros({64})));
    loss = loss + sum(square(b.read(variables.back()) + x));
  }
  AdamW(0.1).minimize(loss, variables);
  b.result(loss);
  const Graph step = optimize(b.finish());
  ASSERT_TRUE(
      std::ranges::any_of(step.nodes(), [](const Node& node) { return node.op().traits.merges_updates; }));
  EXPECT_EQ(allocations_per_run(compile_here(step, Runtime({.threads = 2})), feeds_), 0);
}

TEST_F(Allocations, NoneInlineWithALoopAndABranch) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {64});
  const VariableRef v = b.variable("v", Tensor::zeros({64}));
  const Value start = b.constant(0);
  const std::vector<Value> end = while_loop(
      std::vector<Value>{start, x}, [](std::span<const Value> now) { return now[0] < 5; },
      [&](std::span<const Value> now) -> std::vector<Value> {
        const Value next = cond(
            now[0] < 2, [&]() -> std::vector<Value> { return {relu(now[1])}; },
            [&]() -> std::vector<Value> { return {now[1] + x}; })[0];
        b.assign_add(v, next);
        return {now[0] + 1, next};
      });
  b.result(end[1]);
  EXPECT_EQ(allocations_per_run(compile_here(b.finish(), Runtime({.threads = 2})), feeds_), 0);
}

TEST_F(Allocations, NoneInlineWithAnObserverADeadlineAndACancellation) {
  struct Quiet : Observer {
    void on_node_begin(const NodeEvent&) noexcept override {}
    void on_node_end(const NodeEvent&) noexcept override {}
  } observer;
  const Program program = compile_here(graph_of(10), Runtime({.threads = 2}));
  std::stop_source stop;
  RunOptions options;
  options.observer = &observer;
  options.cancel = stop.get_token();
  options.deadline = std::chrono::steady_clock::now() + std::chrono::hours(1);
  std::vector<Tensor> results = program.run(feeds_);
  const std::int64_t before = allocations_so_far();
  for (int i = 0; i < kRuns; ++i) program.run_into(feeds_, results, options);
  EXPECT_EQ(allocations_so_far() - before, 0);
}

TEST_F(Allocations, AtMostFourARunWithTasksHoweverManyNodes) {
  for (const Clustering clustering : {Clustering::kByCost, Clustering::kOff}) {
    for (const int nodes : {10, 100, 400}) {
      const Program program = compile_here(graph_of(nodes), Runtime({.threads = 2}), with_lanes(clustering));
      ASSERT_EQ(program.plan(feeds_).lanes, 2U);
      EXPECT_LE(allocations_per_run(program, feeds_), 4) << nodes << " nodes";
    }
  }
}

// Whatever the device does; results in its memory are from its pool.
TEST_F(Allocations, NoneOnADevice) {
  for (const bool record : {false, true}) {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {64});
    const auto there = b.device("gpu:0");
    const VariableRef v = b.variable("v", Tensor::zeros({64}));
    Value y = x * b.random_uniform({DType::kF32, {64}});
    for (int i = 0; i < 50; ++i) y = relu(y + x);
    b.assign_add(v, y);
    b.result(y);
    CompileOptions options;
    options.record = record;
    const Runtime runtime({.threads = 2, .backends = {std::make_shared<testing::NullBackend>()}});
    const Program program = compile(b.finish(), runtime, options);
    EXPECT_EQ(program.plan(feeds_).segments.size(), 2U);
    EXPECT_EQ(allocations_per_run(program, feeds_), 0) << "recorded: " << record;
    const std::vector<Tensor> there_already = {feeds_[0].to(Device::parse("gpu:0"), runtime)};
    EXPECT_EQ(allocations_per_run(program, there_already), 0) << "recorded: " << record;
  }
}

TEST_F(Allocations, MemoryStaysWhereItIsBetweenRuns) {
  const Runtime runtime({.threads = 2});
  const Program program = compile_here(graph_of(50), runtime, with_lanes());
  std::vector<Tensor> results = program.run(feeds_);
  const auto taken = runtime.pool(runtime.devices()[0])->stats().allocations;
  for (int i = 0; i < 500; ++i) program.run_into(feeds_, results);
  EXPECT_EQ(runtime.pool(runtime.devices()[0])->stats().allocations, taken);
}

// Operations of a group are used again and again, also while somebody keeps some of the first.
TEST_F(Allocations, CollectivesNeedNone) {
  InProcessGroup group(2);
  const std::unique_ptr<Communicator> a = group.join(0), b = group.join(1);
  std::vector<float> x(1 << 14, 1), y(1 << 14, 1);
  const auto sum = [](Communicator& comm, std::vector<float>& data, std::int64_t count) {
    return comm.all_reduce(ReplicaReduce::kMax, DType::kF32, data.data(), data.data(), count);
  };
  std::vector<Pending> kept;
  for (int i = 0; i < 3; ++i) {
    kept.push_back(sum(*a, x, 16));
    sum(*b, y, 16).wait();
  }
  const auto meet = [&](int times) {
    for (int i = 0; i < times; ++i) {
      Pending mine = sum(*a, x, i % 2 == 0 ? 16 : 1 << 14);
      sum(*b, y, i % 2 == 0 ? 16 : 1 << 14).wait();
      mine.wait();
    }
  };
  meet(100);
  const std::int64_t before = allocations_so_far();
  meet(kRuns);
  EXPECT_EQ(allocations_so_far() - before, 0);
  for (Pending& pending : kept) pending.wait();
}

}  // namespace
}  // namespace lockstep
