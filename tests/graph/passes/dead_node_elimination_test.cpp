// Tests: graph/passes/dead_node_elimination.cpp
#include "lockstep/graph/passes/dead_node_elimination.h"

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "support/pass_test.h"

namespace lockstep {
namespace {

using DeadNodeElimination = testing::PassTest;
constexpr const char* kPass = "dead-node-elimination";

TEST_F(DeadNodeElimination, ErasesAChainNobodyReads) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[4]
      %a = relu(%x) : f32[4]     // unread
      %b = add(%a, %x) : f32[4]  // unread
      return %x
    )",
                 R"(
      %x = placeholder() : f32[4]
      return %x
    )");
}

TEST_F(DeadNodeElimination, KeepsAChainThatIsRead) {
  expect_unchanged(kPass, R"(
      %x = placeholder() : f32[4]
      %a = relu(%x) : f32[4]
      %b = add(%a, %x) : f32[4]
      return %b
    )");
}

TEST_F(DeadNodeElimination, KeepsParameters) {
  expect_unchanged(kPass, R"(
      %x = placeholder() : f32[4]
      %unread = placeholder() : i32[]
      return %x
    )");
}

TEST_F(DeadNodeElimination, KeepsWhatWritesAVariable) {
  expect_unchanged(kPass, R"(
      var @w : f32[4]
      %x = placeholder() : f32[4]
      %a = relu(%x) : f32[4]
      %u = assign_add[variable=@w](%a) : f32[4]
    )");
}

TEST_F(DeadNodeElimination, ErasesAReadOrADrawThatNobodyReads) {
  expect_rewrite(kPass, R"(
      var @w : f32[4]
      %x = placeholder() : f32[4]
      %r = read[variable=@w]() : f32[4]
      %u = random_uniform[dtype=f32, high=1.0, key=1, low=0.0, shape=<4>]() : f32[4]
      return %x
    )",
                 R"(
      var @w : f32[4]
      %x = placeholder() : f32[4]
      return %x
    )");
}

TEST_F(DeadNodeElimination, AWriteThatRanAfterAnErasedReadRunsAfterWhatTheReadRanAfter) {
  expect_rewrite(kPass, R"(
      var @w : f32[4]
      %x = placeholder() : f32[4]
      %first = assign[variable=@w](%x) : f32[4]
      %r = read[variable=@w]() : f32[4] after(%first)
      %y = relu(%x) : f32[4]
      %second = assign_add[variable=@w](%y) : f32[4] after(%r)
    )",
                 R"(
      var @w : f32[4]
      %x = placeholder() : f32[4]
      %first = assign[variable=@w](%x) : f32[4]
      %y = relu(%x) : f32[4]
      %second = assign_add[variable=@w](%y) : f32[4] after(%first)
    )");
}

TEST_F(DeadNodeElimination, OrderIsKeptThroughAChainOfErasedNodes) {
  expect_rewrite(kPass, R"(
      var @w : f32[4]
      var @v : f32[4]
      %x = placeholder() : f32[4]
      %first = assign[variable=@w](%x) : f32[4]
      %a = relu(%first) : f32[4]
      %b = relu(%a) : f32[4]
      %second = assign[variable=@v](%x) : f32[4] after(%b)
    )",
                 R"(
      var @w : f32[4]
      var @v : f32[4]
      %x = placeholder() : f32[4]
      %first = assign[variable=@w](%x) : f32[4]
      %second = assign[variable=@v](%x) : f32[4] after(%first)
    )");
}

TEST_F(DeadNodeElimination, CleansRegionsButKeepsTheirParameters) {
  expect_rewrite(kPass, R"(
      %p = placeholder() : bool[]
      %x = placeholder() : f32[4]
      %c = cond(%p, %x) : f32[4] {
        region {
          %a = placeholder() : f32[4]
          %unread = relu(%a) : f32[4]
          return %a
        }
        region {
          %a = placeholder() : f32[4]
          %b = relu(%a) : f32[4]
          return %b
        }
      }
      return %c
    )",
                 R"(
      %p = placeholder() : bool[]
      %x = placeholder() : f32[4]
      %c = cond(%p, %x) : f32[4] {
        region {
          %a = placeholder() : f32[4]
          return %a
        }
        region {
          %a = placeholder() : f32[4]
          %b = relu(%a) : f32[4]
          return %b
        }
      }
      return %c
    )");
}

TEST_F(DeadNodeElimination, ErasesANodeWhoseRegionsHaveNoEffect) {
  expect_rewrite(kPass, R"(
      %p = placeholder() : bool[]
      %c = cond(%p) : f32[] {
        region {
          %a = constant[value=f32[]{1.0}]() : f32[]
          return %a
        }
        region {
          %a = constant[value=f32[]{2.0}]() : f32[]
          return %a
        }
      }
      return %p
    )",
                 R"(
      %p = placeholder() : bool[]
      return %p
    )");
}

TEST_F(DeadNodeElimination, KeepsANodeWhoseRegionWrites) {
  expect_unchanged(kPass, R"(
      var @w : f32[]
      %p = placeholder() : bool[]
      %c = cond(%p) : f32[] {
        region {
          %a = constant[value=f32[]{1.0}]() : f32[]
          %u = assign_add[variable=@w](%a) : f32[]
          return %u
        }
        region {
          %a = constant[value=f32[]{2.0}]() : f32[]
          return %a
        }
      }
      return %p
    )");
}

TEST_F(DeadNodeElimination, LambdasStayUnlessTheySayThatTheyArePure) {
  GraphBuilder b;
  b.call("host", [] {});
  b.call("pure", [] {}, {.effects = Effect::kPure});
  b.call("opaque", [] {}, {.effects = Effect::kOpaque});
  Graph graph = b.finish();
  PassPipeline passes = registry().parse_pipeline(kPass);
  EXPECT_EQ(passes.run(graph).outcome, PassOutcome::kChanged);
  EXPECT_EQ(graph.size(), 2U);
  EXPECT_FALSE(graph.find("pure").valid());
}

TEST_F(DeadNodeElimination, OneNodeAfterManyErasedOnesIsRewiredOnce) {
  GraphBuilder b;
  const VariableRef w = b.variable("w", Tensor::zeros({1}));
  const Value x = b.placeholder("x", DType::kF32, {1});
  for (int i = 0; i < 20'000; ++i) b.read(w);
  b.assign(w, x);  // runs after every read
  Graph graph = b.finish();
  PassPipeline passes = registry().parse_pipeline(kPass);
  passes.run(graph);  // quadratic work here would take minutes
  EXPECT_EQ(graph.size(), 2U);
}

}  // namespace
}  // namespace lockstep
