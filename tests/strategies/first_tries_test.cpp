// Tests: strategies/strategy.h, strategies/extended.cpp, strategies/trace/function.h, strategies/trace/nest.h,
//        strategies/trace/tracer.cpp, strategies/trace/replica_context.h
// What people type first: nests as arguments, variables as results, plain lambdas, operators on slots.
#include <array>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/build/regions.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/gradients.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/strategies/extended.h"
#include "lockstep/strategies/mirrored.h"
#include "lockstep/strategies/trace/building.h"
#include "support/strategy_test.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kScalar;
using testing::scalars;
using testing::test_device;
using testing::test_devices;
using testing::vec;

template <class T>
struct Batch {
  T images, labels;
  auto fields() { return std::tie(images, labels); }
  auto fields() const { return std::tie(images, labels); }
};

const InputSpec kOther(DType::kF32, Shape{}, "y"), kThird(DType::kF32, Shape{}, "z");

class FirstTries : public ::testing::Test {
 protected:
  MirroredStrategy strategy_{{.devices = test_devices(2)}};
};

// --- nests as arguments

TEST_F(FirstTries, RunTakesNestsAtOnce) {
  const auto product = strategy_.run([](const std::pair<Value, Value>& p) { return p.first * p.second; },
                                     std::pair(scalars({1, 2}), scalars({3, 4})));
  EXPECT_EQ(product[0].item(), 3);
  EXPECT_EQ(product[1].item(), 8);
  // Of different depth, beside a plain one; tensors that all replicas share; sizes that only the argument has.
  const std::map<std::string, std::vector<Tensor>> named = {
      {"a", {Tensor::scalar(1.F)}}, {"b", {Tensor::scalar(2.F), Tensor::scalar(3.F)}}};
  const auto total =
      strategy_.run([](const std::map<std::string, std::vector<Value>>& all,
                       Value x) { return std::pair(all.at("a")[0] + all.at("b")[0] * all.at("b")[1], x); },
                    named, scalars({5, 6}));
  EXPECT_EQ(total.first[1].item(), 7);
  EXPECT_EQ(total.second[1].item(), 6);
}

TEST_F(FirstTries, RunTakesNestsWhereAFunctionIsTraced) {
  const auto f = strategy_.cross_function(
      {kScalar, kOther}, [&](const PerReplica<Value>& x, const PerReplica<Value>& y) {
        return strategy_.run([](const Batch<Value>& batch) { return batch.images - batch.labels; },
                             Batch<PerReplica<Value>>{x, y});
      });
  EXPECT_EQ(f(scalars({5, 6}), scalars({1, 4}))[1].item(), 2);
}

TEST_F(FirstTries, FunctionsTakeNests) {
  const auto f = strategy_.function({kScalar, kOther, kThird},
                                    [](const Batch<Value>& batch, const std::array<Value, 1>& scale) {
                                      return (batch.images - batch.labels) * scale[0];
                                    });
  const Batch<PerReplica<Tensor>> batch{scalars({5, 6}), scalars({1, 4})};
  EXPECT_EQ(f(batch, std::array{Tensor::scalar(10.F)})[1].item(), 20);
  EXPECT_EQ(f(scalars({5, 6}), scalars({1, 4}), Tensor::scalar(10.F))[0].item(), 40);
  // All inputs as one list.
  const auto list =
      strategy_.function({kScalar, kOther}, [](std::vector<Value> all) { return all.at(0) + all.at(1); });
  EXPECT_EQ(list(scalars({1, 2}), scalars({3, 4}))[1].item(), 6);
  EXPECT_THAT(error_of([&] {
                strategy_.function({kScalar}, [](const std::pair<Value, Value>& p) { return p.first; });
              }),
              AllOf(HasSubstr("takes 2 values, got 1"), HasSubstr("first_tries_test.cpp:")));
}

TEST_F(FirstTries, MergeCallTakesNests) {
  const auto f = strategy_.function({kScalar}, [](Value x) {
    return replica_context().merge_call(
        [](Strategy& s, const Batch<PerReplica<Value>>& batch, const PerReplica<Value>& id) {
          return std::pair(s.reduce(ReduceOp::kSum, batch.images) + s.reduce(ReduceOp::kMax, batch.labels),
                           id);
        },
        Batch<Value>{x, x * 2.F}, replica_context().replica_id());
  });
  const auto [sum, id] = f(scalars({1, 2}));
  EXPECT_EQ(sum[0].item(), 7);
  EXPECT_EQ(id[1].item(), 1);
}

// --- results

TEST_F(FirstTries, AVariableAsResultIsRead) {
  const auto scope = strategy_.scope();
  const Variable w("w", Tensor::scalar(3.F)), v("v", Tensor::scalar(4.F));
  const auto f = strategy_.function({kScalar}, [=](Value) { return w; });
  EXPECT_EQ(f(scalars({1, 2}))[1].item(), 3);
  const auto both = strategy_.function({kScalar}, [=](Value x) { return std::pair(x, std::vector{v, w}); });
  EXPECT_EQ(both(scalars({1, 2})).second[0][1].item(), 4);
  EXPECT_EQ(strategy_.run([=] { return w; })[0].computed().item(), 3);
}

// --- update()

TEST_F(FirstTries, UpdateTakesAPlainLambda) {
  const auto scope = strategy_.scope();
  const Variable w("w", Tensor::scalar(3.F));
  const auto f = strategy_.cross_function({kScalar}, [&](const PerReplica<Value>& x) {
    const Value sum = strategy_.reduce(ReduceOp::kSum, x);
    strategy_.update(
        w, [](const Variable& copy, Value by) { return copy.assign_add(by); }, sum);
    strategy_.update(
        w, [](const Variable& copy, Value by, Value less) { copy.assign_add(by - less); }, sum, sum);
    return strategy_.update(w, [](const Variable& copy) { copy.assign(copy.read() * 2.F); });
  });
  EXPECT_EQ(f(scalars({1, 2}))[1].item(), 12);
  EXPECT_EQ(w.value().item(), 12);
  EXPECT_THAT(error_of([&] {
                strategy_.cross_function({kScalar}, [&](const PerReplica<Value>& x) {
                  strategy_.update(
                      w, [](const Variable& copy, Value by) { copy.assign_add(by); }, x);
                });
              }),
              AllOf(HasSubstr("argument 1"), HasSubstr("first_tries_test.cpp:")));
}

// --- operators on slots

TEST_F(FirstTries, OperatorsWorkSlotBySlot) {
  const auto scope = strategy_.scope();
  const Variable w("w", Tensor::scalar(10.F));
  const auto f = strategy_.cross_function({kScalar, InputSpec(DType::kF32, {}, "s", true)},
                                          [&](const PerReplica<Value>& x, const PerReplica<Value>& s) {
                                            const PerReplica<Value> y = -(x + x * 2.F) / 3 - s;
                                            EXPECT_EQ(y.kind(), ReplicaKind::kPerReplica);
                                            EXPECT_EQ((s + s).kind(), ReplicaKind::kSingle);
                                            const Value mean = strategy_.reduce(ReduceOp::kMean, x);
                                            EXPECT_EQ((1 - y + mean).kind(), ReplicaKind::kPerReplica);
                                            return std::tuple(y, s + s, y + mean, w * y);
                                          });
  const auto [y, single, shifted, scaled] = f(scalars({1, 2}), Tensor::scalar(5.F));
  EXPECT_EQ(y[0].item(), -6);
  EXPECT_EQ(y[1].item(), -7);
  EXPECT_EQ(single[0].item(), 10);
  EXPECT_EQ(single.kind(), ReplicaKind::kSingle);
  EXPECT_EQ(shifted[1].item(), -5.5);
  EXPECT_EQ(scaled[1].item(), -70);
}

TEST_F(FirstTries, OperatorsOnSlotsSayWhereTheyStand) {
  EXPECT_THAT(error_of([&] {
                strategy_.cross_function(
                    {InputSpec(DType::kF32, {2}, "x"), InputSpec(DType::kF32, {3}, "y")},
                    [](const PerReplica<Value>& x, const PerReplica<Value>& y) { return x + y; });
              }),
              HasSubstr("first_tries_test.cpp:"));
  EXPECT_THAT(error_of([] { (void)(PerReplica<Value>() + 1); }),
              AllOf(HasSubstr("where a function is traced"), HasSubstr("first_tries_test.cpp:")));
}

// --- pooling

TEST(FirstPooling, StridesAreAListInBraces) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {1, 5, 5, 1});
  EXPECT_EQ(max_pool(x, {3, 3}, {.strides = {2, 2}}).shape(), (Shape{1, 2, 2, 1}));
  EXPECT_EQ(avg_pool(x, {2, 2}).shape(), (Shape{1, 2, 2, 1}));
  EXPECT_THAT(error_of([&] { max_pool(x, {2, 2}, {.strides = {0, 2}}); }), HasSubstr("stride"));
}

// --- slices over replicas

TEST_F(FirstTries, SlicesAreReducedToDestinations) {
  const InputSpec rows(DType::kF32, {kUnknown, 2}, "rows"), indices(DType::kI64, {kUnknown}, "indices");
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
    const auto f = strategy_.function({rows, indices}, [&](Value values, Value places) {
      const IndexedSlices mine{places, values, constant(Tensor::from<std::int64_t>({2}, {4, 2}))};
      return replica_context().merge_call(
          [&](Strategy& s, const extended::ReplicaSlices& slices) {
            const extended::ReplicaSlices one = extended::reduce_to(s, op, slices, test_device(1));
            const std::vector<std::pair<extended::ReplicaSlices, extended::Destinations>> batch = {
                {slices, test_device(0)}, {slices, slices.values}};
            const auto several = extended::batch_reduce_to(s, op, batch);
            EXPECT_EQ(several.at(1).values.kind(), ReplicaKind::kMirrored);
            return std::pair(one, several.at(1));
          },
          mine);
    });
    const PerReplica<Tensor> values(
        std::vector{Tensor::from<float>({1, 2}, {1, 2}), Tensor::from<float>({2, 2}, {3, 4, 5, 6})});
    const PerReplica<Tensor> places(
        std::vector{Tensor::from<std::int64_t>({1}, {3}), Tensor::from<std::int64_t>({2}, {0, 3})});
    const auto [one, all] = f(values, places);
    const float scale = op == ReduceOp::kMean ? 0.5F : 1.F;
    EXPECT_TRUE(one.values[0].bit_equal(
        Tensor::from<float>({3, 2}, {1 * scale, 2 * scale, 3 * scale, 4 * scale, 5 * scale, 6 * scale})));
    EXPECT_TRUE(one.indices[0].bit_equal(Tensor::from<std::int64_t>({3}, {3, 0, 3})));
    EXPECT_TRUE(all.values[1].bit_equal(one.values[0]));
  }
  EXPECT_THAT(error_of([&] {
                strategy_.function({rows, indices}, [](Value values, Value places) {
                  replica_context().merge_call(
                      [](Strategy& s, const extended::ReplicaSlices& slices) {
                        extended::reduce_to(s, ReduceOp::kMax, slices, test_device(0));
                      },
                      IndexedSlices{places, values, constant(Tensor::from<std::int64_t>({2}, {4, 2}))});
                });
              }),
              AllOf(HasSubstr("takes sum or mean"), HasSubstr("first_tries_test.cpp:")));
}

// --- free collectives

TEST_F(FirstTries, MeansOfIntegersAreF64) {
  const InputSpec ints(DType::kI32, {}, "x");
  const PerReplica<Tensor> x(std::vector{Tensor::scalar(std::int32_t{1}), Tensor::scalar(std::int32_t{2})});
  auto f = strategy_.function({ints}, [](Value v) {
    const Value both[] = {v, v};
    return std::tuple(all_reduce(ReduceOp::kMean, v), all_reduce(ReduceOp::kMean, both)[1],
                      replica_context().all_reduce(ReduceOp::kMean, v));
  });
  const auto [one, listed, context] = f(x);
  for (const PerReplica<Tensor>* mean : {&one, &listed, &context}) {
    EXPECT_EQ((*mean)[0].dtype(), DType::kF64);
    EXPECT_EQ((*mean)[1].item(), 1.5);
  }
}

TEST_F(FirstTries, SlicesAreReducedByEveryAllReduce) {
  const InputSpec rows(DType::kI64, {kUnknown}, "rows");
  const auto vector = [](std::vector<std::int64_t> v) {
    return Tensor::from<std::int64_t>({static_cast<std::int64_t>(v.size())}, v);
  };
  const PerReplica<Tensor> x(std::vector{vector({1}), vector({2, 5})});
  for (const bool free : {true, false}) {
    const auto reduced = [&](ReduceOp op) {
      auto f = strategy_.function({rows}, [&](Value v) {
        const IndexedSlices mine{v, v, {}};
        const IndexedSlices all = free ? all_reduce(op, mine) : replica_context().all_reduce(op, mine);
        return std::pair(all.values, all.indices);
      });
      return f(x);
    };
    const auto [sums, places] = reduced(ReduceOp::kSum);
    EXPECT_TRUE(sums[1].bit_equal(vector({1, 2, 5})));
    EXPECT_TRUE(places[0].bit_equal(vector({1, 2, 5})));
    EXPECT_TRUE(reduced(ReduceOp::kMean).first[0].bit_equal(Tensor::from<double>({3}, {0.5, 1, 2.5})));
    EXPECT_THAT(error_of([&] { reduced(ReduceOp::kMax); }),
                AllOf(HasSubstr("takes sum or mean"), HasSubstr("first_tries_test.cpp:")));
  }
}

TEST_F(FirstTries, GatherTakesWhatRunGaveWithoutArguments) {
  const Tensor ids =
      strategy_.gather(strategy_.run([] { return reshape(replica_context().replica_id(), Shape{1}); }), 0);
  EXPECT_EQ(ids.num_elements(), 2);
}

// --- errors of calls

TEST_F(FirstTries, CallsOfFunctionsCarryTheCallersLine) {
  auto f = strategy_.function({kScalar, kOther}, [](Value x, Value y) { return x + y; });
  const auto at = [](std::uint32_t line) { return HasSubstr(str("first_tries_test.cpp:", line)); };
  std::uint32_t line = SourceSite::current().line + 1;
  const std::string too_few = error_of([&] { f(scalars({1, 2})); });
  EXPECT_THAT(too_few, AllOf(HasSubstr("takes 2 values, got 1"), at(line)));
  line = SourceSite::current().line + 1;
  const std::string slots = error_of([&] { f(scalars({1, 2, 3}), scalars({1, 2})); });
  EXPECT_THAT(slots, AllOf(HasSubstr("has 3 slots for 2 replicas"), at(line)));
  const std::vector<PerReplica<Tensor>> one = {scalars({1, 2})};
  line = SourceSite::current().line + 1;
  const std::string listed = error_of([&] { f.call(one); });
  EXPECT_THAT(listed, AllOf(HasSubstr("takes 2 values, got 1"), at(line)));
  line = SourceSite::current().line + 1;
  const std::string at_once = error_of([&] { strategy_.run([](Value x) { return x; }, scalars({1})); });
  EXPECT_THAT(at_once, AllOf(HasSubstr("has 1 slot for 2 replicas"), at(line)));
  line = SourceSite::current().line + 1;
  const std::string op = error_of([&] { strategy_.reduce("median", scalars({1, 2})); });
  EXPECT_THAT(op, AllOf(HasSubstr("'median' is no way to reduce"), at(line)));
}

TEST_F(FirstTries, VariablesOfAnotherStrategyAreNamedWithTheirLine) {
  MirroredStrategy other({.devices = test_devices(2)});
  std::uint32_t line = 0;
  const Variable foreign = [&] {
    const auto scope = other.scope();
    line = SourceSite::current().line + 1;
    return Variable("foreign", Tensor::scalar(1.F));
  }();
  EXPECT_THAT(error_of([&] {
                strategy_.function({kScalar}, [&](Value x) { Sgd(0.1).minimize(x * 2.F, {foreign}); });
              }),
              AllOf(HasSubstr("mixes strategies"), HasSubstr(str("first_tries_test.cpp:", line))));
}

// --- row counts

TEST_F(FirstTries, RowCountsAddUpForEvenAndUnevenSlices) {
  const auto rows = [](std::int64_t n) { return Tensor::full(DType::kF32, {n, 2}, 1); };
  for (const std::int64_t second : {3, 1}) {
    const PerReplica<Tensor> x(std::vector{rows(3), rows(second)});
    const auto sum_of = [&](auto count) {
      return strategy_.reduce(ReduceOp::kSum, strategy_.run(count, x)).item();
    };
    EXPECT_EQ(sum_of([](Value v) { return num_elements(v, {0}); }), 3 + second);
    EXPECT_EQ(sum_of([](Value v) { return sum(cast(ones_like(v), DType::kI64)); }), 2 * (3 + second));
    EXPECT_EQ(sum_of([](Value v) { return sum(cast(zeros_like(v), DType::kI64) + 1); }), 2 * (3 + second));
    EXPECT_EQ(sum_of([](Value v) { return gather(shape_of(v), constant(std::int64_t{0})); }), 3 + second);
    // In the code of a replica.
    EXPECT_EQ(strategy_.run([](Value v) { return global_count(v); }, x)[0].item(), 2 * (3 + second));
  }
}

// --- errors

TEST_F(FirstTries, RowsThatDoNotFitAreCountedReplicaByReplica) {
  const auto scope = strategy_.scope();
  const Variable table("table", Tensor::zeros({4, 2}), {.aggregation = Aggregation::kSum});
  const InputSpec rows(DType::kF32, {kUnknown, 2}, "rows"), indices(DType::kI64, {kUnknown}, "indices");
  const auto f = strategy_.function({rows, indices},
                                    [&](Value values, Value places) { table.scatter_add(places, values); });
  const auto row = [](std::int64_t n) { return Tensor::full(DType::kF32, {n, 2}, 1); };
  const auto index = [](std::int64_t n) { return Tensor::full(DType::kI64, {n}, 1); };
  // As many in all, which is not enough.
  const PerReplica<Tensor> values(std::vector{row(1), row(2)}), places(std::vector{index(2), index(1)});
  EXPECT_THAT(error_of([&] { f(values, places); }),
              AllOf(HasSubstr("got 2 indices for 1 row"), HasSubstr("first_tries_test.cpp:")));
  EXPECT_TRUE(table.value().bit_equal(Tensor::zeros({4, 2})));
  f(values, PerReplica<Tensor>(std::vector{index(1), index(2)}));
  EXPECT_TRUE(table.value().bit_equal(Tensor::from<float>({4, 2}, {0, 0, 3, 3, 0, 0, 0, 0})));
}

TEST_F(FirstTries, AnInputThatReadsAVariableIsMadeWhereTheVariableIs) {
  const auto scope = strategy_.scope();
  const Variable w("w", Tensor::zeros({3, 2}));
  const std::string line = str("'w/read' f32[3,2] made at ", SourceSite::current().file, ":", __LINE__ - 1);
  EXPECT_THAT(error_of([&] {
                strategy_.function({InputSpec(DType::kF32, {kUnknown, 2}, "x")},
                                   [&](Value x) { return matmul(x, w); });
              }),
              HasSubstr(line));
}

TEST_F(FirstTries, AJointBranchNamesWhatJoinsIt) {
  const auto branch_on = [&](const InputSpec& flag) {
    return strategy_.function({kScalar, flag}, [](Value x, Value take) {
      return cond(
          take,
          [&] {
            return std::vector{replica_context().merge_call(
                [](Strategy& s, const PerReplica<Value>& all) { return s.reduce(ReduceOp::kSum, all); }, x)};
          },
          [&] { return std::vector{x}; })[0];
    });
  };
  EXPECT_THAT(error_of([&] { branch_on(InputSpec(DType::kBool, {}, "take")); }),
              AllOf(HasSubstr("because of merge_call 'merge_call' in it"), HasSubstr("InputSpec::shared")));
  const auto f = branch_on(InputSpec(DType::kBool, {}, "take", true));
  EXPECT_EQ(f(scalars({1, 2}), Tensor::scalar(true))[0].item(), 3);
  EXPECT_EQ(f(scalars({1, 2}), Tensor::scalar(false))[1].item(), 2);
}

// --- a rule of ordinary nodes

class PlainRule final : public OptimizerRule {
 public:
  NodeId update(const VariableUpdate& update) const override {
    const Value g = all_reduce(ReduceOp::kSum, to_dense(update.gradient()));
    const Value step = g * cast(-update.learning_rate(), g.dtype());
    line = __LINE__ + 1;
    return update.builder().assign_add(update.variable(), step).id().node;
  }
  mutable int line = 0;
};

TEST_F(FirstTries, ARuleOfOrdinaryNodesTrainsAsSgdDoes) {
  const auto scope = strategy_.scope();
  const auto rule = std::make_shared<PlainRule>();
  const Variable a("a", Tensor::scalar(3.F)), b("b", Tensor::scalar(3.F));
  const auto f = strategy_.function({kScalar}, [&](Value x) {
    Optimizer("mine", 0.25, rule).minimize(global_mean(square(x - a)), {a});
    Sgd(0.25).minimize(global_mean(square(x - b)), {b});
  });
  for (int i = 0; i < 3; ++i) f(scalars({1, 2}));
  EXPECT_TRUE(a.value().bit_equal(b.value()));
  EXPECT_NE(a.value().item(), 3);
  // Its nodes carry its lines.
  const Graph& step = f.step_graph();
  bool found = false;
  for (const Node& outer : step.nodes()) {
    for (const Graph& region : outer.regions()) {
      for (const Node& node : region.nodes())
        found |= node.op().name == "assign_add" && node.site().line == static_cast<std::uint32_t>(rule->line);
    }
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace lockstep
