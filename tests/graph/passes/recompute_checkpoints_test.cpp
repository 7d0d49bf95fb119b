// Tests: graph/passes/optimize.cpp, graph/passes/recompute_checkpoints.cpp
#include "lockstep/graph/passes/recompute_checkpoints.h"

#include <set>

#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/passes/optimize.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/train/gradients.h"
#include "lockstep/graph/transform/pass_registry.h"
#include "support/gradient_check.h"
#include "support/pass_test.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

constexpr const char* kPass = "recompute-checkpoints";
using testing::random_tensor;

PassOutcome run_pass(Graph& graph) {
  PassContext context;
  return PassRegistry::global().make(kPass)->run(graph, context);
}

// Layers y = relu(y W) whose inputs gradients need; every `every`-th output is a checkpoint (0: none).
Graph deep_step(int layers, int every, std::int64_t width = 64) {
  GraphBuilder b;
  Value y = b.placeholder("x", DType::kF64, {width, width});
  const Value w = b.placeholder("w", DType::kF64, {width, width});
  for (int i = 0; i < layers; ++i) {
    y = relu(matmul(y, w));
    if (every > 0 && (i + 1) % every == 0) y = checkpoint(y);
  }
  const Value loss = sum(y);
  b.result(loss);
  b.result(gradients(loss, {w})[0]);
  return b.finish();
}

std::vector<Tensor> feeds() { return {random_tensor({64, 64}, 1), random_tensor({64, 64}, 2, -0.2, 0.2)}; }

std::size_t copies(const Graph& graph) {
  std::size_t count = 0;
  for (const Node& node : graph.nodes()) {
    if (graph.text(node.provenance().made_by) == kPass) ++count;
  }
  return count;
}

TEST(RecomputeCheckpoints, ComputesWhatLeadsToThemAgain) {
  Graph graph = deep_step(9, 3);
  const std::vector<Tensor> expected = Interpreter(graph).run(feeds());
  ASSERT_EQ(run_pass(graph), PassOutcome::kChanged);
  EXPECT_GT(copies(graph), 0U);
  const std::vector<Tensor> got = Interpreter(graph).run(feeds());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].bit_equal(expected[i]));
  for (const Node& node : graph.nodes()) {
    if (graph.text(node.provenance().made_by) != kPass) continue;
    EXPECT_EQ(graph.text(node.provenance().why), "computed again for gradients");
  }
}

TEST(RecomputeCheckpoints, LeavesOtherGraphsAlone) {
  Graph graph = deep_step(4, 0);
  EXPECT_EQ(run_pass(graph), PassOutcome::kUnchanged);
}

TEST(RecomputeCheckpoints, WhatLiesBehindTheLastOneStays) {
  GraphBuilder b;
  const Value x = checkpoint(b.placeholder("x", DType::kF64, {4}));
  const Value y = x * x;
  const Value loss = sum(y * y);
  b.result(gradients(loss, {x})[0]);
  Graph graph = b.finish();
  EXPECT_EQ(run_pass(graph), PassOutcome::kUnchanged);
}

TEST(RecomputeCheckpoints, RandomDrawsAreTheSameAgain) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {100});
  const Value y = checkpoint(dropout(x * x, 0.5) * x);
  const Value loss = sum(y * y);
  b.result(gradients(loss, {x})[0]);
  Graph graph = b.finish();
  const Tensor feed = random_tensor({100}, 3);
  const Tensor expected = Interpreter(graph, {.seed = 5}).run({feed})[0];
  ASSERT_EQ(run_pass(graph), PassOutcome::kChanged);
  EXPECT_TRUE(Interpreter(graph, {.seed = 5}).run({feed})[0].bit_equal(expected));
}

// The gradient of a weight is nobody's input on the way back: copies wait for it all the same, so that what
// it reads can go.
TEST(RecomputeCheckpoints, CopiesWaitForAllWhoReadTheSegmentBehind) {
  GraphBuilder b;
  Value y = b.placeholder("x", DType::kF64, {8, 8});
  std::vector<Value> weights;
  for (int i = 0; i < 6; ++i) {
    weights.push_back(b.placeholder("w" + std::to_string(i), DType::kF64, {8, 8}));
    y = tanh(matmul(y, weights.back()));
    if (i % 2 == 1) y = checkpoint(y);
  }
  for (const Gradient& gradient : gradients(sum(y), weights)) b.result(gradient);
  Graph graph = b.finish();
  ASSERT_EQ(run_pass(graph), PassOutcome::kChanged);
  // What each node waits for, directly or not.
  std::vector<std::set<std::size_t>> after(graph.id_bound());
  const auto waits_for = [&](std::set<std::size_t>& set, NodeId before) {
    set.insert(before.index());
    set.insert(after[before.index()].begin(), after[before.index()].end());
  };
  for (const NodeId id : graph.topological_order()) {
    const Node& node = graph.node(id);
    for (const ValueId input : node.inputs()) waits_for(after[id.index()], input.node);
    for (const NodeId before : node.controls()) waits_for(after[id.index()], before);
  }
  const auto waits = [&](std::string_view copy, std::size_t weight) {
    return after[graph.find(copy).index()].contains(graph.results()[weight].node.index());
  };
  for (const std::size_t weight : {4U, 5U}) EXPECT_TRUE(waits("matmul_2/again", weight)) << weight;
  for (const std::size_t weight : {2U, 3U, 4U, 5U}) EXPECT_TRUE(waits("matmul/again", weight)) << weight;
  EXPECT_FALSE(waits("matmul_4/again", 5));  // which reads what it leads to
}

// The forward pass of 16 layers keeps 16 outputs for the way back; with a checkpoint every 4 layers it keeps
// 4, and 4 more while one segment is under way. With several threads more may be under way at once.
TEST(RecomputeCheckpoints, SavesMemory) {
  const auto planned = [](const Graph& graph, std::size_t workers) {
    const Program program = compile(optimize(graph), Runtime({.threads = workers}), testing::with_lanes());
    const std::vector<Tensor> got = program.run(feeds());
    const std::vector<Tensor> expected = Interpreter(graph).run(feeds());
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].bit_equal(expected[i]));
    const PlanSummary plan = program.plan(feeds());
    EXPECT_EQ(plan.lanes, workers);
    return plan.planned_bytes;
  };
  for (const std::size_t workers : {1U, 2U, 4U})
    EXPECT_LT(planned(deep_step(16, 4), workers), planned(deep_step(16, 0), workers) * 7 / 10) << workers;
}

}  // namespace
}  // namespace lockstep
