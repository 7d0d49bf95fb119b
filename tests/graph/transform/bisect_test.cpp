// Tests: graph/transform/bisect.cpp, graph/transform/rewriter.cpp
#include "lockstep/graph/transform/bisect.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/passes/dead_node_elimination.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/graph/transform/rewriter.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

// Adds `delta` to element 1 of every constant: a pass that obeys every rule and is wrong.
class Nudge final : public Pass {
 public:
  explicit Nudge(float delta) : delta_(delta) {}
  std::string_view name() const override { return "nudge"; }

 private:
  PassOutcome run_on(Graph& graph, PassContext& /*context*/) override {
    Rewriter edit(graph, name());
    for (const Node& node : graph.nodes()) {
      if (const auto* value = node.find<Tensor>("value")) {
        Tensor changed = value->clone();
        changed.data<float>()[1] += delta_;
        edit.set_attribute(node.id(), "value", changed);
      }
    }
    return outcome_of(edit.changed());
  }
  float delta_;
};

Graph model() {
  return parse(R"(
      var @w : f32[2]
      %x = placeholder() : f32[2]
      %c = constant[value=f32[2]{1.0, 2.0}]() : f32[2]
      %dead = relu(%x) : f32[2]
      %y = mul(%x, %c) : f32[2]
      %u = assign_add[variable=@w](%y) : f32[2]
      return %x
    )");
}

const Interpreter::Feeds kFeeds = {{"x", Tensor::full(DType::kF32, {2}, 1)}};

PassPipeline pipeline(float delta) {
  PassPipeline passes;
  passes.add(make_dead_node_elimination())
      .add(std::make_unique<Nudge>(delta))
      .add(std::make_unique<Nudge>(delta));
  return passes;
}

TEST(Bisect, NamesTheFirstPassThatChangesBits) {
  PassPipeline passes = pipeline(0.5F);
  const Graph graph = model();
  const BisectReport report = bisect(graph, passes, {.feeds = kFeeds});
  ASSERT_TRUE(report.found);
  EXPECT_EQ(report.found->pass, "nudge");
  EXPECT_EQ(report.found->index, 1U);
  EXPECT_EQ(report.found->to_string(),
            "nudge: variable 'w' differs in element 1: 2 before, 2.5 after (step 0)");
  EXPECT_EQ(report.pipeline.passes.size(), 3U);
  EXPECT_EQ(graph.size(), 5U) << "the caller's graph stays";
}

TEST(Bisect, FindsNothingWhereMeaningIsKept) {
  PassPipeline passes;
  passes.add(make_dead_node_elimination());
  const BisectReport report = bisect(model(), passes, {.feeds = kFeeds, .steps = 3});
  EXPECT_FALSE(report.found);
  EXPECT_EQ(report.pipeline.outcome, PassOutcome::kChanged);
}

TEST(Bisect, SmallDifferencesMayBeTolerated) {
  PassPipeline passes = pipeline(1e-6F);
  EXPECT_TRUE(bisect(model(), passes, {.feeds = kFeeds}).found);
  EXPECT_FALSE(bisect(model(), passes, {.feeds = kFeeds, .tolerance = 1e-4}).found);
  EXPECT_THROW(bisect(model(), passes, {.feeds = kFeeds, .steps = 0}), InvalidArgument);
}

TEST(Bisect, APassAfterWhichTheGraphFailsIsFound) {
  class Breaks final : public Pass {
   public:
    std::string_view name() const override { return "breaks"; }

   private:
    PassOutcome run_on(Graph& graph, PassContext& /*context*/) override {
      Rewriter edit(graph, name());
      const NodeId x = graph.find("x");
      edit.insert({.op = "call",
                   .inputs = {{x, 0}},
                   .attributes = {{"effects", std::int64_t{16}}, {"function", Lambda{[](KernelContext&) {
                                                                    throw std::runtime_error("oh");
                                                                  }}}}});
      return PassOutcome::kChanged;
    }
  };
  PassPipeline passes;
  passes.add(std::make_unique<Breaks>());
  const BisectReport report = bisect(model(), passes, {.feeds = kFeeds});
  ASSERT_TRUE(report.found);
  EXPECT_THAT(report.found->to_string(), HasSubstr("breaks: the run differs: succeeds before, "));
  EXPECT_THAT(report.found->difference.after, HasSubstr("oh"));
}

TEST(FirstDifference, ComparesBitsUnlessToldOtherwise) {
  const auto f = [](float a) { return Tensor::from<float>({2}, {1, a}); };
  EXPECT_FALSE(first_difference(f(2), f(2)));
  EXPECT_EQ(first_difference(f(0.0F), f(-0.0F))->element, 1);
  EXPECT_FALSE(first_difference(f(0.0F), f(-0.0F), 1e-6));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(first_difference(f(nan), f(nan)));
  EXPECT_FALSE(first_difference(f(nan), f(-nan), 1e-6));
  EXPECT_TRUE(first_difference(f(nan), f(1), 1e-6));
  EXPECT_TRUE(first_difference(f(INFINITY), f(1), 1e-6));
  EXPECT_FALSE(first_difference(f(INFINITY), f(INFINITY), 1e-6));
  EXPECT_EQ(first_difference(f(1), Tensor::zeros({3}))->after, "f32[3]");
  EXPECT_EQ(first_difference(Tensor::scalar(true), Tensor::scalar(false))->before, "1");
}

}  // namespace
}  // namespace lockstep
