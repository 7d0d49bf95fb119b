#include "lockstep/strategies/passes/replicate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/builder.h"
#include "lockstep/graph/ops.h"
#include "lockstep/graph/optimizer.h"
#include "lockstep/strategies/passes/register.h"
#include "support/pass_test.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

class Replicate : public testing::PassTest {
 protected:
  void SetUp() override { register_strategy_passes(); }
};

TEST_F(Replicate, MakesTheNodesOnceForEachReplica) {
  expect_rewrite("replicate", R"(
      %x0 = placeholder() : f32[4]
      %x1 = placeholder() : f32[4]
      %s = placeholder() : f32[4]
      %y = replicated[replicas=2, shared=1](%s, %x0, %x1) : f32[4], f32[4] {
        region {
          %s = placeholder() : f32[4]
          %x = placeholder() : f32[4]
          %a = add(%x, %s) : f32[4]
          return %a
        }
      }
      return %y, %y:1
    )",
                 R"(
      %x0 = placeholder() : f32[4]
      %x1 = placeholder() : f32[4]
      %s = placeholder() : f32[4]
      %a = add(%x0, %s) : f32[4] replica 0
      %"replica_1/a" = add(%x1, %s) : f32[4] replica 1
      return %a, %"replica_1/a"
    )");
}

TEST_F(Replicate, TurnsReplicaIdsIntoConstants) {
  expect_rewrite("replicate", R"(
      %y = replicated[replicas=2, shared=0]() : i32[], i32[] {
        region {
          %r = replica_id() : i32[]
          return %r
        }
      }
      return %y, %y:1
    )",
                 R"(
      %r = constant[value=i32[]{0}]() : i32[] replica 0
      %"replica_1/r" = constant[value=i32[]{1}]() : i32[] replica 1
      return %r, %"replica_1/r"
    )");
}

TEST_F(Replicate, JoinsCollectives) {
  expect_rewrite("replicate", R"(
      %x0 = placeholder() : f32[4]
      %x1 = placeholder() : f32[4]
      %y = replicated[replicas=2, shared=0](%x0, %x1) : f32[4], f32[4] {
        region {
          %x = placeholder() : f32[4]
          %a = square(%x) : f32[4]
          %t = all_reduce[reduce="sum"](%a) : f32[4]
          %b = neg(%t) : f32[4]
          return %b
        }
      }
      return %y, %y:1
    )",
                 R"(
      %x0 = placeholder() : f32[4]
      %x1 = placeholder() : f32[4]
      %a = square(%x0) : f32[4] replica 0
      %"replica_1/a" = square(%x1) : f32[4] replica 1
      %t = all_reduce[reduce="sum", replicas=2](%a, %"replica_1/a") : f32[4], f32[4]
      %b = neg(%t) : f32[4] replica 0
      %"replica_1/b" = neg(%t:1) : f32[4] replica 1
      return %b, %"replica_1/b"
    )",
                 {.same_meaning = false});
}

TEST_F(Replicate, GivesEachReplicaItsCopyOfAVariable) {
  expect_rewrite("replicate", R"(
      var @w : f32[2]
      %x0 = placeholder() : f32[2]
      %x1 = placeholder() : f32[2]
      %y = replicated[replicas=2, shared=0](%x0, %x1) : f32[2], f32[2] {
        region {
          %x = placeholder() : f32[2]
          %w = read[variable=@w]() : f32[2]
          %a = mul(%x, %w) : f32[2]
          %u = assign[variable=@w](%a) : f32[2] after(%w)
          return %u
        }
      }
      return %y, %y:1
    )",
                 R"(
      var @w : f32[2]
      var @"w/replica_1" : f32[2] [copy_of=@w, replica=1]
      %x0 = placeholder() : f32[2]
      %x1 = placeholder() : f32[2]
      %w = read[variable=@w]() : f32[2] replica 0
      %a = mul(%x0, %w) : f32[2] replica 0
      %u = assign[variable=@w](%a) : f32[2] replica 0 after(%w)
      %"replica_1/w" = read[variable=@"w/replica_1"]() : f32[2] replica 1
      %"replica_1/a" = mul(%x1, %"replica_1/w") : f32[2] replica 1
      %"replica_1/u" = assign[variable=@"w/replica_1"](%"replica_1/a") : f32[2] replica 1 after(%"replica_1/w")
      return %u, %"replica_1/u"
    )",
                 {.same_meaning = false});
}

TEST_F(Replicate, ExpandsMergeCalls) {
  GraphBuilder b;
  const Value x0 = b.placeholder("x0", DType::kF32, {2}), x1 = b.placeholder("x1", DType::kF32, {2});
  const std::vector<Value> own[] = {{x0, x1}};
  const auto results = replicated(b, 2, {}, own, [&](std::span<const Value> in) -> std::vector<Value> {
    const std::vector<Value> merged =
        merge_call(in[0].builder(), 2, in, [](std::span<const std::vector<Value>> args) {
          return std::vector<MergedResult>{{args[0][0] - args[0][1]}, {args[0][1], args[0][0]}};
        });
    return {merged[0] * 2.F, merged[1]};
  });
  for (const auto& result : results) {
    for (const Value& value : result) b.result(value);
  }
  Graph graph = b.finish();
  PassRegistry::global().parse_pipeline("replicate").run(graph);
  Interpreter interpreter(graph);
  const std::vector<Tensor> out =
      interpreter.run({Tensor::from<float>({2}, {5.F, 1.F}), Tensor::from<float>({2}, {2.F, 7.F})});
  ASSERT_EQ(out.size(), 4U);
  EXPECT_TRUE(out[0].bit_equal(Tensor::from<float>({2}, {6.F, -12.F})));
  EXPECT_TRUE(out[1].bit_equal(Tensor::from<float>({2}, {6.F, -12.F})));
  EXPECT_TRUE(out[2].bit_equal(Tensor::from<float>({2}, {2.F, 7.F})));
  EXPECT_TRUE(out[3].bit_equal(Tensor::from<float>({2}, {5.F, 1.F})));
}

TEST_F(Replicate, TakesAPlainStep) {
  expect_rewrite("replicate(replicas=2,shared=[s])", R"(
      var @w : f32[2]
      %x = placeholder() : f32[2]
      %s = placeholder() : f32[2]
      %w = read[variable=@w]() : f32[2]
      %a = mul(%x, %w) : f32[2]
      %b = add(%a, %s) : f32[2]
      return %b
    )",
                 R"(
      var @w : f32[2]
      var @"w/replica_1" : f32[2] [copy_of=@w, replica=1]
      %s = placeholder() : f32[2]
      %x = placeholder() : f32[2]
      %"x/replica_1" = placeholder() : f32[2]
      %w = read[variable=@w]() : f32[2] replica 0
      %a = mul(%x, %w) : f32[2] replica 0
      %b = add(%a, %s) : f32[2] replica 0
      %"replica_1/w" = read[variable=@"w/replica_1"]() : f32[2] replica 1
      %"replica_1/a" = mul(%"x/replica_1", %"replica_1/w") : f32[2] replica 1
      %"replica_1/b" = add(%"replica_1/a", %s) : f32[2] replica 1
      return %b, %"replica_1/b"
    )",
                 {.idempotent = false, .same_meaning = false});
}

}  // namespace
}  // namespace lockstep
