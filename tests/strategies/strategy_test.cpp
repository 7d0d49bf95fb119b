// Tests: strategies/mirrored.cpp, strategies/one_device.cpp, strategies/strategy.cpp,
//        strategies/trace/result_kinds.cpp, strategies/trace/step.cpp, strategies/trace/tracer.cpp
#include "lockstep/strategies/strategy.h"

#include <array>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/graph/transform/pass_registry.h"
#include "lockstep/strategies/mirrored.h"
#include "lockstep/strategies/one_device.h"
#include "lockstep/strategies/trace/building.h"
#include "support/strategy_test.h"

namespace lockstep {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::kScalar;
using testing::kVector;
using testing::scalars;
using testing::test_devices;
using testing::vec;

TEST(Strategy, RunsAFunctionOncePerReplica) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  int traces = 0;
  const auto twice = strategy.function({kVector}, [&traces](Value x) {
    ++traces;
    return x * 2.F;
  });
  const PerReplica<Tensor> y = twice(PerReplica<Tensor>({vec({1, 2}), vec({3})}));
  EXPECT_EQ(traces, 1);
  ASSERT_EQ(y.size(), 2U);
  EXPECT_EQ(y.kind(), ReplicaKind::kPerReplica);
  EXPECT_TRUE(y[0].bit_equal(vec({2, 4})));
  EXPECT_TRUE(y[1].bit_equal(vec({6})));
}

TEST(Strategy, GivesWhatDependsOnNoReplicaOnce) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  const auto f = strategy.function({kVector}, [](Value x) {
    const Value seven = x.builder().constant(7.F);
    return std::tuple(seven, sum(x), replica_context().all_reduce(ReduceOp::kSum, sum(x)));
  });
  const auto [seven, own, all] = f(PerReplica<Tensor>({vec({1, 2}), vec({3})}));
  EXPECT_EQ(seven.kind(), ReplicaKind::kSingle);
  EXPECT_EQ(Strategy::local_results(seven).size(), 1U);
  EXPECT_EQ(own.kind(), ReplicaKind::kPerReplica);
  EXPECT_EQ(all.kind(), ReplicaKind::kMirrored);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].item(), 6);
  EXPECT_EQ(all[1].item(), 6);
}

template <class T>
struct Metrics {
  T loss, count;
  auto fields() { return std::tie(loss, count); }
  auto fields() const { return std::tie(loss, count); }
};

TEST(Strategy, GivesNestsBack) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  const auto f = strategy.function({kVector}, [](Value x) {
    return std::map<std::string, std::vector<Metrics<Value>>>{{"a", {{sum(x), x}, {mean(x), x}}}, {"b", {}}};
  });
  const auto out = f(PerReplica<Tensor>({vec({1, 2}), vec({3, 5})}));
  EXPECT_EQ(out.at("a")[0].loss[1].item(), 8);
  EXPECT_EQ(out.at("a")[1].loss[0].item(), 1.5);
  EXPECT_TRUE(out.at("b").empty());

  const auto moments = strategy.function({kVector}, [](Value x) {
    return std::array{std::pair(sum(x), x), std::pair(mean(x), x)};
  });
  const auto [first, second] = moments(PerReplica<Tensor>({vec({1, 2}), vec({3, 5})}));
  EXPECT_EQ(first.first[1].item(), 8);
  EXPECT_EQ(second.first[0].item(), 1.5);
}

TEST(Strategy, ReducesOverReplicasAndRows) {
  MirroredStrategy strategy({.devices = test_devices(3)});
  const PerReplica<Tensor> rows({vec({1, 2, 3}), vec({4}), Tensor::zeros({0})});
  EXPECT_EQ(strategy.reduce(ReduceOp::kSum, rows, 0).item(), 10);
  EXPECT_EQ(strategy.reduce(ReduceOp::kMean, rows, 0).item(), 2.5);
  EXPECT_EQ(strategy.reduce(ReduceOp::kMean, rows, -1).item(), 2.5);
  const PerReplica<Tensor> integers({Tensor::scalar(1), Tensor::scalar(2), Tensor::scalar(4)});
  EXPECT_EQ(strategy.reduce(ReduceOp::kSum, integers).item(), 7);
  EXPECT_TRUE(is_floating(strategy.reduce(ReduceOp::kMean, integers).dtype()));
  EXPECT_NEAR(strategy.reduce(ReduceOp::kMean, integers).item(), 7. / 3, 1e-12);
  EXPECT_EQ(strategy.reduce(ReduceOp::kMax, integers).item(), 4);
  EXPECT_EQ(strategy.reduce(ReduceOp::kMean, PerReplica<Tensor>(Tensor::scalar(3))).item(), 3);
  EXPECT_THAT(error_of([&] { strategy.reduce(ReduceOp::kSum, PerReplica<Tensor>(Tensor::scalar(3))); }),
              HasSubstr("cannot be summed over replicas"));
  EXPECT_THAT(error_of([&] { strategy.reduce(ReduceOp::kSum, strategy.broadcast(vec({1}))); }),
              HasSubstr("mirrored value cannot be summed"));
  EXPECT_THAT(error_of([&] { strategy.reduce(ReduceOp::kMean, rows, 1); }), HasSubstr("out of range"));
}

// Equal values are stored once: whoever writes into a slot of a mirrored value writes into all. What a caller
// broadcasts stays the caller's.
TEST(Strategy, SlotsOfAMirroredValueShareOneBuffer) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  Tensor mine = vec({1, 2});
  const PerReplica<Tensor> everywhere = strategy.broadcast(mine);
  mine.data<float>()[0] = 9;
  EXPECT_EQ(everywhere[0].data<float>()[0], 1);
  Tensor slot = everywhere[0];
  slot.data<float>()[1] = 5;
  EXPECT_EQ(everywhere[1].data<float>()[1], 5);
  const auto f = strategy.function(
      {kVector}, [](Value x) { return std::pair(replica_context().all_reduce(ReduceOp::kSum, x), x + 1.F); });
  const auto [all, own] = f(PerReplica<Tensor>({vec({1}), vec({2})}));
  EXPECT_EQ(all[0].raw(), all[1].raw());
  EXPECT_NE(own[0].raw(), own[1].raw());
  EXPECT_THAT(error_of([&] { strategy.broadcast(Tensor()); }), HasSubstr("broadcast(): the tensor is empty"));
}

TEST(Strategy, RefusesDevicesItCannotUse) {
  if (testing::on_gpus()) GTEST_SKIP() << "of a machine without GPUs";
  EXPECT_THAT(error_of([] { MirroredStrategy({.devices = std::vector<std::string>()}); }),
              HasSubstr("must not be empty"));
  EXPECT_THAT(error_of([] {
                MirroredStrategy({.devices = {"cpu:0", "/device:CPU:0"}});
              }),
              HasSubstr("listed twice"));
  EXPECT_THAT(error_of([] { MirroredStrategy({.devices = {"gpu:0"}}); }), HasSubstr("gpu:0"));
}

TEST(StrategyScope, HasRules) {
  MirroredStrategy one({.devices = test_devices(2)}), other({.devices = test_devices(2)});
  EXPECT_FALSE(has_strategy());
  {
    auto scope = one.scope();
    auto again = one.scope();
    EXPECT_EQ(current_strategy(), &one);
    EXPECT_TRUE(in_cross_replica_context());
    EXPECT_THAT(error_of([&] { auto wrong = other.scope(); }), HasSubstr("mixes strategies"));
    EXPECT_THAT(error_of([&] { other.reduce(ReduceOp::kSum, vec({1})); }), HasSubstr("mixes strategies"));
    EXPECT_THAT(error_of([] { replica_context(); }), HasSubstr("requires replica context"));
  }
  EXPECT_FALSE(has_strategy());
  std::optional<ReplicaContext> kept;
  one.function({kVector}, [&](Value x) {
    kept = replica_context();
    EXPECT_TRUE(in_replica_context());
    EXPECT_THAT(error_of([&] { one.reduce(ReduceOp::kSum, PerReplica<Value>(x)); }),
                HasSubstr("requires cross-replica context"));
    EXPECT_THAT(error_of([&] { auto wrong = one.scope(); }), HasSubstr("requires cross-replica context"));
    return x;
  });
  one.function({kVector}, [&](Value x) {
    EXPECT_THAT(error_of([&] { kept->all_reduce(ReduceOp::kSum, x); }),
                HasSubstr("belongs to another function"));
    return x;
  });
  EXPECT_THAT(error_of([&] { kept->replica_id(); }), HasSubstr("requires replica context"));
}

TEST(StrategyMergeCall, SeesAllReplicas) {
  MirroredStrategy strategy({.devices = test_devices(3)});
  int merges = 0;
  const auto f = strategy.function({kVector}, [&](Value x) {
    return replica_context().merge_call(
        [&](Strategy& s, const PerReplica<Value>& v) {
          ++merges;
          EXPECT_TRUE(in_cross_replica_context());
          return std::pair(s.reduce(ReduceOp::kSum, v), PerReplica<Value>({v[2], v[0], v[1]}));
        },
        x);
  });
  const auto [total, turned] = f(PerReplica<Tensor>({vec({1}), vec({2}), vec({4})}));
  EXPECT_EQ(merges, 1);
  EXPECT_EQ(total[0].item(), 7);
  EXPECT_EQ(turned[0].item(), 4);
  EXPECT_EQ(turned[1].item(), 1);
  EXPECT_EQ(turned[2].item(), 2);
  EXPECT_THAT(error_of([&] {
                strategy.function({kVector}, [](Value x) {
                  return replica_context().merge_call(
                      [&](Strategy&, const PerReplica<Value>&) { return x * 2.F; }, x);
                });
              }),
              HasSubstr("hand it over as an argument"));
}

TEST(StrategyVariable, IsMirroredAndTrained) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(1.F));
  const Sgd sgd(0.5F);
  const auto train = strategy.function({kVector}, [=](Value x) {
    const Value loss = global_mean(square(x * w));
    sgd.minimize(loss, {w});
    return loss;
  });
  const PerReplica<Tensor> loss = train(PerReplica<Tensor>({vec({1, 2, 3}), vec({2})}));
  EXPECT_FLOAT_EQ(static_cast<float>(strategy.reduce(ReduceOp::kSum, loss).item()), 4.5F);
  // d/dw mean(x^2 w^2) = 2 w mean(x^2) = 9
  EXPECT_FLOAT_EQ(static_cast<float>(w.value().item()), 1 - 0.5F * 9);
  for (const Tensor& copy : w.copies()) EXPECT_TRUE(copy.bit_equal(w.value()));
}

TEST(StrategyVariable, AggregatesWhatReplicasAssign) {
  for (const bool share : {true, false}) {
    MirroredStrategy strategy({.devices = test_devices(2), .share_mirrored = share});
    auto scope = strategy.scope();
    const Variable total("total", Tensor::scalar(1.F), {.aggregation = Aggregation::kSum});
    const Variable average("average", Tensor::scalar(5.F), {.aggregation = Aggregation::kMean});
    const Variable first("first", Tensor::scalar(0.F), {.aggregation = Aggregation::kOnlyFirstReplica});
    const Variable none("none", Tensor::scalar(0.F));
    const auto f = strategy.function({kScalar}, [=](Value x) {
      total.assign_add(x);
      average.assign_sub(x);
      first.assign(x);
    });
    f(scalars({0, 1}));
    EXPECT_EQ(total.value().item(), 2);
    EXPECT_EQ(average.value().item(), 4.5);  // 5 - mean(0, 1)
    EXPECT_EQ(first.value().item(), 0);
    EXPECT_THAT(error_of([&] { strategy.function({kScalar}, [=](Value x) { none.assign(x); }); }),
                HasSubstr("You must specify an aggregation method"));
    EXPECT_THAT(error_of([&] { strategy.function({}, [=] { total.assign(constant(1.F)); }); }),
                HasSubstr("same on all replicas"));
  }
}

TEST(StrategyVariable, OnReadIsEachReplicasOwn) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  auto scope = strategy.scope();
  const Variable seen("seen", Tensor::scalar(0.F),
                      {.synchronization = Synchronization::kOnRead, .aggregation = Aggregation::kSum});
  EXPECT_FALSE(seen.trainable());
  const auto f = strategy.function({kScalar}, [=](Value x) { return seen.assign_add(x); });
  const PerReplica<Tensor> own = f(scalars({2, 3}));
  EXPECT_EQ(own[0].item(), 2);
  EXPECT_EQ(own[1].item(), 3);
  EXPECT_EQ(seen.value().item(), 5);
  seen.assign(Tensor::scalar(8.F));
  EXPECT_EQ(seen.copies()[0].item(), 4);
  EXPECT_EQ(seen.copies()[1].item(), 4);
  EXPECT_THAT(error_of([&] { seen.assign_add(Tensor::scalar(1.F)); }),
              HasSubstr("do not support assign_add"));
}

// Slots follow their variable.
TEST(StrategyVariable, OnReadIsTrainedWithSlotsOfItsOwn) {
  for (const bool share : {true, false}) {
    MirroredStrategy strategy({.devices = test_devices(2), .share_mirrored = share});
    auto scope = strategy.scope();
    const VariableOptions options{
        .synchronization = Synchronization::kOnRead, .aggregation = Aggregation::kMean, .trainable = true};
    const Variable own("own", Tensor::scalar(1.F), options), other("other", Tensor::scalar(1.F), options);
    const Momentum momentum(0.5, 0.5);
    const Adam adam(0.5);
    const auto step = strategy.function({kScalar}, [=](Value x) {
      momentum.minimize(x * own, {own});
      adam.minimize(x * other, {other});
    });
    const VariableDecl* slot = step.step_graph().find_variable("own/momentum/velocity");
    ASSERT_NE(slot, nullptr);
    EXPECT_EQ(slot->synchronization, Synchronization::kOnRead);
    EXPECT_EQ(slot->aggregation, Aggregation::kMean);
    EXPECT_FALSE(slot->trainable);
    step(scalars({2, -4}));
    step(scalars({2, -4}));
    for (std::size_t r = 0; r < 2; ++r) {
      const double x = r == 0 ? 2 : -4;
      const double first = x, second = 0.5 * first + x;  // velocities
      EXPECT_EQ(own.copies()[r].item(), 1 - 0.5 * (first + second)) << r;
      // Two steps of the rate, each its way.
      EXPECT_NEAR(other.copies()[r].item(), r == 0 ? 0 : 2, 1e-5) << r;
      const std::string velocity = copy_name("own/momentum/velocity", static_cast<std::int64_t>(r));
      EXPECT_EQ(strategy.variables().value(velocity).item(), second) << r;
    }
  }
}

TEST(StrategyVariable, IsReadAndWrittenAcrossReplicas) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(1.F));
  const Variable seen("seen", Tensor::scalar(3.F),
                      {.synchronization = Synchronization::kOnRead, .aggregation = Aggregation::kSum});
  const auto f = strategy.cross_function({kScalar}, [&](const PerReplica<Value>& x) {
    const PerReplica<Value> y = strategy.run([=](Value v) { return v * w; }, x);
    const Value total = strategy.reduce(ReduceOp::kSum, y);
    w.assign(total);
    return std::pair(total, seen.read());
  });
  const auto [total, all] = f(scalars({2, 3}));
  EXPECT_EQ(total[0].item(), 5);
  EXPECT_EQ(all[0].item(), 6);
  EXPECT_EQ(w.value().item(), 5);
  for (const Tensor& copy : w.copies()) EXPECT_EQ(copy.item(), 5);
}

TEST(StrategyVariable, UpdateRunsOnEveryCopy) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(1.F));
  const auto f = strategy.function({kScalar}, [&](Value x) {
    replica_context().merge_call(
        [&](Strategy& s, const PerReplica<Value>& v) {
          const PerReplica<Value> sum(s.reduce(ReduceOp::kSum, v));
          return s.update(
              w, [](const Variable& copy, std::span<const Value> in) { return copy.assign_add(in[0]); },
              {&sum, 1});
        },
        x);
  });
  f(scalars({2, 3}));
  for (const Tensor& copy : w.copies()) EXPECT_EQ(copy.item(), 6);
}

TEST(StrategyMergeCall, IsKeptInOrderWhereItGivesNothing) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(1.F));
  const auto f = strategy.function({kScalar}, [&](Value x) {
    const Value before = identity(w);
    replica_context().merge_call(
        [&](Strategy& s, const PerReplica<Value>& v) { w.assign(s.reduce(ReduceOp::kSum, v)); }, x);
    return std::pair(before, identity(w));
  });
  const auto [before, after] = f(scalars({2, 3}));
  EXPECT_EQ(before[0].item(), 1);
  EXPECT_EQ(after[0].item(), 5);
  for (const Tensor& copy : w.copies()) EXPECT_EQ(copy.item(), 5);
}

// What is reduced and then handed to update() is final: it is not summed once more.
TEST(StrategyVariable, UpdateAppliesReducedGradientsOnce) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(1.F));
  const Sgd sgd(0.5);
  const auto f = strategy.function({kScalar}, [&](Value x) {
    replica_context().merge_call(
        [&](Strategy& s, const PerReplica<Value>& g) {
          const PerReplica<Value> total(s.reduce(ReduceOp::kSum, g));
          s.update(w,
                   [&](const Variable& copy, std::span<const Value> in) {
                     sgd.apply_gradients({{in[0], static_cast<VariableRef>(copy)}});
                     return in[0];
                   },
                   {&total, 1});
        },
        x);
  });
  f(scalars({2, 4}));
  EXPECT_EQ(w.value().item(), 1 - 0.5 * 6);
}

// A value that replicas make together on the way forward leaves gradients shares, equal ones too.
TEST(StrategyVariable, GradientsBehindForwardCollectivesAreSummed) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(1.F)), v("v", Tensor::scalar(1.F));
  const Sgd sgd(0.5);
  const auto f = strategy.function({kVector}, [=](Value x) {
    const ReplicaContext replica = replica_context();
    const Value m = replica.all_reduce(ReduceOp::kMean, mean(x));
    const Value share = square(m * w - 1.F) / 2.F;
    sgd.minimize(share, {w});
    // What the user has reduced is left alone.
    const Value g = gradients(square(m * v - 1.F) / 2.F, {static_cast<VariableRef>(v)})[0];
    sgd.apply_gradients({{replica.all_reduce(ReduceOp::kSum, g), static_cast<VariableRef>(v)}});
    return share;
  });
  f(PerReplica<Tensor>({vec({1}), vec({3})}));
  // m = 2, and the whole loss is (m w - 1)^2: 2 (m w - 1) m = 4.
  EXPECT_EQ(w.value().item(), 1 - 0.5 * 4);
  EXPECT_EQ(v.value().item(), 1 - 0.5 * 4);
}

TEST(Strategy, RefusesResultsWithTheWrongNumberOfSlots) {
  MirroredStrategy strategy({.devices = test_devices(3)});
  EXPECT_THAT(error_of([&] {
                strategy.cross_function({kVector}, [](const PerReplica<Value>& x) {
                  return PerReplica<Value>({x[0], x[1]});
                });
              }),
              HasSubstr("2 slots for 3 replicas"));
  EXPECT_THAT(error_of([&] {
                strategy.reduce(ReduceOp::kSum, PerReplica<Tensor>({vec({1}), vec({2})}));
              }),
              HasSubstr("2 slots for 3 replicas"));
  EXPECT_THAT(error_of([] { MirroredStrategy({.devices = test_devices(2), .num_packs = -1}); }),
              HasSubstr("num_packs"));
}

TEST(StrategyRun, AtOnce) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  const PerReplica<Tensor> y =
      strategy.run([](Value x) { return x + 1.F; }, PerReplica<Tensor>({vec({1}), vec({2})}));
  EXPECT_EQ(y[0].item(), 2);
  EXPECT_EQ(y[1].item(), 3);
}

TEST(OneDevice, PlacesItsNodes) {
  OneDeviceStrategy strategy("cpu:3");
  const auto f =
      strategy.function({kVector}, [](Value x) { return matmul(expand_dims(x, 0), expand_dims(x, 1)); });
  for (const Node& node : f.replicated_graph().nodes()) {
    if (node.op().name == "matmul") {
      EXPECT_EQ(node.device(), "cpu:3");
    }
  }
}

TEST(OneDevice, RunsTheSameCode) {
  OneDeviceStrategy strategy;
  auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(1.F));
  const auto f = strategy.function({kVector}, [=](Value x) {
    const Value all = replica_context().all_reduce(ReduceOp::kSum, sum(x * w));
    w.assign(all);
    return all;
  });
  EXPECT_EQ(f(vec({1, 2}))[0].item(), 3);
  EXPECT_EQ(w.value().item(), 3);
}

}  // namespace
}  // namespace lockstep
