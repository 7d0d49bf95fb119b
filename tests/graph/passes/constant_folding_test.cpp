// Tests: graph/passes/constant_folding.cpp
#include "lockstep/graph/passes/constant_folding.h"

#include <stdexcept>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "support/pass_test.h"

namespace lockstep {
namespace {

using ConstantFolding = testing::PassTest;
constexpr const char* kPass = "constant-folding";

TEST_F(ConstantFolding, ComputesWhatReadsConstantsOnly) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[2]
      %a = constant[value=f32[2]{1.0, 2.0}]() : f32[2]
      %b = constant[value=f32[]{3.0}]() : f32[]
      %s = add(%a, %b) : f32[2]
      %y = mul(%x, %s) : f32[2]
      return %y
    )",
                 R"(
      %x = placeholder() : f32[2]
      %a = constant[value=f32[2]{1.0, 2.0}]() : f32[2]
      %b = constant[value=f32[]{3.0}]() : f32[]
      %s = constant[value=f32[2]{4.0, 5.0}]() : f32[2]
      %y = mul(%x, %s) : f32[2]
      return %y
    )");
}

TEST_F(ConstantFolding, LeavesWhatReadsAParameter) {
  expect_unchanged(kPass, R"(
      %x = placeholder() : f32[2]
      %a = constant[value=f32[2]{1.0, 2.0}]() : f32[2]
      %s = add(%a, %x) : f32[2]
      return %s
    )");
}

TEST_F(ConstantFolding, WhatOnlyFoldedNodesReadIsGone) {
  expect_rewrite("constant-folding,dead-node-elimination", R"(
      %a = constant[value=f32[]{2.0}]() : f32[]
      %b = add(%a, %a) : f32[]
      %c = mul(%b, %b) : f32[]
      %d = sub(%c, %a) : f32[]
      return %d
    )",
                 R"(
      %d = constant[value=f32[]{14.0}]() : f32[]
      return %d
    )");
}

TEST_F(ConstantFolding, AFoldedNodeThatIsAlsoAResultStays) {
  expect_rewrite("constant-folding,dead-node-elimination", R"(
      %a = constant[value=f32[]{2.0}]() : f32[]
      %b = add(%a, %a) : f32[]
      %c = mul(%b, %b) : f32[]
      return %c, %b
    )",
                 R"(
      %b = constant[value=f32[]{4.0}]() : f32[]
      %c = constant[value=f32[]{16.0}]() : f32[]
      return %c, %b
    )");
}

TEST_F(ConstantFolding, LargeResultsAreLeftToTheRun) {
  constexpr const char* text = R"(
      %a = constant[value=f32[1024]{*1.0}]() : f32[1024]
      %b = relu(%a) : f32[1024]
      return %b
    )";
  expect_unchanged("constant-folding(max_bytes=4095)", text);
  expect_rewrite("constant-folding(max_bytes=4KiB)", text, R"(
      %a = constant[value=f32[1024]{*1.0}]() : f32[1024]
      %b = constant[value=f32[1024]{*1.0}]() : f32[1024]
      return %b
    )");
}

// What decides a shape and was not known while the graph was built stays (the smallest number stands for an unknown
// one): the graph states less than a constant says.
TEST_F(ConstantFolding, AShapeThatWasNotKnownStaysUnknown) {
  expect_unchanged("constant-folding", R"(
      %a = constant[value=i64[1]{-9223372036854775808}]() : i64[1]
      %b = constant[value=i64[1]{3}]() : i64[1]
      %c = maximum(%a, %b) : i64[1]
      %d = full[dtype=f32, value=1.0](%c) : f32[?]
      return %d
    )");
}

// Whoever compiles it does not run it.
TEST_F(ConstantFolding, ADeadNodeThatNoMemoryHoldsIsLeftAlone) {
  expect_unchanged("constant-folding", R"(
      %a = constant[value=f64[]{1.0}]() : f64[]
      %b = broadcast_to[shape=<2305843009213693952>](%a) : f64[2305843009213693952]
      return %a
    )");
}

TEST_F(ConstantFolding, FoldsAKernelThatRunsInShards) {
  GraphBuilder b;
  const Value ones = b.constant(Tensor::full(DType::kF64, {300'000}, 0.1));
  b.result(sum(ones));
  Graph graph = b.finish();
  const Graph before = graph;
  EXPECT_EQ(registry().parse_pipeline(kPass).run(graph).outcome, PassOutcome::kChanged);
  EXPECT_EQ(graph.node(graph.results()[0].node).op().name, "constant");
  testing::expect_same_meaning(before, graph);
}

TEST_F(ConstantFolding, RandomNumbersReadsAndReplicaIdsAreNotConstants) {
  expect_unchanged(kPass, R"(
      var @w : f32[]
      %a = random_uniform[dtype=f32, high=1.0, key=1, low=0.0, shape=<>]() : f32[]
      %b = add(%a, %a) : f32[]
      %c = read[variable=@w]() : f32[]
      %d = add(%c, %c) : f32[]
      %e = replica_id() : i32[]
      %f = add(%e, %e) : i32[]
      return %b, %d, %f
    )");
}

TEST_F(ConstantFolding, ANodeThatWaitsForAnotherStays) {
  expect_unchanged(kPass, R"(
      var @w : f32[]
      %a = constant[value=f32[]{1.0}]() : f32[]
      %u = assign[variable=@w](%a) : f32[]
      %b = add(%a, %a) : f32[] after(%u)
      return %b
    )");
}

TEST_F(ConstantFolding, AKernelThatThrowsIsLeftToReportAtRunTime) {
  GraphBuilder b;
  const Value a = b.constant(1.0F);
  const TensorSpec spec{DType::kF32, {}};
  b.result(b.call("refuses", {&a, 1}, {&spec, 1}, [](KernelContext&) { throw std::runtime_error("no"); },
                  {.effects = Effect::kPure})[0]);
  Graph graph = b.finish();
  EXPECT_EQ(registry().parse_pipeline(kPass).run(graph).outcome, PassOutcome::kUnchanged);
  EXPECT_THROW(Interpreter(graph).run(), Error);
}

TEST_F(ConstantFolding, EachOutputOfANodeBecomesAConstant) {
  static const bool registered = [] {
    OpDef def;
    def.name = "test_twins";
    def.inputs = Arity::exactly(1);
    def.infer = [](InferContext& c) {
      c.add_output(c.input(0));
      c.add_output(c.input(0));
    };
    def.kernels["cpu"] = [](const NodeView&, std::span<const TensorSpec>) -> KernelFn {
      return [](KernelContext& c) {
        c.output<float>(0)[0] = c.input<float>(0)[0] + 1;
        c.output<float>(1)[0] = c.input<float>(0)[0] - 1;
      };
    };
    OpRegistry::global().add(std::move(def));
    return true;
  }();
  ASSERT_TRUE(registered);
  expect_rewrite("constant-folding,dead-node-elimination", R"(
      %a = constant[value=f32[]{2.0}]() : f32[]
      %t = test_twins(%a) : f32[], f32[]
      %s = relu(%t) : f32[]
      return %t, %t:1, %s
    )",
                 R"(
      %s = constant[value=f32[]{3.0}]() : f32[]
      %t_1 = constant[value=f32[]{3.0}]() : f32[]
      %t_2 = constant[value=f32[]{1.0}]() : f32[]
      return %t_1, %t_2, %s
    )");
}

TEST_F(ConstantFolding, TheConstantStandsForItsNode) {
  Graph graph = parse(R"(
      %a = constant[value=f32[]{1.0}]() : f32[]
      %b = add(%a, %a) : f32[] on "cpu:1"
      return %b
    )",
                      "model.lks");
  const Provenance origin = graph.node(graph.find("b")).provenance();
  registry().parse_pipeline(kPass).run(graph);
  const Node& folded = graph.node(graph.find("b"));
  EXPECT_EQ(folded.op().name, "constant");
  EXPECT_EQ(folded.device(), "cpu:1");
  EXPECT_EQ(folded.provenance().origin, origin.origin);
  EXPECT_NE(folded.provenance().identity, origin.identity);
  EXPECT_EQ(graph.text(folded.provenance().made_by), "constant-folding");
  EXPECT_EQ(graph.text(folded.provenance().why), "its inputs are constants");
  EXPECT_EQ(folded.site().line, 3U);
}

TEST_F(ConstantFolding, WorksInsideRegions) {
  expect_rewrite("constant-folding,dead-node-elimination", R"(
      %x = placeholder() : f32[]
      %l = while_loop[carried=1](%x) : f32[] {
        region {
          %v = placeholder() : f32[]
          %n = constant[value=f32[]{5.0}]() : f32[]
          %m = add(%n, %n) : f32[]
          %t = less(%v, %m) : bool[]
          return %t
        }
        region {
          %v = placeholder() : f32[]
          %n = constant[value=f32[]{1.0}]() : f32[]
          %s = add(%v, %n) : f32[]
          return %s
        }
      }
      return %l
    )",
                 R"(
      %x = placeholder() : f32[]
      %l = while_loop[carried=1](%x) : f32[] {
        region {
          %v = placeholder() : f32[]
          %m = constant[value=f32[]{10.0}]() : f32[]
          %t = less(%v, %m) : bool[]
          return %t
        }
        region {
          %v = placeholder() : f32[]
          %n = constant[value=f32[]{1.0}]() : f32[]
          %s = add(%v, %n) : f32[]
          return %s
        }
      }
      return %l
    )");
}

TEST_F(ConstantFolding, PrintsItsOptions) {
  EXPECT_EQ(make_constant_folding({.max_bytes = 64})->to_string(), "constant-folding(max_bytes=64)");
  EXPECT_THROW(registry().make("constant-folding(max_bytes=-1)"), BadOptionValue);
}

}  // namespace
}  // namespace lockstep
