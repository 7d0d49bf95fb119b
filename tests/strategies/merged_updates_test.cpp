// Tests: strategies/mirrored.cpp, strategies/one_device.cpp, strategies/passes/enter_replicas.cpp,
//        strategies/proof/congruence.cpp
// Where the strategies merge updates, and what becomes of a step whose updates are merged already.
#include <algorithm>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "lockstep/graph/text/text.h"
#include "lockstep/graph/transform/pipeline.h"
#include "lockstep/strategies/strategy_registry.h"
#include "support/pass_test.h"

namespace lockstep {
namespace {

constexpr std::string_view kPlainStep = R"(
  var @w : f32[4, 2] = f32[4, 2]{*0.5}
  var @b : f32[2] = f32[2]{0.25, -1.0}
  %x = placeholder() : f32[4, 2]
  %lr = constant[value=f32[]{0.1}]() : f32[]
  %w = read[variable=@w]() : f32[4, 2]
  %b = read[variable=@b]() : f32[2]
  %y = mul(%x, %w) : f32[4, 2]
  %g = sum[axes=[0], keepdims=false](%y) : f32[2] gradient
  %h = mul(%x, %y) : f32[4, 2] gradient
  %u = sgd[variable=@w](%h, %lr) : f32[4, 2] after(%w)
  %v = sgd[variable=@b](%g, %lr) : f32[2] after(%b)
  return %b
)";

Graph after(std::string_view passes) {
  Graph graph = parse(kPlainStep);
  PassContext context;
  StrategyRegistry::global().parse_pipeline(passes).run(graph, context);
  return graph;
}

std::ptrdiff_t merged_in(const Graph& graph) {
  return std::ranges::count_if(graph.nodes(),
                               [](const Node& node) { return node.op().traits.merges_updates; });
}

TEST(MergedUpdatesOfStrategies, AreOneNodeForEachReplica) {
  EXPECT_EQ(merged_in(after("one-device")), 1);
  EXPECT_EQ(merged_in(after("mirrored(devices=[cpu:0,cpu:1])")), 1);  // both replicas share their variables
  EXPECT_EQ(merged_in(after("mirrored(devices=[cpu:0,cpu:1],share_mirrored=false)")), 2);
  EXPECT_EQ(merged_in(after("mirrored(devices=[cpu:0,cpu:1],optimize=false)")), 0);
  EXPECT_EQ(merged_in(after("central-storage(devices=[cpu:0,cpu:1])")), 1);
}

TEST(MergedUpdatesOfStrategies, AreSplitBeforeAStepIsDistributed) {
  for (const char* strategy : {"one-device", "mirrored(devices=[cpu:0,cpu:1,cpu:2],share_mirrored=false)"}) {
    const Graph plain = after(strategy), optimized = after(str("merge-updates,", strategy));
    EXPECT_EQ(merged_in(optimized), merged_in(plain));
    testing::expect_same_meaning(plain, optimized);
  }
}

TEST(MergedUpdatesOfStrategies, AreProvenLikeUpdatesByThemselves) {
  const std::string mirrored = "mirrored(devices=[cpu:0,cpu:1],share_mirrored=false)";
  EXPECT_EQ(merged_in(after(mirrored + ",prove-sync")), 2);
  // And what is proven equal is computed once.
  EXPECT_EQ(merged_in(after(mirrored + ",prove-sync,share-mirrored")), 1);
}

TEST(MergedUpdatesOfStrategies, AreNoticedIfTheyDrift) {
  try {
    Graph graph = parse(R"(
      var @w : f32[2]
      var @w/1 : f32[2] [copy_of=@w, replica=1]
      var @b : f32[2]
      var @b/1 : f32[2] [copy_of=@b, replica=1]
      %g = placeholder() : f32[2]
      %h = placeholder() : f32[2]
      %lr = placeholder() : f32[]
      %u = sgd[variable=@w](%g, %lr) : f32[2] replica 0
      %v = sgd[variable=@b](%g, %lr) : f32[2] replica 0
      %s = sgd[variable=@w/1](%g, %lr) : f32[2] replica 1
      %t = sgd[variable=@b/1](%h, %lr) : f32[2] replica 1
      return %lr
    )");
    PassContext context;
    StrategyRegistry::global().parse_pipeline("merge-updates,prove-sync").run(graph, context);
    ADD_FAILURE() << "it was proven:\n" << print(graph);
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'b'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace lockstep
