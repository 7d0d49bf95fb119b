// Tests: strategies/passes/register.cpp, strategies/passes/share_mirrored.cpp,
//        strategies/passes/sharing.cpp, strategies/passes/variable_order.cpp
#include "lockstep/strategies/passes/share_mirrored.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/strategies/passes/register.h"
#include "support/pass_test.h"
#include "support/random_replicated.h"

namespace lockstep {
namespace {

class ShareMirrored : public testing::PassTest {
 protected:
  void SetUp() override { register_strategy_passes(); }
};

constexpr std::string_view kStep = R"(
      var @w : f32[2]
      var @"w/replica_1" : f32[2] [copy_of=@w, replica=1]
      %x0 = placeholder() : f32[2]
      %x1 = placeholder() : f32[2]
      %w = read[variable=@w]() : f32[2] replica 0
      %g = mul(%x0, %w) : f32[2] replica 0
      %"replica_1/w" = read[variable=@"w/replica_1"]() : f32[2] replica 1
      %"replica_1/g" = mul(%x1, %"replica_1/w") : f32[2] replica 1
      %t = all_reduce[reduce="sum", replicas=2](%g, %"replica_1/g") : f32[2], f32[2]
      %n = neg(%t) : f32[2] replica 0
      %u = assign_add[variable=@w](%n) : f32[2] replica 0 after(%w)
      %"replica_1/n" = neg(%t:1) : f32[2] replica 1
      %"replica_1/u" = assign_add[variable=@"w/replica_1"](%"replica_1/n") : f32[2] replica 1 after(%"replica_1/w")
      return %u, %"replica_1/u"
    )";

TEST_F(ShareMirrored, ComputesAndKeepsOnceWhatIsEqual) {
  expect_rewrite("share-mirrored", kStep, R"(
      var @w : f32[2]
      var @"w/replica_1" : f32[2] [copy_of=@w, replica=1, shares=true]
      %x0 = placeholder() : f32[2]
      %x1 = placeholder() : f32[2]
      %w = read[variable=@w]() : f32[2]
      %g = mul(%x0, %w) : f32[2] replica 0
      %"replica_1/g" = mul(%x1, %w) : f32[2] replica 1
      %t = all_reduce[reduce="sum", replicas=2](%g, %"replica_1/g") : f32[2], f32[2]
      %n = neg(%t) : f32[2]
      %u = assign_add[variable=@w](%n) : f32[2] after(%w)
      return %u, %u
    )");
}

TEST_F(ShareMirrored, LeavesVariablesAloneWhereTold) {
  expect_rewrite("share-mirrored(variables=false)", kStep, R"(
      var @w : f32[2]
      var @"w/replica_1" : f32[2] [copy_of=@w, replica=1]
      %x0 = placeholder() : f32[2]
      %x1 = placeholder() : f32[2]
      %w = read[variable=@w]() : f32[2]
      %g = mul(%x0, %w) : f32[2] replica 0
      %"replica_1/g" = mul(%x1, %w) : f32[2] replica 1
      %t = all_reduce[reduce="sum", replicas=2](%g, %"replica_1/g") : f32[2], f32[2]
      %n = neg(%t) : f32[2]
      %u = assign_add[variable=@w](%n) : f32[2] replica 0 after(%w)
      %"replica_1/u" = assign_add[variable=@"w/replica_1"](%n) : f32[2] replica 1 after(%w)
      return %u, %"replica_1/u"
    )");
}

TEST_F(ShareMirrored, LeavesReplicasOfOtherMemoriesAlone) {
  expect_unchanged("share-mirrored", R"(
      var @w : f32[2] [device="gpu:0"]
      var @"w/replica_1" : f32[2] [device="gpu:1", copy_of=@w, replica=1]
      %w = read[variable=@w]() : f32[2] on "gpu:0" replica 0
      %n = neg(%w) : f32[2] on "gpu:0" replica 0
      %"replica_1/w" = read[variable=@"w/replica_1"]() : f32[2] on "gpu:1" replica 1
      %"replica_1/n" = neg(%"replica_1/w") : f32[2] on "gpu:1" replica 1
      return %n, %"replica_1/n"
    )");
}

// ... and joins those of logical devices that compute in one.
TEST_F(ShareMirrored, AsksTheTopologyWhichDevicesShareAMemory) {
  expect_rewrite("share-mirrored", R"(
      var @w : f32[2] [device="gpu:0"]
      var @"w/replica_1" : f32[2] [device="gpu:1", copy_of=@w, replica=1]
      %w = read[variable=@w]() : f32[2] on "gpu:0" replica 0
      %n = neg(%w) : f32[2] on "gpu:0" replica 0
      %"replica_1/w" = read[variable=@"w/replica_1"]() : f32[2] on "gpu:1" replica 1
      %"replica_1/n" = neg(%"replica_1/w") : f32[2] on "gpu:1" replica 1
      return %n, %"replica_1/n"
    )",
                 R"(
      var @w : f32[2] [device="gpu:0"]
      var @"w/replica_1" : f32[2] [device="gpu:1", copy_of=@w, replica=1, shares=true]
      %w = read[variable=@w]() : f32[2] on "gpu:0"
      %n = neg(%w) : f32[2] on "gpu:0"
      return %n, %n
    )",
                 {.topology = "gpu:0 gpu:1 memory=1 card=0"});
}

TEST_F(ShareMirrored, LeavesWhatDiffersAndWhatDriftsApartAlone) {
  expect_unchanged("share-mirrored", R"(
      var @v : f32[2] [synchronization=on_read]
      var @"v/replica_1" : f32[2] [synchronization=on_read, copy_of=@v, replica=1]
      var @w : f32[2]
      var @"w/replica_1" : f32[2] [copy_of=@w, replica=1]
      %x0 = placeholder() : f32[2]
      %x1 = placeholder() : f32[2]
      %v = read[variable=@v]() : f32[2] replica 0
      %w = read[variable=@w]() : f32[2] replica 0
      %d = random_uniform[dtype=f32, high=1.0, key=1, low=0.0, shape=<2>]() : f32[2] replica 0
      %a = add(%v, %d) : f32[2] replica 0
      %u = assign[variable=@w](%x0) : f32[2] replica 0 after(%w)
      %"replica_1/v" = read[variable=@"v/replica_1"]() : f32[2] replica 1
      %"replica_1/w" = read[variable=@"w/replica_1"]() : f32[2] replica 1
      %"replica_1/d" = random_uniform[dtype=f32, high=1.0, key=1, low=0.0, shape=<2>]() : f32[2] replica 1
      %"replica_1/a" = add(%"replica_1/v", %"replica_1/d") : f32[2] replica 1
      %"replica_1/u" = assign[variable=@"w/replica_1"](%x1) : f32[2] replica 1 after(%"replica_1/w")
      return %w, %a, %"replica_1/w", %"replica_1/a"
    )");
}

// A read in a branch of one replica has nothing to be merged with: it names the variable, and the update
// waits for it.
TEST_F(ShareMirrored, UpdatesWaitForReadersOfTheCopy) {
  expect_rewrite("share-mirrored", R"(
      var @w : f32[2]
      var @"w/replica_1" : f32[2] [copy_of=@w, replica=1]
      %p = placeholder() : bool[]
      %x = placeholder() : f32[2]
      %u = assign[variable=@w](%x) : f32[2] replica 0
      %c = cond(%p, %x) : f32[2] replica 1 {
        region {
          %x = placeholder() : f32[2]
          %r = read[variable=@"w/replica_1"]() : f32[2] replica 1
          return %r
        }
        region {
          %x = placeholder() : f32[2]
          return %x
        }
      }
      %v = assign[variable=@"w/replica_1"](%x) : f32[2] replica 1 after(%c)
      return %c
    )",
                 R"(
      var @w : f32[2]
      var @"w/replica_1" : f32[2] [copy_of=@w, replica=1, shares=true]
      %p = placeholder() : bool[]
      %x = placeholder() : f32[2]
      %c = cond(%p, %x) : f32[2] replica 1 {
        region {
          %x = placeholder() : f32[2]
          %r = read[variable=@w]() : f32[2] replica 1
          return %r
        }
        region {
          %x = placeholder() : f32[2]
          return %x
        }
      }
      %u = assign[variable=@w](%x) : f32[2] after(%c)
      return %c
    )");
}

// The copy is read after the variable was written, by what that write needs: no order of one variable allows
// both.
TEST_F(ShareMirrored, LeavesCopiesWhoseReadsComeTooLate) {
  Graph graph = parse(R"(
      var @w : f32[2]
      var @"w/replica_1" : f32[2] [copy_of=@w, replica=1]
      %x = placeholder() : f32[2]
      %u = assign[variable=@w](%x) : f32[2] replica 0
      %r = read[variable=@"w/replica_1"]() : f32[2] replica 1 after(%u)
      %v = assign[variable=@"w/replica_1"](%x) : f32[2] replica 1 after(%r)
      return %r, %u, %v
    )");
  const Graph before = graph;
  PassRegistry::global().parse_pipeline("share-mirrored").run(graph);
  EXPECT_FALSE(graph.variables()[1].shares);
  testing::expect_same_meaning(before, graph);
}

TEST_F(ShareMirrored, SharesInsideBranchesThatHoldAllReplicas) {
  GraphBuilder b;
  const VariableRef w = b.variable("w", Tensor::zeros({2}));
  const Value x0 = b.placeholder("x0", DType::kF32, {2}), x1 = b.placeholder("x1", DType::kF32, {2});
  const std::vector<Value> own[] = {{x0, x1}};
  const auto out = replicated(b, 2, {}, own, [&](std::span<const Value> in) -> std::vector<Value> {
    const Value total = all_reduce(ReduceOp::kSum, in[0]);
    return cond(
        sum(total) > 0.F, [&]() -> std::vector<Value> { return {b.assign_add(w, square(total))}; },
        [&]() -> std::vector<Value> { return {total * b.read(w)}; });
  });
  for (const Value& value : out[0]) b.result(value);
  Graph graph = b.finish();
  PassRegistry::global().parse_pipeline("replicate").run(graph);
  const Graph before = graph;
  PassRegistry::global().parse_pipeline("share-mirrored").run(graph);
  for (std::uint64_t seed = 1; seed < 9; ++seed) testing::expect_same_meaning(before, graph, seed);
  EXPECT_TRUE(graph.variables()[1].shares);
  for (const Node& node : graph.nodes()) {
    for (const Graph& region : node.regions())
      EXPECT_FALSE(region.find("replica_1/square").valid() || region.find("replica_1/mul").valid());
  }
}

// Whole steps, made at random: nothing changes but how often things are computed.
TEST_F(ShareMirrored, KeepsTheBitsOfRandomSteps) {
  int shared = 0;
  for (const std::int64_t replicas : {1, 2, 3, 4, 8}) {
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      SCOPED_TRACE(str(replicas, " replicas, seed ", seed));
      Graph graph = testing::random_replicated_step(replicas, seed);
      PassRegistry::global().parse_pipeline("replicate,prove-sync").run(graph);
      const Graph before = graph;
      PassRegistry::global().parse_pipeline("share-mirrored").run(graph);
      testing::expect_same_meaning(before, graph, seed + 1);
      EXPECT_EQ(PassRegistry::global().parse_pipeline("share-mirrored").run(graph).outcome,
                PassOutcome::kUnchanged);
      for (const VariableDecl& decl : graph.variables()) shared += decl.shares ? 1 : 0;
    }
  }
  EXPECT_GT(shared, 100);
}

}  // namespace
}  // namespace lockstep
