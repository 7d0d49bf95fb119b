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

// Powers of two leave bits as they are, and replicas agree on whether a step counts.
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
