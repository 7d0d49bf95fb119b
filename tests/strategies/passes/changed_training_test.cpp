// Tests: strategies/passes/insert_all_reduce.cpp, strategies/passes/register.cpp
// Passes of graph/passes that change training, under replication: replicas together are one device with the
// whole batch.
#include <algorithm>

#include <gtest/gtest.h>

#include "lockstep/strategies/passes/register.h"
#include "support/training.h"

namespace lockstep {
namespace {

class ChangedTraining : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { register_strategy_passes(); }
};

TEST_P(ChangedTraining, NormsAreThoseOfTheWholeBatch) {
  for (const char* clip : {"clip-by-global-norm(norm=0.01)", "clip-by-global-norm(norm=100.0)"}) {
    testing::expect_same_training(clip, str(clip, ",insert-all-reduce,bucket-all-reduce,replicate"),
                                  GetParam());
  }
}

TEST_P(ChangedTraining, StepsAddUpToOneWithTheJoinedBatch) {
  testing::expect_same_training(
      "", "accumulate-gradients(steps=2),insert-all-reduce,bucket-all-reduce,replicate", GetParam(), 2);
  testing::expect_same_training(
      "", "accumulate-gradients(steps=3),mirror-variables,insert-all-reduce,replicate", GetParam(), 3);
}

// Powers of two leave bits as they are.
TEST_P(ChangedTraining, ScalesGoOutOfGradientsAsTheyCame) {
  for (const char* scaled : {"mixed-precision(dtype=f16)", "mixed-precision(dtype=f16,growth_steps=1)",
                             "mixed-precision(dtype=f16,growth_steps=0)"}) {
    testing::expect_same_training("", str(scaled, ",insert-all-reduce,bucket-all-reduce,replicate"),
                                  GetParam());
    testing::expect_same_training("", str(scaled, ",mirror-variables,insert-all-reduce,replicate"),
                                  GetParam());
  }
  testing::expect_same_training(
      "",
      "mixed-precision(dtype=f16,growth_steps=0),accumulate-gradients(steps=2),insert-all-reduce,replicate",
      GetParam(), 2);
}

// The gradient of one replica overflows: the step counts for none, also for variables of which each has its own.
TEST(MixedTraining, ReplicasAgreeOnWhetherAStepCounts) {
  register_strategy_passes();
  GraphBuilder b;
  const std::vector<std::vector<Value>> own = {
      {b.placeholder("x0", DType::kF32, {1, 1}), b.placeholder("x1", DType::kF32, {1, 1})}};
  const VariableRef w = b.variable("w", Tensor::full(DType::kF32, {1, 1}, 1));
  VariableDecl decl{.name = "own", .spec = {DType::kF32, {1, 1}}, .initial = {}};
  decl.synchronization = Synchronization::kOnRead;
  decl.aggregation = Aggregation::kSum;
  const VariableRef mine = b.variable(std::move(decl));
  replicated(b, 2, {}, own, [&](std::span<const Value> in) -> std::vector<Value> {
    Sgd(0.25).minimize(sum(matmul(in[0], b.read(w))) + sum(matmul(in[0], b.read(mine))), {w, mine});
    return {};
  });
  Graph graph = b.finish();
  PassRegistry::global()
      .parse_pipeline("mixed-precision(dtype=f16),mirror-variables,insert-all-reduce,replicate,prove-sync")
      .run(graph);
  Interpreter interpreter(graph);
  const auto run = [&](double first, double second) {
    interpreter.run(Interpreter::Feeds{{"x0", Tensor::full(DType::kF32, {1, 1}, first)},
                                       {"x1", Tensor::full(DType::kF32, {1, 1}, second)}});
    std::vector<double> values;
    for (const char* name : {"w", "w/replica_1", "own", "own/replica_1"})
      values.push_back(interpreter.variables().at(name).item());
    return values;
  };
  EXPECT_EQ(run(1, 4), (std::vector<double>{1, 1, 0, 0})) << "4 * 32768 is infinite in f16";
  EXPECT_EQ(run(1, 1), (std::vector<double>{0.5, 0.5, -0.25, -0.25}));
  for (const auto& [name, value] : interpreter.variables()) {
    const bool is_scale = name.starts_with("loss_scale_") && name.find("good_steps") == std::string::npos;
    if (is_scale) {
      EXPECT_EQ(value.item(), 16384) << name;
    }
  }
}

// Of dense gradients: rows count by themselves, and what is gathered has each row once.
TEST_P(ChangedTraining, WhatIsGatheredIsClippedWhenItIsApplied) {
  testing::expect_same_training(
      "clip-by-global-norm(norm=0.01)",
      "accumulate-gradients(steps=2),clip-by-global-norm(norm=0.01),insert-all-reduce,replicate", GetParam(),
      2, false);
}

// Clipped by itself, each step is reduced before it is gathered: nothing may be summed again.
TEST_P(ChangedTraining, WhatIsReducedIsGatheredAsItIs) {
  testing::expect_same_training(
      "", "clip-by-global-norm(norm=1000.0),accumulate-gradients(steps=2),insert-all-reduce,replicate",
      GetParam(), 2);
}

// Reductions stand in the branch that every k-th step takes, and nowhere else.
TEST(AccumulatedTraining, ReplicasTalkOnceInSoManySteps) {
  register_strategy_passes();
  Graph graph = testing::replicated_step(2);
  PassRegistry::global().parse_pipeline("accumulate-gradients(steps=2),insert-all-reduce").run(graph);
  const auto collectives = [](const Graph& level) {
    return std::ranges::count_if(
        level.nodes(), [](const Node& node) { return node.op().traits.is(ReplicaRole::kCollective); });
  };
  for (const Node& step : graph.nodes()) {
    if (step.op().region_kind != RegionKind::kReplicated) continue;
    EXPECT_EQ(collectives(step.regions()[0]), 0);
    for (const Node& node : step.regions()[0].nodes()) {
      if (node.op().region_kind != RegionKind::kCond) continue;
      EXPECT_EQ(collectives(node.regions()[0]), 4);  // w, bias; the rows of the table and their numbers
      EXPECT_EQ(collectives(node.regions()[1]), 0);
      return;
    }
  }
  FAIL() << "there is no branch";
}

INSTANTIATE_TEST_SUITE_P(Replicas, ChangedTraining, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace lockstep
