// Tests: graph/passes/common_subexpression_elimination.cpp
#include "lockstep/graph/passes/common_subexpression_elimination.h"

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "support/pass_test.h"

namespace lockstep {
namespace {

using CommonSubexpressionElimination = testing::PassTest;
constexpr const char* kPass = "common-subexpression-elimination";

TEST_F(CommonSubexpressionElimination, MergesEqualNodesAndThenTheirReaders) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[4]
      %a = relu(%x) : f32[4]
      %b = relu(%x) : f32[4]
      %c = add(%a, %x) : f32[4]
      %d = add(%b, %x) : f32[4]
      %e = mul(%c, %d) : f32[4]
      return %e, %d
    )",
                 R"(
      %x = placeholder() : f32[4]
      %a = relu(%x) : f32[4]
      %c = add(%a, %x) : f32[4]
      %e = mul(%c, %c) : f32[4]
      return %e, %c
    )");
}

TEST_F(CommonSubexpressionElimination, InputsOfACommutativeOpMayBeSwapped) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[4]
      %y = placeholder() : f32[4]
      %a = add(%x, %y) : f32[4]
      %b = add(%y, %x) : f32[4]
      return %a, %b
    )",
                 R"(
      %x = placeholder() : f32[4]
      %y = placeholder() : f32[4]
      %a = add(%x, %y) : f32[4]
      return %a, %a
    )");
}

TEST_F(CommonSubexpressionElimination, InputsOfOtherOpsMayNot) {
  expect_unchanged(kPass, R"(
      %x = placeholder() : f32[4]
      %y = placeholder() : f32[4]
      %a = sub(%x, %y) : f32[4]
      %b = sub(%y, %x) : f32[4]
      return %a, %b
    )");
}

// In the code of a replica a gradient has yet to be summed, and the equal value beside it has not.
TEST_F(CommonSubexpressionElimination, GradientsStayApartFromOtherValuesOfReplicas) {
  expect_unchanged(kPass, R"(
      %x = placeholder() : f32[4]
      %r = replicated[replicas=2, shared=1](%x) : f32[4], f32[4], f32[4], f32[4] {
        region {
          %p = placeholder() : f32[4]
          %a = relu(%p) : f32[4]
          %g = relu(%p) : f32[4] gradient
          return %a, %g
        }
      }
      return %r, %r:1, %r:2, %r:3
    )");
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[4]
      %a = relu(%x) : f32[4]
      %g = relu(%x) : f32[4] gradient
      return %a, %g
    )",
                 R"(
      %x = placeholder() : f32[4]
      %a = relu(%x) : f32[4]
      return %a, %a
    )");
}

TEST_F(CommonSubexpressionElimination, ParametersAreNeverMerged) {
  expect_unchanged(kPass, R"(
      %x = placeholder() : f32[4]
      %y = placeholder() : f32[4]
      %z = add(%x, %y) : f32[4]
      return %z
    )");
}

TEST_F(CommonSubexpressionElimination, EqualConstantsAreMerged) {
  expect_rewrite(kPass, R"(
      %a = constant[value=f32[2]{1.0, nan}]() : f32[2]
      %b = constant[value=f32[2]{1.0, nan}]() : f32[2]
      return %a, %b
    )",
                 R"(
      %a = constant[value=f32[2]{1.0, nan}]() : f32[2]
      return %a, %a
    )");
}

TEST_F(CommonSubexpressionElimination, AttributesAreComparedBitByBit) {
  expect_unchanged(kPass, R"(
      %a = constant[value=f32[]{0.0}]() : f32[]
      %b = constant[value=f32[]{-0.0}]() : f32[]
      %c = constant[value=f32[1]{0.0}]() : f32[1]
      %d = constant[value=i32[]{0}]() : i32[]
      return %a, %b, %c, %d
    )");
}

TEST_F(CommonSubexpressionElimination, NodesOnOtherDevicesStay) {
  expect_unchanged(kPass, R"(
      %x = placeholder() : f32[4]
      %a = relu(%x) : f32[4] on "cpu:0"
      %b = relu(%x) : f32[4] on "cpu:1"
      %c = relu(%x) : f32[4]
      return %a, %b, %c
    )");
}

TEST_F(CommonSubexpressionElimination, NodesThatRunAfterOthersStay) {
  expect_unchanged(kPass, R"(
      var @w : f32[4]
      %x = placeholder() : f32[4]
      %u = assign[variable=@w](%x) : f32[4]
      %a = relu(%x) : f32[4]
      %b = relu(%x) : f32[4] after(%u)
      return %a, %b
    )");
}

TEST_F(CommonSubexpressionElimination, NodesThatRunAfterTheSameAreMerged) {
  expect_rewrite(kPass, R"(
      var @w : f32[4]
      %x = placeholder() : f32[4]
      %u = assign[variable=@w](%x) : f32[4]
      %a = relu(%x) : f32[4] after(%u)
      %b = relu(%x) : f32[4] after(%u)
      return %a, %b
    )",
                 R"(
      var @w : f32[4]
      %x = placeholder() : f32[4]
      %u = assign[variable=@w](%x) : f32[4]
      %a = relu(%x) : f32[4] after(%u)
      return %a, %a
    )");
}

TEST_F(CommonSubexpressionElimination, DrawsWithEqualKeysAreEqual) {
  expect_rewrite(kPass, R"(
      %a = random_uniform[dtype=f32, high=1.0, key=1, low=0.0, shape=<4>]() : f32[4]
      %b = random_uniform[dtype=f32, high=1.0, key=1, low=0.0, shape=<4>]() : f32[4]
      %c = random_uniform[dtype=f32, high=1.0, key=2, low=0.0, shape=<4>]() : f32[4]
      return %a, %b, %c
    )",
                 R"(
      %a = random_uniform[dtype=f32, high=1.0, key=1, low=0.0, shape=<4>]() : f32[4]
      %c = random_uniform[dtype=f32, high=1.0, key=2, low=0.0, shape=<4>]() : f32[4]
      return %a, %a, %c
    )");
}

TEST_F(CommonSubexpressionElimination, DrawsForTwoReplicasAreNot) {
  Graph graph = parse(R"(
      %a = random_uniform[dtype=f32, high=1.0, key=1, low=0.0, shape=<4>]() : f32[4]
      %b = random_uniform[dtype=f32, high=1.0, key=1, low=0.0, shape=<4>]() : f32[4]
      return %a, %b
    )");
  Provenance provenance = graph.node(graph.find("b")).provenance();
  provenance.replica = 1;
  graph.set_provenance(graph.find("b"), provenance);
  EXPECT_EQ(registry().parse_pipeline(kPass).run(graph).outcome, PassOutcome::kUnchanged);
}

TEST_F(CommonSubexpressionElimination, ReadsAndWritesStay) {
  expect_unchanged(kPass, R"(
      var @w : f32[4]
      %x = placeholder() : f32[4]
      %a = read[variable=@w]() : f32[4]
      %u = assign_add[variable=@w](%x) : f32[4] after(%a)
      %b = read[variable=@w]() : f32[4] after(%u)
      %v = assign_add[variable=@w](%x) : f32[4] after(%b)
      return %a, %b
    )");
}

TEST_F(CommonSubexpressionElimination, LambdasAreEqualToNothing) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {1});
  const TensorSpec spec{DType::kF32, {1}};
  const auto zero = [](KernelContext& c) { c.output<float>(0)[0] = 0; };
  for (const char* name : {"a", "b"}) {
    b.result(b.call(name, {&x, 1}, {&spec, 1}, zero, {.effects = Effect::kPure})[0]);
  }
  Graph graph = b.finish();
  EXPECT_EQ(registry().parse_pipeline(kPass).run(graph).outcome, PassOutcome::kUnchanged);
}

TEST_F(CommonSubexpressionElimination, WhoRanAfterTheDuplicateRunsAfterTheOneThatStays) {
  expect_rewrite(kPass, R"(
      var @w : f32[4]
      %x = placeholder() : f32[4]
      %a = relu(%x) : f32[4]
      %b = relu(%x) : f32[4]
      %u = assign[variable=@w](%x) : f32[4] after(%b)
      return %a
    )",
                 R"(
      var @w : f32[4]
      %x = placeholder() : f32[4]
      %a = relu(%x) : f32[4]
      %u = assign[variable=@w](%x) : f32[4] after(%a)
      return %a
    )");
}

TEST_F(CommonSubexpressionElimination, EachRegionIsComparedWithItselfAlone) {
  expect_rewrite(kPass, R"(
      %p = placeholder() : bool[]
      %x = placeholder() : f32[4]
      %r = relu(%x) : f32[4]
      %c = cond(%p, %x) : f32[4] {
        region {
          %a = placeholder() : f32[4]
          %b = relu(%a) : f32[4]
          %c = relu(%a) : f32[4]
          %d = add(%b, %c) : f32[4]
          return %d
        }
        region {
          %a = placeholder() : f32[4]
          %b = relu(%a) : f32[4]
          return %b
        }
      }
      return %c, %r
    )",
                 R"(
      %p = placeholder() : bool[]
      %x = placeholder() : f32[4]
      %r = relu(%x) : f32[4]
      %c = cond(%p, %x) : f32[4] {
        region {
          %a = placeholder() : f32[4]
          %b = relu(%a) : f32[4]
          %d = add(%b, %b) : f32[4]
          return %d
        }
        region {
          %a = placeholder() : f32[4]
          %b = relu(%a) : f32[4]
          return %b
        }
      }
      return %c, %r
    )");
}

}  // namespace
}  // namespace lockstep
