// Tests: strategies/proof/attribute_numbers.cpp, strategies/proof/congruence.cpp,
//        strategies/proof/drift.cpp
#include "lockstep/strategies/proof/congruence.h"

#include <gtest/gtest.h>

#include "lockstep/graph/text/text.h"
#include "lockstep/strategies/passes/register.h"
#include "support/pass_test.h"

namespace lockstep {
namespace {

// Whether output 0 of two nodes is proven equal.
struct Proof {
  explicit Proof(std::string_view text) : graph(parse(text)), classes(graph) { verify(graph); }
  bool equal(std::string_view a, std::string_view b, std::uint32_t of_a = 0, std::uint32_t of_b = 0) const {
    return classes.top().of({graph.find(a), of_a}) == classes.top().of({graph.find(b), of_b});
  }
  Graph graph;
  Congruence classes;
};

TEST(Congruence, EqualOpsAttributesAndInputsAreEqual) {
  const Proof p(R"(
      %x = placeholder() : f32[4]
      %y = placeholder() : f32[4]
      %a = square(%x) : f32[4] replica 0
      %b = square(%x) : f32[4] replica 1
      %c = square(%y) : f32[4]
      %d = neg(%x) : f32[4]
      %s = sum[axes=[0], keepdims=false](%a) : f32[]
      %t = sum[axes=[0], keepdims=false](%b) : f32[]
      %u = sum[axes=[0], keepdims=true](%b) : f32[1]
      %one = constant[value=f32[]{1.0}]() : f32[]
      %uno = constant[value=f32[]{1.0}]() : f32[]
      %two = constant[value=f32[]{2.0}]() : f32[]
    )");
  EXPECT_TRUE(p.equal("a", "b"));
  EXPECT_TRUE(p.equal("s", "t"));
  EXPECT_TRUE(p.equal("one", "uno"));
  EXPECT_FALSE(p.equal("x", "y"));
  EXPECT_FALSE(p.equal("a", "c"));
  EXPECT_FALSE(p.equal("a", "d"));
  EXPECT_FALSE(p.equal("t", "u"));
  EXPECT_FALSE(p.equal("one", "two"));
}

TEST(Congruence, AnAliasOfAnotherShapeIsAnotherValue) {
  const Proof p(R"(
      %x = placeholder() : f32[2,3]
      %r = reshape[shape=<3,2>](%x) : f32[3,2]
      %i = identity(%x) : f32[2,3]
      %sx = sum[axes=[0], keepdims=false](%x) : f32[3]
      %sr = sum[axes=[0], keepdims=false](%r) : f32[2]
      %si = sum[axes=[0], keepdims=false](%i) : f32[3]
    )");
  EXPECT_FALSE(p.equal("sx", "sr"));
  EXPECT_TRUE(p.equal("sx", "si"));
}

TEST(Congruence, ReadsFollowTheHistoryOfTheirVariable) {
  const Proof p(R"(
      var @w : f32[2]
      var @"w/replica_1" : f32[2] [copy_of=@w, replica=1]
      var @v : f32[2]
      %x = placeholder() : f32[2]
      %a = read[variable=@w]() : f32[2] replica 0
      %b = read[variable=@"w/replica_1"]() : f32[2] replica 1
      %v = read[variable=@v]() : f32[2]
      %ua = assign_add[variable=@w](%x) : f32[2] replica 0 after(%a)
      %a2 = read[variable=@w]() : f32[2] replica 0 after(%ua)
      %b2 = read[variable=@"w/replica_1"]() : f32[2] replica 1
      %ub = assign_add[variable=@"w/replica_1"](%x) : f32[2] replica 1 after(%b, %b2)
      %b3 = read[variable=@"w/replica_1"]() : f32[2] replica 1 after(%ub)
    )");
  EXPECT_TRUE(p.equal("a", "b"));
  EXPECT_FALSE(p.equal("a", "v"));
  EXPECT_FALSE(p.equal("a2", "b2"));
  EXPECT_TRUE(p.equal("a2", "b3"));
  EXPECT_TRUE(p.equal("ua", "b3"));
  EXPECT_TRUE(p.classes.drifting().empty());
}

TEST(Congruence, CopiesThatAreSynchronizedOnReadAreNeverEqual) {
  const Proof p(R"(
      var @w : f32[2] [synchronization=on_read]
      var @"w/replica_1" : f32[2] [synchronization=on_read, copy_of=@w, replica=1]
      %a = read[variable=@w]() : f32[2] replica 0
      %b = read[variable=@"w/replica_1"]() : f32[2] replica 1
    )");
  EXPECT_FALSE(p.equal("a", "b"));
}

TEST(Congruence, RandomNumbersGoByKeyAndReplica) {
  const Proof p(R"(
      %a = random_uniform[dtype=f32, high=1.0, key=1, low=0.0, shape=<2>]() : f32[2] replica 0
      %b = random_uniform[dtype=f32, high=1.0, key=1, low=0.0, shape=<2>]() : f32[2] replica 1
      %c = random_uniform[dtype=f32, high=1.0, key=1, low=0.0, shape=<2>]() : f32[2] replica 0
      %d = random_uniform[dtype=f32, high=1.0, key=2, low=0.0, shape=<2>]() : f32[2] replica 0
    )");
  EXPECT_TRUE(p.equal("a", "c"));
  EXPECT_FALSE(p.equal("a", "b"));
  EXPECT_FALSE(p.equal("a", "d"));
}

TEST(Congruence, CollectivesMakeEqualValues) {
  const Proof p(R"(
      %x = placeholder() : f32[2]
      %y = placeholder() : f32[2]
      %t = all_reduce[reduce="sum", replicas=2](%x, %x, %y, %y) : f32[2], f32[2], f32[2], f32[2]
      %n = neg(%t:1) : f32[2] replica 0
      %m = neg(%t:3) : f32[2] replica 1
    )");
  EXPECT_TRUE(p.equal("t", "t", 0, 2));
  EXPECT_TRUE(p.equal("n", "m"));
  EXPECT_FALSE(p.equal("t", "t", 0, 1));
}

// What collectives are lowered to.
TEST(Congruence, ACopyIsWhatItWasMadeOf) {
  const Proof p(R"(
      %x = placeholder() : f32[2] on "gpu:0"
      %y = placeholder() : f32[2] on "gpu:1"
      %s = reduce_replicas[reduce="sum", replicas=2](%x, %y) : f32[2] on "gpu:0"
      %c = copy(%s) : f32[2] on "gpu:1" replica 1
      %d = copy(%y) : f32[2] on "gpu:0" replica 0
      %n = neg(%s) : f32[2] on "gpu:0" replica 0
      %m = neg(%c) : f32[2] on "gpu:1" replica 1
    )");
  EXPECT_TRUE(p.equal("s", "c"));
  EXPECT_TRUE(p.equal("n", "m"));
  EXPECT_TRUE(p.equal("y", "d"));
  EXPECT_FALSE(p.equal("c", "d"));
}

TEST(Congruence, JoinedChunksGoByTheChunksAndTheShape) {
  const Proof p(R"(
      %x = placeholder() : f32[4]
      %y = placeholder() : f32[4]
      %z = placeholder() : f32[2,2]
      %p = reduce_chunk[chunk=0, chunks=2, reduce="sum", replicas=2](%x, %y) : f32[2]
      %q = reduce_chunk[chunk=1, chunks=2, reduce="sum", replicas=2](%x, %y) : f32[2]
      %a = join_chunks[chunks=2](%p, %q, %x) : f32[4] replica 0
      %b = join_chunks[chunks=2](%p, %q, %y) : f32[4] replica 1
      %both = join_chunks[chunks=2](%q, %p, %p, %q, %x, %y) : f32[4], f32[4]
      %square = join_chunks[chunks=2](%p, %q, %z) : f32[2,2]
      %u = placeholder() : f32[?,?]
      %v = placeholder() : f32[?,?]
      %w = placeholder() : f32[?,?]
      %r = reduce_chunk[chunk=0, chunks=1, reduce="sum", replicas=2](%u, %v) : f32[?]
      %of_u = join_chunks[chunks=1](%r, %u) : f32[?,?]
      %of_v = join_chunks[chunks=1](%r, %v) : f32[?,?]
      %of_w = join_chunks[chunks=1](%r, %w) : f32[?,?]
    )");
  EXPECT_TRUE(p.equal("a", "b"));
  EXPECT_TRUE(p.equal("a", "both", 0, 1));
  EXPECT_FALSE(p.equal("a", "both", 0, 0));
  EXPECT_FALSE(p.equal("a", "square"));
  EXPECT_TRUE(p.equal("of_u", "of_v"));
  EXPECT_FALSE(p.equal("of_u", "of_w"));
}

constexpr std::string_view kJoinedCond = R"(
      var @w : f32[]
      var @"w/replica_1" : f32[] [copy_of=@w, replica=1]
      %p = placeholder() : bool[]
      %x = placeholder() : f32[]
      %y = placeholder() : f32[]
      %c = cond(%p, %x, %y) : f32[], f32[] {
        region {
          %x = placeholder() : f32[] replica 0
          %y = placeholder() : f32[] replica 1
          %t = all_reduce[reduce="sum", replicas=2](%x, %y) : f32[], f32[]
          %u = assign_add[variable=@w](%t) : f32[] replica 0
          %v = assign_add[variable=@"w/replica_1"](%t:1) : f32[] replica 1
          return %u, %v
        }
        region {
          %x = placeholder() : f32[] replica 0
          %y = placeholder() : f32[] replica 1
          %a = read[variable=@w]() : f32[] replica 0
          %b = read[variable=@"w/replica_1"]() : f32[] replica 1
          return %a, %b
        }
      }
      %r = read[variable=@w]() : f32[] replica 0 after(%c)
      %s = read[variable=@"w/replica_1"]() : f32[] replica 1 after(%c)
    )";

TEST(Congruence, SeesThroughBranchesThatHoldAllReplicas) {
  const Proof p(kJoinedCond);
  EXPECT_TRUE(p.equal("c", "c", 0, 1));
  EXPECT_TRUE(p.equal("r", "s"));
  EXPECT_TRUE(p.classes.drifting().empty());
  std::string text(kJoinedCond);
  text.replace(text.find("(%t:1)"), 6, "(%y)");
  const Proof q(text);
  EXPECT_FALSE(q.equal("c", "c", 0, 1));
  EXPECT_FALSE(q.equal("r", "s"));
  EXPECT_EQ(q.classes.drifting(), std::vector<std::string>{"w"});
}

std::string loop_text(std::string_view next_b) {
  return std::string(R"(
      %x = placeholder() : f32[]
      %y = placeholder() : f32[]
      %l = while_loop[carried=3, max_trips=4](%x, %x, %y) : f32[], f32[], f32[] {
        region {
          %a = placeholder() : f32[] replica 0
          %b = placeholder() : f32[] replica 1
          %c = placeholder() : f32[] replica 1
          %p = less(%a, %c) : bool[]
          return %p
        }
        region {
          %a = placeholder() : f32[] replica 0
          %b = placeholder() : f32[] replica 1
          %c = placeholder() : f32[] replica 1
          %na = square(%a) : f32[] replica 0
          %nb = )") +
         std::string(next_b) + R"( : f32[] replica 1
          return %na, %nb, %c
        }
      }
    )";
}

TEST(Congruence, CarriedValuesAreEqualWhereEveryTripKeepsThemSo) {
  EXPECT_TRUE(Proof(loop_text("square(%b)")).equal("l", "l", 0, 1));
  EXPECT_FALSE(Proof(loop_text("neg(%b)")).equal("l", "l", 0, 1));
  EXPECT_FALSE(Proof(loop_text("square(%b)")).equal("l", "l", 0, 2));
}

TEST(Congruence, NodesOfReplicasWithEqualRegionsAreEqual) {
  const auto text = [](std::string_view second) {
    return std::string(R"(
      %x = placeholder() : f32[]
      %a = while_loop[carried=1, max_trips=4](%x) : f32[] replica 0 {
        region {
          %v = placeholder() : f32[]
          %p = less(%v, %v) : bool[]
          return %p
        }
        region {
          %v = placeholder() : f32[]
          %n = square(%v) : f32[]
          return %n
        }
      }
      %b = while_loop[carried=1, max_trips=4](%x) : f32[] replica 1 {
        region {
          %v = placeholder() : f32[]
          %p = less(%v, %v) : bool[]
          return %p
        }
        region {
          %v = placeholder() : f32[]
          %n = )") +
           std::string(second) + R"((%v) : f32[]
          return %n
        }
      }
    )";
  };
  EXPECT_TRUE(Proof(text("square")).equal("a", "b"));
  EXPECT_FALSE(Proof(text("neg")).equal("a", "b"));
}

// Inside a loop an outer value and a carried one that started with it must not be confused, however deep.
TEST(Congruence, TellsTripsOfNestedLoopsApart) {
  const Proof p(R"(
      %x = placeholder() : f32[]
      %l = while_loop[carried=2, max_trips=4](%x, %x) : f32[], f32[] {
        region {
          %a = placeholder() : f32[]
          %b = placeholder() : f32[]
          %p = less(%a, %b) : bool[]
          return %p
        }
        region {
          %a = placeholder() : f32[]
          %b = placeholder() : f32[]
          %m = while_loop[carried=1, max_trips=4](%a) : f32[] {
            region {
              %v = placeholder() : f32[]
              %p = less(%v, %v) : bool[]
              return %p
            }
            region {
              %v = placeholder() : f32[]
              %n = square(%v) : f32[]
              return %n
            }
          }
          return %m, %b
        }
      }
    )");
  EXPECT_FALSE(p.equal("l", "l", 0, 1));
}

TEST(Congruence, FindsTheAssumptionThatHolds) {
  // v drifts apart, and with it w, which is made of it.
  const Graph graph = parse(R"(
      var @v : f32[]
      var @"v/replica_1" : f32[] [copy_of=@v, replica=1]
      var @w : f32[]
      var @"w/replica_1" : f32[] [copy_of=@w, replica=1]
      %x = placeholder() : f32[]
      %a = read[variable=@v]() : f32[] replica 0
      %b = read[variable=@"v/replica_1"]() : f32[] replica 1
      %u = assign[variable=@w](%a) : f32[] replica 0
      %t = assign[variable=@"w/replica_1"](%b) : f32[] replica 1
      %s = assign[variable=@v](%x) : f32[] replica 0 after(%a)
    )");
  EXPECT_EQ(Congruence(graph).drifting(), std::vector<std::string>{"v"});
  const Congruence proof = consistent_congruence(graph);
  EXPECT_TRUE(proof.drifting().empty());
  EXPECT_NE(proof.top().of({graph.find("a"), 0}), proof.top().of({graph.find("b"), 0}));
  EXPECT_NE(proof.final(2), proof.final(3));
}

TEST(Congruence, SaysForDumpsWhatIsMirrored) {
  const Proof p(R"(
      %s = placeholder() : f32[2]
      %x = placeholder() : f32[2]
      %y = placeholder() : f32[2]
      %a = add(%x, %s) : f32[2] replica 0
      %b = add(%y, %s) : f32[2] replica 1
      %t = all_reduce[reduce="sum", replicas=2](%a, %b) : f32[2], f32[2]
      %n = neg(%t) : f32[2] replica 0
      %m = neg(%t:1) : f32[2] replica 1
    )");
  const std::vector<ReplicaKind> kinds = replica_kinds_of(p.graph, p.classes.top());
  const auto kind = [&](std::string_view name, std::uint32_t output = 0) {
    return to_string(kinds[p.classes.top().index({p.graph.find(name), output})]);
  };
  EXPECT_EQ(kind("s"), "single");
  EXPECT_EQ(kind("a"), "per replica");
  EXPECT_EQ(kind("t", 1), "mirrored");
  EXPECT_EQ(kind("m"), "mirrored");
}

}  // namespace
}  // namespace lockstep
