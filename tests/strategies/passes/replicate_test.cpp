// Tests: strategies/passes/register.cpp, strategies/passes/replica_clones.cpp,
//        strategies/passes/replica_joins.cpp, strategies/passes/replicate.cpp,
//        strategies/passes/replicator.cpp, graph/ops/collectives.cpp
#include "lockstep/strategies/passes/replicate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/train/optimizer.h"
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
  expect_rewrite("enter-replicas(replicas=2,shared=[s]),replicate", R"(
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

// --- branches and loops

// A branch that concerns one replica stays that replica's, whatever it reads: replica ids, its copy of a
// variable. So does one that writes a variable which each replica has for itself.
TEST_F(Replicate, BranchesOfOneReplicaAreCloned) {
  expect_rewrite("replicate", R"(
      var @w : f32[]
      var @own : f32[] [synchronization=on_read]
      %p0 = placeholder() : bool[]
      %p1 = placeholder() : bool[]
      %y = replicated[replicas=2, shared=0](%p0, %p1) : f32[], f32[] {
        region {
          %p = placeholder() : bool[]
          %c = cond(%p) : f32[] {
            region {
              %w = read[variable=@w]() : f32[]
              %o = assign_add[variable=@own](%w) : f32[]
              return %o
            }
            region {
              %r = replica_id() : i32[]
              %f = cast[dtype=f32](%r) : f32[]
              return %f
            }
          }
          return %c
        }
      }
      return %y, %y:1
    )",
                 R"(
      var @w : f32[]
      var @own : f32[] [synchronization=on_read]
      var @"w/replica_1" : f32[] [copy_of=@w, replica=1]
      var @"own/replica_1" : f32[] [synchronization=on_read, copy_of=@own, replica=1]
      %p0 = placeholder() : bool[]
      %p1 = placeholder() : bool[]
      %c = cond(%p0) : f32[] replica 0 {
        region {
          %w = read[variable=@w]() : f32[] replica 0
          %o = assign_add[variable=@own](%w) : f32[] replica 0
          return %o
        }
        region {
          %r = constant[value=i32[]{0}]() : i32[] replica 0
          %f = cast[dtype=f32](%r) : f32[] replica 0
          return %f
        }
      }
      %"replica_1/c" = cond(%p1) : f32[] replica 1 {
        region {
          %w = read[variable=@"w/replica_1"]() : f32[] replica 1
          %o = assign_add[variable=@"own/replica_1"](%w) : f32[] replica 1
          return %o
        }
        region {
          %r = constant[value=i32[]{1}]() : i32[] replica 1
          %f = cast[dtype=f32](%r) : f32[] replica 1
          return %f
        }
      }
      return %c, %"replica_1/c"
    )",
                 {.same_meaning = false});
}

// A branch that holds a collective or writes what replicas keep equal is entered by all of them together.
TEST_F(Replicate, BranchesThatJoinReplicasAreOneNode) {
  expect_rewrite("replicate", R"(
      var @w : f32[]
      %p = placeholder() : bool[]
      %x0 = placeholder() : f32[]
      %x1 = placeholder() : f32[]
      %y = replicated[replicas=2, shared=1](%p, %x0, %x1) : f32[], f32[] {
        region {
          %p = placeholder() : bool[]
          %x = placeholder() : f32[]
          %q = logical_not(%p) : bool[]
          %c = cond(%q, %x) : f32[] {
            region {
              %a = placeholder() : f32[]
              %t = all_reduce[reduce="sum"](%a) : f32[]
              return %t
            }
            region {
              %a = placeholder() : f32[]
              %r = replica_id() : i32[]
              %f = cast[dtype=f32](%r) : f32[]
              %n = add(%a, %f) : f32[]
              return %n
            }
          }
          return %c
        }
      }
      return %y, %y:1
    )",
                 R"(
      var @w : f32[]
      %p = placeholder() : bool[]
      %x0 = placeholder() : f32[]
      %x1 = placeholder() : f32[]
      %q = logical_not(%p) : bool[] replica 0
      %"replica_1/q" = logical_not(%p) : bool[] replica 1
      %"c/agree" = agree[because="all_reduce 't'"](%q, %"replica_1/q") : bool[]
      %c = cond(%"c/agree", %x0, %x1) : f32[], f32[] {
        region {
          %a = placeholder() : f32[] replica 0
          %"replica_1/a" = placeholder() : f32[] replica 1
          %t = all_reduce[reduce="sum", replicas=2](%a, %"replica_1/a") : f32[], f32[]
          return %t, %t:1
        }
        region {
          %a = placeholder() : f32[] replica 0
          %"replica_1/a" = placeholder() : f32[] replica 1
          %r = constant[value=i32[]{0}]() : i32[] replica 0
          %f = cast[dtype=f32](%r) : f32[] replica 0
          %n = add(%a, %f) : f32[] replica 0
          %"replica_1/r" = constant[value=i32[]{1}]() : i32[] replica 1
          %"replica_1/f" = cast[dtype=f32](%"replica_1/r") : f32[] replica 1
          %"replica_1/n" = add(%"replica_1/a", %"replica_1/f") : f32[] replica 1
          return %n, %"replica_1/n"
        }
      }
      return %c, %c:1
    )",
                 {.same_meaning = false});
}

// Of a loop the carried values of all replicas come first, then what it captures; the predicates agree
// inside.
TEST_F(Replicate, LoopsThatJoinReplicasAreOneNode) {
  expect_rewrite("replicate", R"(
      var @w : f32[]
      %s = placeholder() : f32[]
      %x0 = placeholder() : f32[]
      %x1 = placeholder() : f32[]
      %y = replicated[replicas=2, shared=1](%s, %x0, %x1) : f32[], f32[] {
        region {
          %s = placeholder() : f32[]
          %x = placeholder() : f32[]
          %l = while_loop[carried=1](%s, %x) : f32[] {
            region {
              %c = placeholder() : f32[]
              %k = placeholder() : f32[]
              %ten = constant[value=f32[]{10.0}]() : f32[]
              %p = less(%c, %ten) : bool[]
              return %p
            }
            region {
              %c = placeholder() : f32[]
              %k = placeholder() : f32[]
              %u = assign_add[variable=@w](%c) : f32[]
              %d = add(%c, %k) : f32[]
              return %d
            }
          }
          return %l
        }
      }
      return %y, %y:1
    )",
                 R"(
      var @w : f32[]
      var @"w/replica_1" : f32[] [copy_of=@w, replica=1]
      %s = placeholder() : f32[]
      %x0 = placeholder() : f32[]
      %x1 = placeholder() : f32[]
      %l = while_loop[carried=2](%s, %s, %x0, %x1) : f32[], f32[] {
        region {
          %c = placeholder() : f32[] replica 0
          %"replica_1/c" = placeholder() : f32[] replica 1
          %k = placeholder() : f32[] replica 0
          %"replica_1/k" = placeholder() : f32[] replica 1
          %ten = constant[value=f32[]{10.0}]() : f32[] replica 0
          %p = less(%c, %ten) : bool[] replica 0
          %"replica_1/ten" = constant[value=f32[]{10.0}]() : f32[] replica 1
          %"replica_1/p" = less(%"replica_1/c", %"replica_1/ten") : bool[] replica 1
          %"l/agree" = agree[because="assign_add 'u'"](%p, %"replica_1/p") : bool[]
          return %"l/agree"
        }
        region {
          %c = placeholder() : f32[] replica 0
          %"replica_1/c" = placeholder() : f32[] replica 1
          %k = placeholder() : f32[] replica 0
          %"replica_1/k" = placeholder() : f32[] replica 1
          %u = assign_add[variable=@w](%c) : f32[] replica 0
          %d = add(%c, %k) : f32[] replica 0
          %"replica_1/u" = assign_add[variable=@"w/replica_1"](%"replica_1/c") : f32[] replica 1
          %"replica_1/d" = add(%"replica_1/c", %"replica_1/k") : f32[] replica 1
          return %d, %"replica_1/d"
        }
      }
      return %l, %l:1
    )",
                 {.same_meaning = false});
}

// --- what replicas make together

TEST_F(Replicate, CompletesGlobalCountsAndLeavesSharesAlone) {
  expect_rewrite("replicate", R"(
      %x0 = placeholder() : f32[3]
      %x1 = placeholder() : f32[1]
      %y = replicated[replicas=2, shared=0](%x0, %x1) : i64[], i64[], f32[], f32[], f32[], f32[] {
        region {
          %x = placeholder() : f32[?]
          %s = shape_of(%x) : i64[1]
          %n = global_count[dtype=i64](%s) : i64[]
          %m = global_mean(%x, %n) : f32[]
          %t = global_sum(%x) : f32[]
          return %n, %m, %t
        }
      }
      return %y, %y:1, %y:2, %y:3, %y:4, %y:5
    )",
                 R"(
      %x0 = placeholder() : f32[3]
      %x1 = placeholder() : f32[1]
      %s = shape_of(%x0) : i64[1] replica 0
      %t = global_sum(%x0) : f32[] replica 0
      %"replica_1/s" = shape_of(%x1) : i64[1] replica 1
      %"replica_1/t" = global_sum(%x1) : f32[] replica 1
      %n = global_count[dtype=i64](%s) : i64[] replica 0
      %"replica_1/n" = global_count[dtype=i64](%"replica_1/s") : i64[] replica 1
      %"n/all_reduce" = all_reduce[reduce="sum", replicas=2](%n, %"replica_1/n") : i64[], i64[]
      %m = global_mean(%x0, %"n/all_reduce") : f32[] replica 0
      %"replica_1/m" = global_mean(%x1, %"n/all_reduce":1) : f32[] replica 1
      return %"n/all_reduce", %"n/all_reduce":1, %m, %"replica_1/m", %t, %"replica_1/t"
    )",
                 {.same_meaning = false});
}

TEST_F(Replicate, AMergeFunctionStandsOnceBetweenReplicas) {
  expect_rewrite("replicate", R"(
      var @w : f32[]
      %x0 = placeholder() : f32[]
      %x1 = placeholder() : f32[]
      %y = replicated[replicas=2, shared=0](%x0, %x1) : f32[], f32[] {
        region {
          %x = placeholder() : f32[]
          %a = neg(%x) : f32[]
          %m = merge_call[replicas=2, single=[1, 0]](%a) : f32[], f32[] {
            region {
              %a = placeholder() : f32[]
              %b = placeholder() : f32[]
              %t = reduce_replicas[reduce="max", replicas=2](%a, %b) : f32[]
              return %t, %b, %a
            }
          }
          %z = add(%m, %m:1) : f32[]
          return %z
        }
      }
      return %y, %y:1
    )",
                 R"(
      var @w : f32[]
      %x0 = placeholder() : f32[]
      %x1 = placeholder() : f32[]
      %a = neg(%x0) : f32[] replica 0
      %"replica_1/a" = neg(%x1) : f32[] replica 1
      %"m/t" = reduce_replicas[reduce="max", replicas=2](%a, %"replica_1/a") : f32[]
      %z = add(%"m/t", %"replica_1/a") : f32[] replica 0
      %"replica_1/z" = add(%"m/t", %a) : f32[] replica 1
      return %z, %"replica_1/z"
    )",
                 {.same_meaning = false});
}

// A lambda's closure is copied: what it counts is its replica's. The kernel is told which one it is.
TEST_F(Replicate, LambdasAreCopiedWithWhatTheyCaptured) {
  const TensorSpec spec{DType::kF32, Shape{2}};
  for (const bool in_branch : {false, true}) {
    GraphBuilder b;
    const Value p = b.placeholder("p", DType::kBool, {});
    const Value shared[] = {p};
    const auto results = replicated(b, 3, shared, {}, [&](std::span<const Value> in) -> std::vector<Value> {
      const auto counting = [&] {
        return b.call("count", {}, {{spec}}, [calls = 0](KernelContext& c) mutable {
          c.output<float>(0)[0] = static_cast<float>(c.replica());
          c.output<float>(0)[1] = static_cast<float>(++calls);
        });
      };
      return in_branch ? cond(in[0], counting, counting) : counting();
    });
    for (const Value& value : results[0]) b.result(value);
    Graph graph = b.finish();
    PassRegistry::global().parse_pipeline("replicate").run(graph);
    const Program program = compile(graph, Runtime({.threads = 2}));
    Interpreter interpreter(graph);
    for (int step = 0; step < 2; ++step) {
      for (const bool compiled : {false, true}) {
        const std::vector<Tensor> fed = {Tensor::full(DType::kBool, {}, 1)};
        const std::vector<Tensor> out = compiled ? program.run(fed) : interpreter.run(fed);
        ASSERT_EQ(out.size(), 3U);
        for (std::size_t r = 0; r < 3; ++r) {
          EXPECT_EQ(out[r].data<float>()[0], static_cast<float>(r)) << (in_branch ? "in a branch" : "");
          EXPECT_EQ(out[r].data<float>()[1], out[0].data<float>()[1]) << "replica " << r;
        }
      }
    }
  }
}

TEST_F(Replicate, RefusesWhatHasNoMeaning) {
  const auto refusal = [](std::string_view text) -> std::string {
    Graph graph = parse(text);
    try {
      PassRegistry::global().parse_pipeline("replicate").run(graph);
    } catch (const Error& error) {
      return error.what();
    }
    return "it was replicated";
  };
  EXPECT_THAT(refusal(R"(
      %y = replicated[replicas=3, shared=0]() : f32[], f32[], f32[] {
        region {
          %k = constant[value=f32[]{1.0}]() : f32[]
          %m = merge_call[replicas=2, single=[1]](%k) : f32[] {
            region {
              %a = placeholder() : f32[]
              %b = placeholder() : f32[]
              return %a
            }
          }
          return %m
        }
      }
      return %y
    )"),
              HasSubstr("merge_call is for 2 replicas, and the region around it for 3"));
  EXPECT_THAT(refusal(R"(
      %y = replicated[replicas=2, shared=0]() : f32[], f32[] {
        region {
          %z = replicated[replicas=2, shared=0]() : f32[], f32[] {
            region {
              %k = constant[value=f32[]{1.0}]() : f32[]
              return %k
            }
          }
          return %z
        }
      }
      return %y
    )"),
              HasSubstr("a replicated region inside a replicated region has no meaning"));
  Graph graph = parse("%x = placeholder() : f32[2]\nreturn %x\n");
  EXPECT_THROW(PassRegistry::global().parse_pipeline("enter-replicas(replicas=2,shared=[y])").run(graph),
               PassError);
}

}  // namespace
}  // namespace lockstep
