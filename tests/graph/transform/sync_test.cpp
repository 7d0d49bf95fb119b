// Tests: graph/transform/replica_kind.cpp, graph/transform/sync.cpp
#include "lockstep/graph/transform/sync.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/check/verifier.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A graph in text, and the answers by the names of nodes.
class Answers {
 public:
  explicit Answers(std::string_view text) : graph_(parse(text, "model")), sync_((verify(graph_), graph_)) {}

  ReplicaKind of(std::string_view name, std::uint32_t output = 0) const {
    const auto [level, id] = find(name);
    return sync_.at(*level, {id, output});
  }
  std::string explain(std::string_view name, std::uint32_t output = 0) const {
    const auto [level, id] = find(name);
    return sync_.explain(*level, {id, output});
  }
  bool summed(std::string_view name) const {
    const auto [level, id] = find(name);
    return sync_.is_summed(*level, {id, 0});
  }

 private:
  std::pair<const Graph*, NodeId> find(std::string_view name) const {
    for (const SyncAnalysis::Level& level : sync_.levels()) {
      const NodeId id = level.graph->find(name);
      if (id.valid()) return {level.graph, id};
    }
    throw NotFound(str("no level has ", name));
  }

  Graph graph_;
  SyncAnalysis sync_;
};

// The nodes of a replicated region over a shared value %s and a per-replica one %x.
Answers region(const std::string& nodes, const std::string& variables = "", int replicas = 2) {
  std::string text = variables + "\n%s0 = placeholder() : f32[4]\n";
  std::string arguments = "%s0";
  for (int r = 0; r < replicas; ++r) {
    text += str("%x", r, " = placeholder() : f32[4]\n");
    arguments += str(", %x", r);
  }
  text += str("replicated[replicas=", replicas, ", shared=1](", arguments, ") {\nregion {\n");
  text += "%s = placeholder() : f32[4]\n%x = placeholder() : f32[4]\n" + nodes + "\n}\n}\n";
  const std::size_t at = text.find("replicated[");
  return Answers(text.insert(at, "%step = "));
}

TEST(SyncAnalysis, FollowsInputs) {
  const Answers a = region(R"(
      %a = square(%s) : f32[4]
      %b = add(%a, %x) : f32[4]
      %c = neg(%b) : f32[4]
      %one = constant[value=f32[]{1.0}]() : f32[]
    )");
  EXPECT_EQ(a.of("s"), ReplicaKind::kMirrored);
  EXPECT_EQ(a.of("x"), ReplicaKind::kPerReplica);
  EXPECT_EQ(a.of("a"), ReplicaKind::kMirrored);
  EXPECT_EQ(a.of("b"), ReplicaKind::kPerReplica);
  EXPECT_EQ(a.of("c"), ReplicaKind::kPerReplica);
  EXPECT_EQ(a.of("one"), ReplicaKind::kMirrored);
  EXPECT_EQ(a.explain("c"), "c (model:12) <- b (model:11) <- x (model:8, a per-replica input)");
  EXPECT_THAT(a.explain("a"), HasSubstr("nothing to explain"));
}

TEST(SyncAnalysis, CollectivesMakeEqual) {
  const Answers a = region(R"(
      %t = all_reduce[reduce="sum"](%x) : f32[4]
      %u = add(%t, %s) : f32[4]
      %v = add(%t, %x) : f32[4]
      %rows = shape_of(%x) : i64[1]
      %n = global_count[dtype=i64](%rows) : i64[]
      %m = global_sum(%x) : f32[]
    )");
  EXPECT_EQ(a.of("t"), ReplicaKind::kMirrored);
  EXPECT_EQ(a.of("u"), ReplicaKind::kMirrored);
  EXPECT_EQ(a.of("v"), ReplicaKind::kPerReplica);
  EXPECT_EQ(a.of("n"), ReplicaKind::kMirrored);
  EXPECT_EQ(a.of("m"), ReplicaKind::kPerReplica);
  EXPECT_TRUE(a.summed("u"));
  EXPECT_FALSE(a.summed("s"));
  EXPECT_FALSE(a.summed("n"));
}

// Shares stay shares until a collective takes them; those of the forward pass, and the way back through them,
// do not count.
TEST(SyncAnalysis, KnowsGradientsThatAreSummed) {
  const Answers a = region(R"(
      %forward = all_reduce[reduce="mean"](%x) : f32[4]
      %loss = square(%forward) : f32[4]
      %g = mul(%loss, %forward) : f32[4] gradient
      %back = all_reduce[reduce="mean"](%g) : f32[4] gradient
      %scaled = mul(%back, %forward) : f32[4]
      %total = all_reduce[reduce="sum"](%scaled) : f32[4]
      %clipped = mul(%total, %forward) : f32[4]
      %half = add(%total, %g) : f32[4]
      %kept = assign_add[variable=@kept](%total) : f32[4]
      %own = assign_add[variable=@own](%g) : f32[4]
      %yes = constant[value=bool[]{true}]() : bool[]
      %c = cond(%yes, %kept, %own) {
        region {
          %kept_in = placeholder() : f32[4]
          %own_in = placeholder() : f32[4]
          %own_total = all_reduce[reduce="sum"](%own_in) : f32[4]
        }
        region {
          %p = placeholder() : f32[4]
          %q = placeholder() : f32[4]
        }
      }
      %by_hand = mul(%forward, %s) : f32[4]
    )",
                           "var @kept : f32[4]\nvar @own : f32[4] [synchronization=on_read]");
  EXPECT_EQ(a.of("scaled"), ReplicaKind::kMirrored);
  for (const char* share : {"s", "x", "g", "back", "scaled", "half", "own", "own_in"})
    EXPECT_FALSE(a.summed(share)) << share;
  for (const char* whole : {"total", "clipped", "kept", "kept_in", "own_total", "by_hand"})
    EXPECT_TRUE(a.summed(whole)) << whole;
}

TEST(SyncAnalysis, WhatAnUpdateHasIsFinal) {
  const Answers a(R"(
      var @w : f32[4]
      %s = placeholder() : f32[4]
      %step = replicated[replicas=2, shared=1, update=true](%s) {
        region {
          %in = placeholder() : f32[4]
          %yes = constant[value=bool[]{true}]() : bool[]
          %c = cond(%yes, %in) {
            region {
              %inner = placeholder() : f32[4]
              %w = read[variable=@w]() : f32[4]
            }
            region {
              %other = placeholder() : f32[4]
            }
          }
        }
      })");
  for (const char* name : {"in", "inner", "w"}) EXPECT_TRUE(a.summed(name)) << name;
}

TEST(SyncAnalysis, KnowsTheSources) {
  const Answers a = region(R"(
      %r = replica_id() : i32[]
      %u = random_uniform[dtype=f32, high=1.0, key=3, low=0.0, shape=<4>]() : f32[4]
      %w = read[variable=@w]() : f32[4]
      %o = read[variable=@own]() : f32[4]
      %plus = assign_add[variable=@own](%s) : f32[4] after(%o)
      %set = assign[variable=@own](%s) : f32[4] after(%plus)
    )",
                           "var @w : f32[4]\nvar @own : f32[4] [synchronization=on_read]");
  EXPECT_EQ(a.of("w"), ReplicaKind::kMirrored);
  EXPECT_EQ(a.of("set"), ReplicaKind::kMirrored);  // what each replica has just written
  EXPECT_THAT(a.explain("r"), HasSubstr("the number of the replica"));
  EXPECT_THAT(a.explain("u"), HasSubstr("random numbers"));
  EXPECT_THAT(a.explain("o"), HasSubstr("variable 'own' is synchronized on read"));
  EXPECT_THAT(a.explain("plus"), HasSubstr("variable 'own' is synchronized on read"));
}

TEST(SyncAnalysis, LambdasAreNotTrusted) {
  GraphBuilder b;
  const Value s = b.placeholder("s", DType::kF32, {2});
  const Value shared[] = {s};
  replicated(b, 2, shared, {}, [](std::span<const Value> in) {
    const TensorSpec spec = in[0].spec();
    return in[0].builder().call("mystery", {in.data(), 1}, {&spec, 1}, [](KernelContext&) {},
                                {.effects = Effect::kPure});
  });
  const Graph graph = b.finish();
  const SyncAnalysis sync(graph);
  const Graph& region = *sync.levels().at(0).graph;
  EXPECT_EQ(sync.at(region, region.results()[0]), ReplicaKind::kPerReplica);
}

TEST(SyncAnalysis, OneReplicaAgreesWithItself) {
  const Answers a = region(
      "%u = random_uniform[dtype=f32, high=1.0, key=3, low=0.0, shape=<4>]() : f32[4]\n%y = add(%u, %x) : "
      "f32[4]",
      "", 1);
  EXPECT_EQ(a.of("x"), ReplicaKind::kMirrored);
  EXPECT_EQ(a.of("y"), ReplicaKind::kMirrored);
}

TEST(SyncAnalysis, UpdatesOfMirroredVariablesGiveWhatAllReplicasWillHave) {
  const Answers a = region(R"(
      %lr = constant[value=f32[]{0.5}]() : f32[]
      %own_lr = sum[axes=[0], keepdims=false](%x) : f32[]
      %u = sgd[variable=@w](%x, %lr) : f32[4]
      %v = sgd[variable=@v](%x, %own_lr) : f32[4]
    )",
                           "var @w : f32[4]\nvar @v : f32[4]");
  EXPECT_EQ(a.of("u"), ReplicaKind::kMirrored);
  EXPECT_EQ(a.of("v"), ReplicaKind::kPerReplica);
}

TEST(SyncAnalysis, FollowsBothBranches) {
  const char* nodes = R"(
      %zero = constant[value=f32[]{0.0}]() : f32[]
      %of_s = sum[axes=[0], keepdims=false](%s) : f32[]
      %of_x = sum[axes=[0], keepdims=false](%x) : f32[]
      %same = greater(%of_s, %zero) : bool[]
      %own = greater(%of_x, %zero) : bool[]
      %a = cond(%same, %s, %x) : f32[4], f32[4] {
        region {
          %p = placeholder() : f32[4]
          %q = placeholder() : f32[4]
          return %p, %q
        }
        region {
          %p2 = placeholder() : f32[4]
          %q2 = placeholder() : f32[4]
          %n = neg(%p2) : f32[4]
          return %n, %p2
        }
      }
      %b = cond(%own, %s) : f32[4] {
        region {
          %p3 = placeholder() : f32[4]
          return %p3
        }
        region {
          %p4 = placeholder() : f32[4]
          return %p4
        }
      }
    )";
  const Answers a = region(nodes);
  EXPECT_EQ(a.of("a"), ReplicaKind::kMirrored);
  EXPECT_EQ(a.of("a", 1), ReplicaKind::kPerReplica);
  EXPECT_EQ(a.of("n"), ReplicaKind::kMirrored);
  EXPECT_EQ(a.of("q"), ReplicaKind::kPerReplica);
  EXPECT_EQ(a.of("b"), ReplicaKind::kPerReplica);
  EXPECT_EQ(a.of("p3"), ReplicaKind::kMirrored);
  EXPECT_THAT(a.explain("a", 1), HasSubstr("<- q (model:18) <- x (model:8, a per-replica input)"));
  EXPECT_THAT(a.explain("b"), HasSubstr("<- own (model:14) <- of_x (model:12) <- x"));
}

// c is per replica from the start, b after one trip, a after two.
TEST(SyncAnalysis, LoopsReachTheirFixpoint) {
  const auto loop = [](const std::string& third) {
    return R"(
      %i = constant[value=i64[]{0}]() : i64[]
      %l = while_loop[carried=5](%i, %s, %s, )" +
           third + R"(, %s) : i64[], f32[4], f32[4], f32[4], f32[4] {
        region {
          %ci = placeholder() : i64[]
          %ca = placeholder() : f32[4]
          %cb = placeholder() : f32[4]
          %cc = placeholder() : f32[4]
          %cd = placeholder() : f32[4]
          %three = constant[value=i64[]{3}]() : i64[]
          %more = less(%ci, %three) : bool[]
          return %more
        }
        region {
          %bi = placeholder() : i64[]
          %ba = placeholder() : f32[4]
          %bb = placeholder() : f32[4]
          %bc = placeholder() : f32[4]
          %bd = placeholder() : f32[4]
          %one = constant[value=i64[]{1}]() : i64[]
          %next = add(%bi, %one) : i64[]
          return %next, %bb, %bc, %bc, %bd
        }
      }
    )";
  };
  const Answers a = region(loop("%x"));
  EXPECT_EQ(a.of("l", 0), ReplicaKind::kMirrored);
  EXPECT_EQ(a.of("l", 1), ReplicaKind::kPerReplica);
  EXPECT_EQ(a.of("l", 2), ReplicaKind::kPerReplica);
  EXPECT_EQ(a.of("l", 3), ReplicaKind::kPerReplica);
  EXPECT_EQ(a.of("l", 4), ReplicaKind::kMirrored);
  EXPECT_EQ(a.of("ba"), ReplicaKind::kPerReplica);
  EXPECT_THAT(a.explain("l", 1), HasSubstr("x (model:8, a per-replica input)"));
  const Answers same = region(loop("%s"));
  for (std::uint32_t i = 0; i < 5; ++i) EXPECT_EQ(same.of("l", i), ReplicaKind::kMirrored) << i;
}

TEST(SyncAnalysis, ALoopWithItsOwnNumberOfTripsGivesNothingEqual) {
  const Answers a = region(R"(
      %l = while_loop[carried=1](%s, %x) : f32[4] {
        region {
          %ca = placeholder() : f32[4]
          %cx = placeholder() : f32[4]
          %sum_a = sum[axes=[0], keepdims=false](%ca) : f32[]
          %sum_x = sum[axes=[0], keepdims=false](%cx) : f32[]
          %more = less(%sum_a, %sum_x) : bool[]
          return %more
        }
        region {
          %ba = placeholder() : f32[4]
          %bx = placeholder() : f32[4]
          %twice = add(%ba, %ba) : f32[4]
          return %twice
        }
      }
    )");
  EXPECT_EQ(a.of("l"), ReplicaKind::kPerReplica);
  EXPECT_EQ(a.of("twice"), ReplicaKind::kMirrored);  // in any one trip
  EXPECT_THAT(a.explain("l"), HasSubstr("<- more"));
}

TEST(SyncAnalysis, FollowsValuesFromOneReplicatedNodeToTheNext) {
  const Answers a(R"(
      %s = placeholder() : f32[4]
      %x0 = placeholder() : f32[4]
      %x1 = placeholder() : f32[4]
      %first = replicated[replicas=2, shared=1](%s, %x0, %x1) : f32[4], f32[4], f32[4], f32[4] {
        region {
          %fs = placeholder() : f32[4]
          %fx = placeholder() : f32[4]
          %ft = all_reduce[reduce="sum"](%fx) : f32[4]
          return %ft, %fx
        }
      }
      %second = replicated[replicas=2, shared=0](%first, %first:1, %first:2, %first:3, %s, %s, %first:1, %first) : f32[4], f32[4] {
        region {
          %equal = placeholder() : f32[4]
          %own = placeholder() : f32[4]
          %one = placeholder() : f32[4]
          %swapped = placeholder() : f32[4]
          return %own
        }
      }
      return %second
    )");
  EXPECT_EQ(a.of("equal"), ReplicaKind::kMirrored);
  EXPECT_EQ(a.of("own"), ReplicaKind::kPerReplica);
  EXPECT_EQ(a.of("one"), ReplicaKind::kMirrored);
  EXPECT_EQ(a.of("swapped"), ReplicaKind::kPerReplica);  // not looked into
  EXPECT_THAT(a.explain("own"), HasSubstr("own (model:16) <- fx (model:8, a per-replica input)"));
}

TEST(SyncAnalysis, MergeFunctionsGiveOneOrMany) {
  GraphBuilder b;
  const Value x0 = b.placeholder("x0", DType::kF32, {2}), x1 = b.placeholder("x1", DType::kF32, {2});
  const std::vector<Value> own[] = {{x0, x1}};
  replicated(b, 2, {}, own, [&](std::span<const Value> in) -> std::vector<Value> {
    return merge_call(in[0].builder(), 2, in, [](std::span<const std::vector<Value>> args) {
      const Value sum = args[0][0] + args[0][1];
      return std::vector<MergedResult>{{sum}, {args[0][1], args[0][0]}, {sum, sum}};
    });
  });
  const Graph graph = b.finish();
  const SyncAnalysis sync(graph);
  const Graph& region = *sync.levels().at(0).graph;
  EXPECT_EQ(sync.at(region, region.results()[0]), ReplicaKind::kMirrored);
  EXPECT_EQ(sync.at(region, region.results()[1]), ReplicaKind::kPerReplica);
  EXPECT_EQ(sync.at(region, region.results()[2]), ReplicaKind::kMirrored);
  EXPECT_TRUE(sync.is_summed(region, region.results()[0]));
  EXPECT_THAT(sync.explain(region, region.results()[1]), HasSubstr("merge function"));
}

TEST(SyncAnalysis, LongChainsShowTheirEnds) {
  std::string nodes = "%a0 = neg(%x) : f32[4]\n";
  for (int i = 1; i < 40; ++i) nodes += str("%a", i, " = neg(%a", i - 1, ") : f32[4]\n");
  const std::string text = region(nodes).explain("a39");
  EXPECT_THAT(text, HasSubstr("a39"));
  EXPECT_THAT(text, HasSubstr("<- (29 more) <-"));
  EXPECT_THAT(text, HasSubstr("a0"));
  EXPECT_THAT(text, Not(HasSubstr("a20")));
}

}  // namespace
}  // namespace lockstep
