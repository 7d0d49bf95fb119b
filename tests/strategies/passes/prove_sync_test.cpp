// Tests: strategies/passes/prove_sync.cpp, strategies/passes/register.cpp, strategies/proof/drift.cpp
#include "lockstep/strategies/passes/prove_sync.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/graph/transform/rewriter.h"
#include "lockstep/strategies/mirrored.h"
#include "lockstep/strategies/passes/register.h"
#include "support/pass_test.h"
#include "support/strategy_test.h"
#include "support/training.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ProveSync : public testing::PassTest {
 protected:
  void SetUp() override { register_strategy_passes(); }

  // What it refuses the graph with; empty where it does not.
  static std::string refusal(Graph graph, std::string_view passes = "prove-sync") {
    try {
      PassRegistry::global().parse_pipeline(passes).run(graph);
    } catch (const PassError& error) {
      EXPECT_EQ(error.pass(), "prove-sync");
      return error.what();
    }
    return {};
  }
};

constexpr std::string_view kGood = R"(
      var @w : f32[2]
      var @"w/replica_1" : f32[2] [copy_of=@w, replica=1]
      %x0 = placeholder() : f32[2]
      %x1 = placeholder() : f32[2]
      %w = read[variable=@w]() : f32[2] replica 0
      %g = mul(%x0, %w) : f32[2] replica 0
      %"replica_1/w" = read[variable=@"w/replica_1"]() : f32[2] replica 1
      %"replica_1/g" = mul(%x1, %"replica_1/w") : f32[2] replica 1
      %t = all_reduce[reduce="sum", replicas=2](%g, %"replica_1/g") : f32[2], f32[2]
      %u = assign_add[variable=@w](%t) : f32[2] replica 0 after(%w)
      %"replica_1/u" = assign_add[variable=@"w/replica_1"](%t:1) : f32[2] replica 1 after(%"replica_1/w")
      return %u, %"replica_1/u"
    )";

TEST_F(ProveSync, AcceptsUpdatesByReducedGradients) { expect_unchanged("prove-sync", kGood); }

// A pass that takes one replica's gradient for the sum breaks lockstep.
std::string bad_text() {
  std::string text(kGood);
  const std::string_view sum = "(%t:1)", own = "(%\"replica_1/g\")";
  return text.replace(text.find(sum), sum.size(), own);
}

TEST_F(ProveSync, RefusesAPassThatTakesOneReplicasOwnGradient) {
  const std::string message = refusal(parse(bad_text(), "step.lks"));
  EXPECT_THAT(message, HasSubstr("prove-sync: variable 'w' would not stay equal on all replicas"));
  EXPECT_THAT(message, HasSubstr("'u' and 'replica_1/u' (assign_add, step.lks:12)"));
  EXPECT_THAT(message,
              HasSubstr("from 't' and 'replica_1/g' (mul, step.lks:9): they are computed in different ways"));
  EXPECT_THAT(message, AllOf(HasSubstr("all_reduce"), HasSubstr("aggregation"),
                             HasSubstr("allow-drift(variables=[w])")));
}

TEST_F(ProveSync, PrintsTheChainToWhereReplicasBeginToDiffer) {
  const std::string message = refusal(parse(R"(
      var @w : f32[2]
      var @"w/replica_1" : f32[2] [copy_of=@w, replica=1]
      %s = placeholder() : f32[2]
      %x0 = placeholder() : f32[2]
      %x1 = placeholder() : f32[2]
      %a = add(%s, %x0) : f32[2] replica 0
      %b = neg(%a) : f32[2] replica 0
      %u = assign[variable=@w](%b) : f32[2] replica 0
      %a1 = add(%s, %x1) : f32[2] replica 1
      %b1 = neg(%a1) : f32[2] replica 1
      %u1 = assign[variable=@"w/replica_1"](%b1) : f32[2] replica 1
    )",
                                            "m"));
  EXPECT_THAT(message, HasSubstr(R"(
  'u' and 'u1' (assign, m:12)
  from 'b' and 'b1' (neg, m:11)
  from 'a' and 'a1' (add, m:10)
  from 'x0' and 'x1' (placeholder, m:6): fed to each replica by itself; what all replicas should see whole is shared: enter-replicas(shared=[x0]))"));
}

TEST_F(ProveSync, AcceptsWhatMayDrift) {
  EXPECT_EQ(refusal(parse(bad_text()), "allow-drift(variables=[w]),prove-sync"), "");
}

// What is allowed to drift apart is not taken for equal elsewhere.
TEST_F(ProveSync, ConcludesNothingFromVariablesThatMayDriftApart) {
  constexpr std::string_view text = R"(
      var @v : f32[]
      var @"v/replica_1" : f32[] [copy_of=@v, replica=1]
      var @w : f32[]
      var @"w/replica_1" : f32[] [copy_of=@w, replica=1]
      %a = read[variable=@v]() : f32[] replica 0
      %b = read[variable=@"v/replica_1"]() : f32[] replica 1
      %u = assign[variable=@w](%a) : f32[] replica 0
      %u1 = assign[variable=@"w/replica_1"](%b) : f32[] replica 1
    )";
  EXPECT_EQ(refusal(parse(text)), "");
  EXPECT_THAT(refusal(parse(text), "allow-drift(variables=[v]),prove-sync"),
              HasSubstr("each replica has a 'v' of its own"));
}

TEST_F(ProveSync, RefusesRandomNumbersOfEachReplica) {
  const auto step = [](bool reduce) {
    GraphBuilder b;
    const VariableRef w = b.variable("w", Tensor::zeros({2}));
    replicated(b, 3, {}, {}, [&](std::span<const Value>) -> std::vector<Value> {
      Value noise = b.random_uniform({DType::kF32, Shape{2}});
      if (reduce) noise = all_reduce(ReduceOp::kMean, noise);
      b.assign(w, noise);
      return {};
    });
    return b.finish();
  };
  EXPECT_EQ(refusal(step(true), "replicate,prove-sync"), "");
  EXPECT_THAT(refusal(step(false), "replicate,prove-sync"),
              HasSubstr("each replica draws random numbers of its own"));
}

TEST_F(ProveSync, RefusesACopyThatIsNotUpdated) {
  EXPECT_THAT(refusal(parse(R"(
      var @w : f32[]
      var @"w/replica_1" : f32[] [copy_of=@w, replica=1]
      %x = placeholder() : f32[]
      %u = assign[variable=@w](%x) : f32[]
    )")),
              HasSubstr("'w' is updated 1 times and 'w/replica_1' 0 times"));
}

TEST_F(ProveSync, WantsFlatGraphs) {
  EXPECT_THAT(refusal(parse(R"(
      %y = replicated[replicas=2, shared=0]() : i32[], i32[] {
        region {
          %r = replica_id() : i32[]
          return %r
        }
      }
    )")),
              HasSubstr("run replicate first"));
}

// A branch that writes a mirrored variable, with a predicate that is, or is not, equal on all replicas.
Graph branching(bool equal, bool same_update) {
  GraphBuilder b;
  const VariableRef w = b.variable("w", Tensor::zeros({2}));
  const Value x0 = b.placeholder("x0", DType::kF32, {2}), x1 = b.placeholder("x1", DType::kF32, {2});
  const std::vector<Value> own[] = {{x0, x1}};
  replicated(b, 2, {}, own, [&](std::span<const Value> in) -> std::vector<Value> {
    const Value total = all_reduce(ReduceOp::kSum, in[0]);
    const Value p = sum(equal ? total : in[0]) > 0.F;
    cond(
        p, [&]() -> std::vector<Value> { return {b.assign_add(w, same_update ? total : in[0])}; },
        [&]() -> std::vector<Value> { return {total}; });
    return {};
  });
  return b.finish();
}

TEST_F(ProveSync, ChecksPredicatesAndRegions) {
  EXPECT_EQ(refusal(branching(true, true), "replicate,prove-sync"), "");
  const std::string predicate = refusal(branching(false, true), "replicate,prove-sync");
  EXPECT_THAT(predicate, HasSubstr("must be equal on all replicas, and are not proven to be"));
  EXPECT_THAT(predicate, AllOf(HasSubstr("'x0' and 'x1'"), HasSubstr("fed to each replica by itself"),
                               HasSubstr("predicate")));
  const std::string inside = refusal(branching(true, false), "replicate,prove-sync");
  EXPECT_THAT(inside, AllOf(HasSubstr("variable 'w'"), HasSubstr("assign_add"), HasSubstr("'x0' and 'x1'")));
}

// The trips of a loop: the predicate comes from the carried values, which the body keeps equal or does not.
Graph looping(bool equal) {
  GraphBuilder b;
  const VariableRef w = b.variable("w", Tensor::zeros({}));
  const Value x0 = b.placeholder("x0", DType::kF32, {}), x1 = b.placeholder("x1", DType::kF32, {});
  const Value start = b.placeholder("start", DType::kF32, {});
  const Value shared[] = {start};
  const std::vector<Value> own[] = {{x0, x1}};
  replicated(b, 2, shared, own, [&](std::span<const Value> in) -> std::vector<Value> {
    const Value initial[] = {in[0]};
    while_loop(
        initial, [&](std::span<const Value> c) { return c[0] < 10.F; },
        [&](std::span<const Value> c) -> std::vector<Value> {
          const Value step = equal ? all_reduce(ReduceOp::kSum, in[1]) : in[1];
          b.assign_add(w, c[0]);
          return {c[0] + step};
        },
        LoopOptions{.max_trips = 5});
    return {};
  });
  return b.finish();
}

// Reduces values whose shapes are known at run time, and reads one of them on the first replica alone.
Graph step_with_open_shapes(std::int64_t replicas) {
  GraphBuilder b;
  const VariableRef w = b.variable("w", Tensor::zeros({}));
  std::vector<std::vector<Value>> own(2);
  for (std::int64_t r = 0; r < replicas; ++r) {
    own[0].push_back(b.placeholder(str("x", r), DType::kF32, {kUnknown}));
    own[1].push_back(b.placeholder(str("y", r), DType::kF32, {kUnknown, kUnknown}));
  }
  const auto results = replicated(b, replicas, {}, own, [&](std::span<const Value> in) -> std::vector<Value> {
    const Value both[] = {in[0], in[1]};
    const std::vector<Value> sums = all_reduce(ReduceOp::kSum, both);
    b.assign_add(w, sum(sums[1]));
    return {sums[0]};
  });
  b.result(results[0][0]);
  return b.finish();
}

// What the library makes of collectives can be proven again.
TEST_F(ProveSync, AcceptsEveryLoweringOfTheLibrary) {
  for (const char* ops : {"auto", "shared_memory", "reduction_to_one_device", "hierarchical_copy", "ring"}) {
    for (const int replicas : {2, 3, 4}) {
      for (const bool share : {true, false}) {
        SCOPED_TRACE(str(ops, ", ", replicas, " replicas, ", share ? "" : "not ", "shared"));
        const MirroredStrategy strategy(
            {.devices = testing::test_devices(replicas), .cross_device_ops = ops, .share_mirrored = share});
        for (Graph graph : {testing::replicated_step(replicas), step_with_open_shapes(replicas)}) {
          strategy.pipeline().run(graph);
          EXPECT_EQ(refusal(std::move(graph)), "");
        }
      }
      std::string gpus;  // each a memory of its own
      for (int r = 0; r < replicas; ++r) gpus += str(r == 0 ? "" : ",", "gpu:", r);
      EXPECT_EQ(
          refusal(testing::replicated_step(replicas),
                  str("mirror-variables(devices=[", gpus, "]),insert-all-reduce,replicate,place(devices=[",
                      gpus, "]),prove-sync,lower-collectives(ops=", ops, "),insert-copies,prove-sync")),
          "")
          << ops << ", " << replicas << " memories";
    }
  }
}

TEST_F(ProveSync, ChecksLoops) {
  EXPECT_EQ(refusal(looping(true), "replicate,prove-sync"), "");
  EXPECT_THAT(refusal(looping(false), "replicate,prove-sync"),
              AllOf(HasSubstr("must be equal on all replicas"), HasSubstr("'x0' and 'x1'")));
}

}  // namespace
}  // namespace lockstep
