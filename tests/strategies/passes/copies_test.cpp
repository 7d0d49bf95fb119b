// Tests: strategies/passes/copies.cpp, strategies/passes/register.cpp
// Copies of variables across functions, stores and contexts: whatever is done, they stay one variable.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/graph/transform/pass_registry.h"
#include "lockstep/strategies/mirrored.h"
#include "lockstep/strategies/passes/register.h"
#include "lockstep/strategies/trace/building.h"
#include "support/strategy_test.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kScalar;
using testing::scalars;
using testing::test_devices;

void expect_copies(const Variable& variable, double value) {
  for (const Tensor& copy : variable.copies()) EXPECT_NEAR(copy.item(), value, 1e-6) << variable.name();
}

class Copies : public ::testing::TestWithParam<bool> {
 protected:
  MirroredStrategy strategy{{.devices = test_devices(3), .share_mirrored = GetParam()}};
};
INSTANTIATE_TEST_SUITE_P(Sharing, Copies, ::testing::Bool(),
                         [](const auto& sharing) { return sharing.param ? "Shared" : "Apart"; });

// Functions that read, train, assign and reset one variable, in any order, see one value.
TEST_P(Copies, AreOneVariableToAllFunctions) {
  auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(1.F), {.aggregation = Aggregation::kMean});
  const auto reset = strategy.cross_function({}, [&] { w.assign(4.0); });
  const auto read = strategy.function({kScalar}, [=](Value x) { return x + w; });
  const auto train =
      strategy.function({kScalar}, [=](Value x) { Sgd(0.5).minimize(global_mean(x * w), {w}); });
  const auto average = strategy.function({kScalar}, [=](Value x) { w.assign_add(x); });
  const auto x = scalars({1, 2, 6});
  EXPECT_EQ(read(x)[2].item(), 7);
  train(x);
  expect_copies(w, 1 - 0.5 * 3);
  reset();
  expect_copies(w, 4);
  average(x);
  expect_copies(w, 7);
  EXPECT_EQ(read(x)[1].item(), 9);
  w.assign(Tensor::scalar(2.F));
  EXPECT_EQ(read(x)[1].item(), 4);
  // A function that is made later starts from what is there.
  const auto late = strategy.function({kScalar}, [=](Value v) { return v * w; });
  EXPECT_EQ(late(x)[2].item(), 12);
}

// What reaches one copy only is refused, wherever it comes from; what reaches all is taken.
TEST_P(Copies, AreAllReachedByWritesOutsideOfReplicas) {
  auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(1.F)), never("never", Tensor::scalar(1.F));
  const auto read = strategy.function({kScalar}, [=](Value x) { return x * w; });
  const auto raw = [](const Variable& v) {
    GraphBuilder& b = *current_builder();
    b.assign(static_cast<VariableRef>(v), b.constant(5.F));
  };
  const std::string says = "is written outside of the replicas";
  EXPECT_THAT(error_of([&] { strategy.cross_function({}, [&] { raw(w); }); }),
              AllOf(HasSubstr("'w'"), HasSubstr(says), HasSubstr("Variable::assign()")));
  EXPECT_THAT(error_of([&] { strategy.cross_function({}, [&] { raw(never); }); }), HasSubstr(says));
  EXPECT_THAT(error_of([&] {
                strategy.cross_function({kScalar}, [&](const PerReplica<Value>& x) {
                  cond(
                      strategy.reduce(ReduceOp::kSum, x) > 0.F,
                      [&]() -> std::vector<Value> {
                        raw(w);
                        return {};
                      },
                      [&]() -> std::vector<Value> { return {}; });
                });
              }),
              HasSubstr(says));
  EXPECT_THAT(error_of([&] {
                strategy.cross_function({kScalar}, [&](const PerReplica<Value>& x) {
                  const Value loss = strategy.reduce(ReduceOp::kSum, x) * w.read();
                  Sgd(0.5).minimize(loss, {w});
                });
              }),
              HasSubstr(says));
  EXPECT_THAT(error_of([&] {
                strategy.function({kScalar}, [&](Value x) {
                  replica_context().merge_call([&](Strategy&, const PerReplica<Value>&) { raw(w); }, x);
                });
              }),
              HasSubstr("'w' would not stay equal on all replicas"));
  expect_copies(w, 1);
  const auto both = strategy.cross_function({kScalar}, [&](const PerReplica<Value>& x) {
    w.assign(strategy.reduce(ReduceOp::kSum, x));
    return strategy.run([=](Value v) { return v * w; }, x);
  });
  EXPECT_EQ(both(scalars({1, 2, 3}))[2].item(), 18);
  expect_copies(w, 6);
}

// One replica has one copy, which every write reaches.
TEST(OneCopy, IsReachedByEveryWrite) {
  MirroredStrategy one({.devices = test_devices(1)});
  auto scope = one.scope();
  const Variable w("w", Tensor::scalar(1.F));
  one.cross_function({}, [&] { current_builder()->assign(static_cast<VariableRef>(w), constant(5.F)); })();
  EXPECT_EQ(w.value().item(), 5);
}

// Whether copies lie in one memory belongs to a store: strategies that disagree about it cannot share one.
TEST_P(Copies, OneStoreIsSharedOrNot) {
  if (testing::on_gpus()) GTEST_SKIP() << "the copies lie apart";
  const auto store = std::make_shared<VariableStore>();
  const auto made = [&](bool share) {
    MirroredOptions options{.devices = test_devices(3), .share_mirrored = share};
    options.base.compile.variables = store;
    return options;
  };
  const auto step = [](MirroredStrategy& s) {
    // A traced function finds the variable that is there.
    return s.function({kScalar}, [](Value x) {
      const Variable w("w", Tensor::scalar(1.F), {.aggregation = Aggregation::kSum});
      w.assign_add(x);
    });
  };
  MirroredStrategy first(made(GetParam())), same(made(GetParam())), different(made(!GetParam()));
  step(first)(scalars({1, 2, 3}));
  step(same)(scalars({1, 2, 3}));
  EXPECT_EQ(store->value("w").item(), 13);
  EXPECT_EQ(store->value("w/replica_2").item(), 13);
  EXPECT_THAT(error_of([&] { step(different); }),
              AllOf(HasSubstr("'w/replica_1'"), HasSubstr("use another store")));
}

// A share of what is the same on all replicas is a share all the same.
TEST_P(Copies, GlobalMeansNeedNoInputsOfReplicas) {
  auto scope = strategy.scope();
  const Variable w("w", Tensor::from({2}, {1.F, 3.F}));
  const auto f = strategy.function({}, [=] {
    const Value loss = global_mean(square(w.read()));
    Sgd(0.5).minimize(loss, {w});
    return std::tuple(loss, global_sum(w.read()), global_count(w.read()));
  });
  const auto [loss, total, count] = f();
  EXPECT_EQ(loss.kind(), ReplicaKind::kPerReplica);
  EXPECT_NEAR(strategy.reduce(ReduceOp::kSum, loss).item(), 5, 1e-6);
  // Each replica has the two elements: six over all of them. The loss is their mean, so that its gradient is
  // w itself.
  EXPECT_EQ(count[0].item(), 6);
  EXPECT_NEAR(w.value().data<float>()[1], 3 - 0.5F * 3, 1e-6);
  EXPECT_NEAR(strategy.reduce(ReduceOp::kSum, total).item(), 3 * (0.5 + 1.5), 1e-5);
}

// A loop that all replicas run together, with collectives that read each other's results and a merge
// function, for every way to reduce.
TEST_P(Copies, LoopsHoldCollectives) {
  for (const int replicas : {1, 3}) {
    for (const std::string ops : {"shared_memory", "reduction_to_one_device", "hierarchical_copy", "ring"}) {
      MirroredOptions options{
          .devices = test_devices(replicas), .cross_device_ops = ops, .share_mirrored = GetParam()};
      options.base.runtime = Runtime({.threads = 1, .cpu_devices = 3});
      options.base.compile.inline_seconds = 0;
      MirroredStrategy looping(options);
      auto scope = looping.scope();
      const Variable seen("seen", Tensor::scalar(0.F));
      const auto f = looping.function({kScalar}, [&](Value x) {
        GraphBuilder& b = *current_builder();
        const Value initial[] = {b.constant(0.F), x};
        return while_loop(
            initial, [](std::span<const Value> c) { return c[0] < 3.F; },
            [&](std::span<const Value> c) -> std::vector<Value> {
              const Value total = all_reduce(ReduceOp::kSum, c[1]);
              const Value again = replica_context().merge_call(
                  [](Strategy& s, const PerReplica<Value>& v) { return s.reduce(ReduceOp::kMean, v); },
                  all_reduce(ReduceOp::kMean, all_reduce(ReduceOp::kMax, total)));
              b.assign_add(static_cast<VariableRef>(seen), again);
              return {c[0] + 1.F, c[1] + again};
            });
      });
      std::vector<Tensor> fed;
      std::vector<double> x = {1, 2, 3};
      x.resize(static_cast<std::size_t>(replicas));
      for (const double value : x) fed.push_back(Tensor::scalar(static_cast<float>(value)));
      double seen_now = 0;
      for (int trip = 0; trip < 3; ++trip) {
        double total = 0;
        for (const double value : x) total += value;
        for (double& value : x) value += total;
        seen_now += total;
      }
      const std::vector<PerReplica<Tensor>> out = f(PerReplica<Tensor>(fed));
      for (std::size_t r = 0; r < x.size(); ++r)
        EXPECT_EQ(out[1][r].item(), x[r]) << ops << ", replica " << r;
      expect_copies(seen, seen_now);
    }
  }
}

// The opt-out that prove-sync proposes reads back as an option, also for names that need quotes.
TEST(ProveSyncOptOut, CanBeTakenFromTheMessage) {
  register_strategy_passes();
  const std::string text = R"(
      var @"a, [b]" : f32[]
      %x0 = placeholder() : f32[]
      %x1 = placeholder() : f32[]
      %y = replicated[replicas=2, shared=0](%x0, %x1) : f32[], f32[] {
        region {
          %x = placeholder() : f32[]
          %u = assign[variable=@"a, [b]"](%x) : f32[]
          return %u
        }
      }
      return %y, %y:1
    )";
  Graph graph = parse(text);
  const std::string message =
      error_of([&] { PassRegistry::global().parse_pipeline("replicate,prove-sync").run(graph); });
  const std::size_t at = message.find("allow-drift(");
  ASSERT_NE(at, std::string::npos) << message;
  const std::string pass = message.substr(at, message.find("\"])", at) + 3 - at);
  EXPECT_EQ(pass, "allow-drift(variables=[\"a, [b]\"])");
  graph = parse(text);
  PassRegistry::global().parse_pipeline(pass + ",replicate,prove-sync").run(graph);
}

}  // namespace
}  // namespace lockstep
