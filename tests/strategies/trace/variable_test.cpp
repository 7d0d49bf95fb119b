// Tests: strategies/trace/variable.cpp, strategies/trace/variable_now.cpp
// Variables of a strategy: changes at once beside running steps, options of a name, rows, colocation,
// printing.
#include "lockstep/strategies/trace/variable.h"

#include <atomic>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/strategies/mirrored.h"
#include "lockstep/strategies/trace/building.h"
#include "support/strategy_test.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kScalar;
using testing::on_gpus;
using ::testing::StartsWith;
using testing::test_devices;

// Copies are read and changed together: a step that compares them must never see them apart.
TEST(VariableAtOnce, ChangesAllCopiesTogether) {
  for (const bool share : {true, false}) {
    MirroredStrategy strategy({.devices = test_devices(3), .share_mirrored = share});
    auto scope = strategy.scope();
    const Variable w("w", Tensor::scalar(std::int64_t{0}));
    const auto look = strategy.function({}, [=] {
      const ReplicaContext replica = replica_context();
      return replica.all_reduce(ReduceOp::kMax, identity(w)) -
             replica.all_reduce(ReduceOp::kMin, identity(w));
    });
    look();
    constexpr int kChanges = 200, kThreads = 2;
    std::vector<std::thread> changers;
    for (int i = 0; i < kThreads; ++i) {
      changers.emplace_back([&] {
        for (int j = 0; j < kChanges; ++j) w.assign_add(Tensor::scalar(std::int64_t{1}));
      });
    }
    int apart = 0;
    for (int i = 0; i < kChanges; ++i) {
      apart += look()[0].item() == 0 ? 0 : 1;
      const PerReplica<Tensor> copies = w.copies();
      apart += copies[0].bit_equal(copies[1]) && copies[0].bit_equal(copies[2]) ? 0 : 1;
    }
    for (std::thread& thread : changers) thread.join();
    EXPECT_EQ(apart, 0) << share;
    for (const Tensor& copy : w.copies()) EXPECT_EQ(copy.item(), kChanges * kThreads) << share;
  }
}

TEST(VariableAtOnce, SharesOfIntegersAreExact) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  auto scope = strategy.scope();
  constexpr std::int64_t kLarge = (std::int64_t{1} << 60) + 2;  // not a double
  const Variable seen("seen", Tensor::scalar(std::int64_t{0}),
                      {.synchronization = Synchronization::kOnRead, .aggregation = Aggregation::kSum});
  seen.assign(Tensor::scalar(kLarge));
  EXPECT_TRUE(seen.value().bit_equal(Tensor::scalar(kLarge)));
  const auto f = strategy.cross_function({InputSpec(DType::kI64, Shape{}, "x", true)},
                                         [&](const PerReplica<Value>& x) { seen.assign(x[0]); });
  f(Tensor::scalar(kLarge - 4));
  EXPECT_TRUE(seen.value().bit_equal(Tensor::scalar(kLarge - 4)));
}

TEST(VariableName, KeepsItsOptions) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  auto scope = strategy.scope();
  const auto traced = [&](const VariableOptions& options, const Tensor& initial) {
    return error_of(
        [&] { strategy.function({}, [&] { return identity(Variable("w", initial, options)); }); });
  };
  const Tensor zero = Tensor::scalar(0.F);
  EXPECT_EQ(traced({.aggregation = Aggregation::kSum}, zero), "no error");
  EXPECT_EQ(traced({.synchronization = Synchronization::kOnWrite, .aggregation = Aggregation::kSum}, zero),
            "no error");
  EXPECT_THAT(traced({.aggregation = Aggregation::kMean}, zero),
              AllOf(HasSubstr("made twice"), HasSubstr("aggregation sum (" __FILE__ ":"),
                    HasSubstr("aggregation mean (" __FILE__ ":"), HasSubstr("another name")));
  EXPECT_THAT(traced({.synchronization = Synchronization::kOnRead, .aggregation = Aggregation::kSum}, zero),
              HasSubstr("synchronization on_read"));
  EXPECT_THAT(traced({.aggregation = Aggregation::kSum, .trainable = false}, zero),
              HasSubstr("not trainable"));
  EXPECT_THAT(traced({.aggregation = Aggregation::kSum}, Tensor::zeros({2})), HasSubstr("f32[2]"));
}

// Of two threads that want a name one gets it.
TEST(VariableName, IsTakenOnce) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  constexpr int kNames = 200, kThreads = 2;
  std::atomic<int> made = 0, arrived = 0;
  std::vector<std::thread> makers;
  for (int t = 0; t < kThreads; ++t) {
    makers.emplace_back([&] {
      auto scope = strategy.scope();
      for (int i = 0; i < kNames; ++i) {
        ++arrived;
        while (arrived < kThreads * (i + 1)) std::this_thread::yield();
        made += error_of([&] { Variable(str("v", i), Tensor::scalar(0.F)); }) == "no error" ? 1 : 0;
      }
    });
  }
  for (std::thread& maker : makers) maker.join();
  EXPECT_EQ(made, kNames);
}

TEST(VariableRows, AreChangedByEveryReplica) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  auto scope = strategy.scope();
  const Tensor start = Tensor::from(Shape{3, 1}, {1.F, 2.F, 3.F});
  const Variable total("total", start, {.aggregation = Aggregation::kSum});
  const Variable average("average", start, {.aggregation = Aggregation::kMean});
  const Variable first("first", start, {.aggregation = Aggregation::kOnlyFirstReplica});
  const Variable plain("plain", start);
  const Variable own("own", start,
                     {.synchronization = Synchronization::kOnRead, .aggregation = Aggregation::kSum});
  const InputSpec at(DType::kI32, Shape{kUnknown}, "at"), rows(DType::kF32, Shape{kUnknown, 1}, "rows");
  const auto f = strategy.function({at, rows}, [=](Value i, Value r) {
    total.scatter_add(i, r);
    average.scatter_sub(i, r);
    return first.scatter_update(i, r);
  });
  const auto indices = [](std::int32_t a, std::int32_t b) { return Tensor::from(Shape{2}, {a, b}); };
  const auto values = [](float a, float b) { return Tensor::from(Shape{2, 1}, {a, b}); };
  const PerReplica<Tensor> new_first = f(PerReplica<Tensor>({indices(0, 0), indices(2, 0)}),
                                         PerReplica<Tensor>({values(10, 20), values(30, 40)}));
  EXPECT_TRUE(total.value().bit_equal(Tensor::from(Shape{3, 1}, {71.F, 2.F, 33.F})));
  EXPECT_TRUE(average.value().bit_equal(Tensor::from(Shape{3, 1}, {1 - 35.F, 2.F, 3 - 15.F})));
  EXPECT_TRUE(first.value().bit_equal(Tensor::from(Shape{3, 1}, {20.F, 2.F, 3.F})));
  EXPECT_TRUE(new_first[1].bit_equal(first.value()));

  const auto across = strategy.cross_function({}, [&] {
    const Value one = constant(Tensor::from(Shape{1}, {std::int64_t{1}}));
    const Value five = constant(Tensor::from(Shape{1, 1}, {5.F}));
    plain.scatter_mul(one, five);  // 10
    plain.scatter_max(one, five);  // 10
    plain.scatter_min(one, five);  // 5
    return plain.scatter_div(one, five);
  });
  EXPECT_TRUE(across()[0].bit_equal(Tensor::from(Shape{3, 1}, {1.F, 1.F, 3.F})));
  for (const Tensor& copy : plain.copies()) EXPECT_TRUE(copy.bit_equal(plain.value()));

  const auto refused = [&](auto change) {
    return error_of([&] { strategy.function({at, rows}, [=](Value i, Value r) { return change(i, r); }); });
  };
  EXPECT_THAT(refused([=](Value i, Value r) { return total.scatter_max(i, r); }),
              HasSubstr("no sum and no mean"));
  EXPECT_THAT(refused([=](Value i, Value r) { return plain.scatter_add(i, r); }),
              HasSubstr("You must specify an aggregation method"));
  EXPECT_THAT(refused([=](Value i, Value r) { return own.scatter_add(i, r); }),
              HasSubstr("do not support changes by rows"));
  EXPECT_THAT(refused([=](Value i, Value) { return first.scatter_add(i, i); }), HasSubstr("rows of"));
  EXPECT_THAT(error_of([&] {
                f(PerReplica<Tensor>({indices(0, 3), indices(0, 0)}), PerReplica<Tensor>(values(0, 0)));
                f.program().wait();
              }),
              HasSubstr(on_gpus() ? "was refused its data" : "outside of [0, 3)"));
  // That step did not happen.
  EXPECT_TRUE(total.value().bit_equal(Tensor::from(Shape{3, 1}, {71.F, 2.F, 33.F})));
}

TEST(VariablePrinting, SaysWhatItIs) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  auto scope = strategy.scope();
  const Variable w("w", Tensor::zeros({2, 1}));
  const Variable seen("seen", Tensor::scalar(0.F),
                      {.synchronization = Synchronization::kOnRead, .aggregation = Aggregation::kSum});
  const auto text = [](const auto& value) {
    std::ostringstream out;
    out << value;
    return out.str();
  };
  EXPECT_EQ(text(w), "Variable 'w' f32[2,1], mirrored on 2 replicas");
  EXPECT_EQ(text(seen),
            "Variable 'seen' f32[], each replica's own on 2 replicas, aggregation sum, not trainable");
  strategy.function({kScalar}, [&](Value x) {
    EXPECT_EQ(text(PerReplica<Value>(x)), "x: f32[]");
    replica_context().merge_call(
        [&](Strategy&, const PerReplica<Value>& all) {
          EXPECT_THAT(text(all), AllOf(StartsWith("per replica {0: "), HasSubstr(": f32[], 1: ")));
        },
        x);
  });
  EXPECT_EQ(text(strategy.broadcast(Tensor::scalar(1.F))),
            "mirrored {0: " + text(Tensor::scalar(1.F)) + ", 1: " + text(Tensor::scalar(1.F)) + "}");
}

}  // namespace
}  // namespace lockstep
