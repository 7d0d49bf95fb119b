// Tests: strategies/strategy.cpp, strategies/mirrored.cpp, strategies/passes/depths.cpp,
//        strategies/passes/order_collectives.cpp, strategies/trace/replica_context.cpp
// Methods mean one thing wherever they are called: names in scopes, the order of collectives, gathering.
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/gradients.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/strategies/mirrored.h"
#include "lockstep/strategies/trace/building.h"
#include "support/strategy_test.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kScalar;
using testing::on_gpus;
using testing::scalars;
using testing::test_devices;
using testing::vec;

TEST(Scopes, AroundRunReachTheNodesOfReplicas) {
  MirroredStrategy strategy({.devices = test_devices(2), .optimize = false});
  const auto f = strategy.cross_function({kScalar}, [&](const PerReplica<Value>& x) {
    const auto main = name_scope("main");
    return strategy.run(
        [](Value v) {
          const auto foo = name_scope("foo");
          return replica_context().merge_call(
              [](Strategy& s, const PerReplica<Value>& all) { return square(s.reduce(ReduceOp::kSum, all)); },
              exp(v));
        },
        x);
  });
  std::set<std::string> names;
  for (const Node& node : f.replicated_graph().nodes()) names.insert(node.name());
  EXPECT_TRUE(names.contains("main/foo/exp")) << ::testing::PrintToString(names);
  EXPECT_TRUE(names.contains("replica_1/main/foo/exp")) << ::testing::PrintToString(names);
  EXPECT_TRUE(names.contains("main/foo/merge_call/square")) << ::testing::PrintToString(names);
}

// Two layers that each make a variable "a" have two of them, whatever region the variable is made in.
TEST(Scopes, ReachVariablesInBranchesLoopsAndMergeCalls) {
  using Layer = std::function<Value(const Value&, const std::string&, float)>;
  const auto multiplied = [](const Value& x, float start) {
    return x * Variable("a", Tensor::scalar(start));
  };
  const std::vector<std::pair<const char*, Layer>> layers = {
      {"branch",
       [&](const Value& x, const std::string& name, float start) {
         const auto scope = name_scope(name);
         return cond(
             x > -1.F, [&]() -> std::vector<Value> { return {multiplied(x, start)}; },
             [&]() -> std::vector<Value> { return {x * 1.F}; })[0];
       }},
      {"loop",
       [&](const Value& x, const std::string& name, float start) {
         const auto scope = name_scope(name);
         return while_loop(
             std::vector<Value>{x, x * 0.F}, [](std::span<const Value> now) { return now[1] < 0.5F; },
             [&](std::span<const Value> now) -> std::vector<Value> {
               return {multiplied(now[0], start), now[1] + 1.F};
             })[0];
       }},
      {"run in a merge call", [&](const Value& x, const std::string& name, float start) {
         const auto scope = name_scope(name);
         return replica_context().merge_call(
             [&](Strategy& s, const PerReplica<Value>& all) {
               return s.run([&](const Value& v) { return multiplied(v, start); }, all);
             },
             x);
       }}};
  for (const auto& [what, layer] : layers) {
    MirroredStrategy strategy({.devices = test_devices(2)});
    const auto scope = strategy.scope();
    const InputSpec shared(DType::kF32, {}, "x", true);
    const auto f = strategy.function(
        {shared}, [&, layer = layer](const Value& x) { return layer(layer(x, "l1", 2.F), "l2", 3.F); });
    EXPECT_EQ(f(Tensor::scalar(1.F))[0].item(), 6) << what;
    EXPECT_TRUE(strategy.variables().contains("l1/a")) << what;
    EXPECT_TRUE(strategy.variables().contains("l2/a")) << what;
  }
}

TEST(Scopes, ReachNodesOfRunAndUpdateInAMergeCall) {
  MirroredStrategy strategy({.devices = test_devices(2), .optimize = false});
  const auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(1.F));
  const auto f = strategy.function({kScalar}, [&](const Value& x) {
    const auto outer = name_scope("outer");
    return replica_context().merge_call(
        [&](Strategy& s, const PerReplica<Value>& all) {
          s.update(
              w, [](const Variable& v, const Value& sum) { v.assign_add(sum); },
              s.reduce(ReduceOp::kSum, all));
          return s.run([](const Value& v) { return tanh(v); }, all);
        },
        x);
  });
  std::set<std::string> names;
  for (const Node& node : f.replicated_graph().nodes()) names.insert(node.name());
  EXPECT_TRUE(names.contains("outer/tanh")) << ::testing::PrintToString(names);
  EXPECT_TRUE(names.contains("outer/w/assign_add")) << ::testing::PrintToString(names);
}

TEST(Scopes, ArePartOfAVariablesName) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  const auto scope = strategy.scope();
  const auto f = strategy.function({kScalar}, [](Value x) {
    const auto layer = name_scope("layer");
    const Variable a("a", Tensor::scalar(2.F));
    return x * a;
  });
  EXPECT_EQ(f(scalars({1, 2}))[1].item(), 4);
  EXPECT_TRUE(strategy.variables().contains("layer/a"));
  EXPECT_FALSE(strategy.variables().contains("a"));
}

// In a chain the gradients of the last layer are there first, whatever order the variables are named in.
TEST(Readiness, OrdersAllReducesNotTheListOfVariables) {
  std::set<std::uint64_t> digests;
  for (const bool turned : {false, true}) {
    MirroredStrategy strategy({.devices = test_devices(2), .num_packs = 2});
    const auto scope = strategy.scope();
    std::vector<Variable> layers;
    const std::int64_t sizes[] = {2, 3, 4, 5, 6};  // so that tensors of the schedule tell which they are
    for (int i = 0; i < 4; ++i)
      layers.emplace_back(std::string(1, static_cast<char>('a' + i)),
                          Tensor::full(DType::kF32, {sizes[i], sizes[i + 1]}, 0.5));
    const auto f = strategy.function({InputSpec(DType::kF32, {kUnknown, 2}, "x")}, [&](Value x) {
      Value y = x;
      for (const Variable& layer : layers) y = tanh(matmul(y, layer));
      std::vector<VariableRef> named(layers.begin(), layers.end());
      if (turned) std::reverse(named.begin(), named.end());
      Sgd(0.1).minimize(global_mean(square(y)), named);
    });
    std::vector<std::vector<std::int64_t>> packs;  // how many elements each tensor of a pack has
    for (const ScheduledCollective& collective : f.collective_schedule()) {
      if (collective.tensors[0].first != DType::kF32) continue;
      packs.emplace_back();
      for (const auto& [dtype, count] : collective.tensors) packs.back().push_back(count);
    }
    ASSERT_EQ(packs.size(), 2U);
    EXPECT_THAT(packs[0], ElementsAre(5 * 6, 4 * 5));
    EXPECT_THAT(packs[1], ElementsAre(3 * 4, 2 * 3));
    digests.insert(f.collective_digest());
  }
  EXPECT_EQ(digests.size(), 1U);
}

TEST(Packing, CanBeSwitchedOff) {
  const auto collectives = [](const MirroredOptions& options) {
    MirroredStrategy strategy(options);
    const auto scope = strategy.scope();
    const Variable a("a", Tensor::scalar(1.F)), b("b", Tensor::scalar(1.F));
    return strategy.function({kScalar},
                             [=](Value x) {
                               Sgd(0.1).minimize(x * a * b, {a, b});
                             })
        .collective_schedule()
        .size();
  };
  EXPECT_EQ(collectives({.devices = test_devices(2)}), 1U);
  EXPECT_EQ(collectives({.devices = test_devices(2), .pack = false}), 2U);
  EXPECT_THAT(error_of([] { MirroredStrategy({.num_packs = 2, .pack = false}); }),
              HasSubstr("leave one out"));
}

TEST(Gather, PutsSlotsOneBehindTheOther) {
  MirroredStrategy strategy({.devices = test_devices(3)});
  const PerReplica<Tensor> uneven(std::vector<Tensor>{vec({1}), vec({2, 3}), vec({})});
  EXPECT_TRUE(strategy.gather(uneven, 0).bit_equal(vec({1, 2, 3})));
  EXPECT_TRUE(strategy.gather(vec({7}), 0).bit_equal(vec({7, 7, 7})));
  const auto f = strategy.cross_function({InputSpec(DType::kF32, {kUnknown, 2}, "x")},
                                         [&](const PerReplica<Value>& x) { return strategy.gather(x, 1); });
  const Tensor rows = Tensor::full(DType::kF32, {2, 2}, 1);
  EXPECT_EQ(f(rows)[0].shape(), (Shape{2, 6}));
  EXPECT_THAT(error_of([&] { strategy.gather(uneven, 1); }),
              AllOf(HasSubstr("axis 1 is out of range"), HasSubstr("meaning_test.cpp:")));
  EXPECT_THAT(error_of([&] { strategy.gather(scalars({1, 2}), 0); }), HasSubstr("2 slots for 3 replicas"));
}

TEST(Reduce, TakesItsOperationAsText) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  EXPECT_EQ(strategy.reduce("sum", scalars({1, 2})).item(), 3);
  EXPECT_EQ(strategy.reduce("MEAN", scalars({1, 2})).item(), 1.5);
  EXPECT_THAT(error_of([&] { strategy.reduce("median", scalars({1, 2})); }), HasSubstr("'median'"));
}

TEST(AllReduce, OfIntegersHasAMeanInF64) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  const InputSpec whole(DType::kI32, Shape{}, "n");
  const auto f = strategy.function({whole}, [](Value n) {
    const ReplicaContext replica = replica_context();
    return std::pair(replica.all_reduce(ReduceOp::kMean, n),
                     replica.all_reduce(ReduceOp::kMean, std::vector<Value>{n, cast(n, DType::kF32)}));
  });
  const PerReplica<Tensor> fed(std::vector<Tensor>{Tensor::scalar(1), Tensor::scalar(2)});
  const auto [one, list] = f(fed);
  EXPECT_EQ(one[1].dtype(), DType::kF64);
  EXPECT_EQ(one[1].item(), 1.5);
  EXPECT_EQ(list[0][0].dtype(), DType::kF64);
  EXPECT_EQ(list[1][0].dtype(), DType::kF32);
}

TEST(AllReduce, TakesSlices) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  const auto reduced = [&](ReduceOp op) {
    return strategy.function({InputSpec(DType::kI64, {kUnknown}, "rows")},
                             [op](Value rows) {
                               const Value table = constant(Tensor::zeros({4, 1}));
                               const Value loss = sum(gather(table, rows) * 6.F);
                               const Gradient gradient = gradients(loss, {table})[0];
                               return to_dense(replica_context().all_reduce(op, gradient.slices()));
                             })(PerReplica<Tensor>(std::vector<Tensor>{
        Tensor::from<std::int64_t>({2}, {0, 3}), Tensor::from<std::int64_t>({1}, {3})}));
  };
  const Tensor sum = reduced(ReduceOp::kSum)[0], mean = reduced(ReduceOp::kMean)[1];
  EXPECT_TRUE(sum.bit_equal(Tensor::from(Shape{4, 1}, {6.F, 0.F, 0.F, 12.F})));
  EXPECT_TRUE(mean.bit_equal(Tensor::from(Shape{4, 1}, {3.F, 0.F, 0.F, 6.F})));
}

TEST(LocalResults, OfATensorIsTheTensor) {
  EXPECT_EQ(Strategy::local_results(Tensor::scalar(4.F))[0].item(), 4);
  EXPECT_EQ(Strategy::local_results(scalars({1, 2})).size(), 2U);
}

TEST(ScatterDiv, OfIntegersFailsBeforeTheCommit) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  const auto scope = strategy.scope();
  const Variable counts("counts", Tensor::from<std::int64_t>({3}, {10, 21, -7}),
                        {.aggregation = Aggregation::kOnlyFirstReplica});
  const auto divide = strategy.function({InputSpec(DType::kI64, {kUnknown}, "by")}, [=](Value by) {
    counts.scatter_div(constant(Tensor::from<std::int64_t>({2}, {1, 2})), by);
  });
  divide(Tensor::from<std::int64_t>({2}, {2, -2}));
  EXPECT_TRUE(counts.value().bit_equal(Tensor::from<std::int64_t>({3}, {10, 10, 3})));
  EXPECT_THAT(error_of([&] {
                divide(Tensor::from<std::int64_t>({2}, {2, 0}));
                divide.program().wait();
              }),
              AllOf(HasSubstr(on_gpus() ? "was refused its data" : "check_divisors: element 1 is 0"),
                    HasSubstr("meaning_test.cpp:")));
  EXPECT_TRUE(counts.value().bit_equal(Tensor::from<std::int64_t>({3}, {10, 10, 3})))
      << "nothing was committed";
}

TEST(Gathering, ValuesOfDifferentRankAreNamed) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  const auto scope = strategy.scope();
  const PerReplica<Tensor> ranks(std::vector<Tensor>{Tensor::scalar(1.F), vec({1, 2})});
  EXPECT_THAT(error_of([&] { strategy.gather(ranks, 0); }),
              AllOf(HasSubstr("f32[] on replica 0 and f32[2] on replica 1"), HasSubstr("gather()")));
}

// Of a wrong argument it is the call that is to be looked at.
TEST(Calls, OfFunctionsWithWrongValuesNameTheirLine) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  const auto f = strategy.function({kScalar}, [](const Value& x) { return x * 2.F; });
  const std::uint32_t line = SourceSite::current().line + 1;
  const std::string error = error_of([&] { f(PerReplica<Tensor>({vec({1, 2}), vec({1, 2})})); });
  EXPECT_THAT(error, AllOf(HasSubstr("expects f32[], got f32[2]; it was made at"), HasSubstr("called at "),
                           HasSubstr(str("tests/strategies/meaning_test.cpp:", line))));
}

TEST(Gradients, ThatDoNotExistNameTheNode) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  EXPECT_THAT(error_of([&] {
                strategy.function({kScalar}, [](const Value& x) {
                  return Value(gradients(all_reduce(ReduceOp::kMax, x), {x})[0]);
                });
              }),
              AllOf(HasSubstr("all_reduce of max has no gradient"), HasSubstr("node 'all_reduce'"),
                    HasSubstr("meaning_test.cpp:")));
}

}  // namespace
}  // namespace lockstep
