// Tests: strategies/central_storage.cpp, strategies/extended.cpp, strategies/make_strategy.cpp,
//        strategies/mirrored.cpp, strategies/one_device.cpp, strategies/run_steps.cpp,
//        strategies/trace/element_spec.cpp, strategies/trace/function.cpp,
//        strategies/trace/replica_context.cpp, strategies/trace/values.cpp
// What the options and methods of strategies promise beyond the first steps: placement, drift, own
// cross-device ops, calls without arguments, kinds in merge functions, source lines, signatures, many steps,
// schedules.
#include <atomic>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <stop_token>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/strategies/central_storage.h"
#include "lockstep/strategies/compat.h"
#include "lockstep/strategies/extended.h"
#include "lockstep/strategies/make_strategy.h"
#include "lockstep/strategies/mirrored.h"
#include "lockstep/strategies/one_device.h"
#include "lockstep/strategies/run_steps.h"
#include "support/strategy_test.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::devices_of;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kScalar;
using testing::scalars;
using testing::test_device;
using testing::test_devices;
using testing::vec;

// --- placement

TEST(CentralStorage, PlacesVariablesAndTheirUpdates) {
  CentralStorageStrategy strategy({.devices = test_devices(2)}, "cpu:2");  // which is no replica's
  auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(1.F), {.aggregation = Aggregation::kMean});
  const Variable count("count", Tensor::scalar(0.F));
  const auto f = strategy.cross_function({kScalar}, [&](const PerReplica<Value>& x) {
    count.assign_add(1.F);
    return strategy.run([=](Value v) { return w.assign_add(v * w); }, x);
  });
  int updates = 0;
  for (const Node& node : f.replicated_graph().nodes()) {
    const bool update = node.op().traits.updates_variable.has_value();
    updates += update ? 1 : 0;
    if (update) {
      EXPECT_EQ(node.device(), "cpu:2") << node.name();
    }
    if (node.op().name == "mul") {
      EXPECT_NE(node.device(), "cpu:2") << node.name();
    }
  }
  EXPECT_EQ(updates, 2);
  for (const VariableDecl& decl : f.replicated_graph().variables())
    EXPECT_EQ(decl.device, "cpu:2") << decl.name;
  f(scalars({2, 4}));
  EXPECT_EQ(w.value().item(), 4);
}

// One replica has the variables of another device too.
TEST(CentralStorage, HasItsPlaceBesideOneReplica) {
  CentralStorageStrategy strategy(
      {.devices = test_devices(1), .base = {.runtime = Runtime(RuntimeOptions{.cpu_devices = 2})}}, "cpu:1");
  auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(1.F));
  const auto f = strategy.function({kScalar}, [=](Value x) { return w.assign_add(x * w); });
  for (const VariableDecl& decl : f.replicated_graph().variables())
    EXPECT_EQ(decl.device, "cpu:1") << decl.name;
  EXPECT_THAT(devices_of(f.replicated_graph(), "assign_add"), ElementsAre("cpu:1"));
  EXPECT_THAT(devices_of(f.replicated_graph(), "mul"), ElementsAre(test_device(0)));
  EXPECT_EQ(f(Tensor::scalar(2.F))[0].item(), 3);
  const auto from_text = make_strategy("central-storage(devices=[cpu:0],parameter_device=cpu:3)");
  EXPECT_THAT(from_text->parameter_devices(), ElementsAre("cpu:3"));
}

TEST(MirroredOptions, CountGpus) {
  EXPECT_THAT(MirroredStrategy({.num_gpus = 0}).worker_devices(), ElementsAre("cpu:0"));
  EXPECT_THAT(MirroredStrategy(compat::mirrored_options(0)).worker_devices(), ElementsAre("cpu:0"));
}

// --- drift

TEST(MayDrift, IsSaidAndSeen) {
  for (const bool share : {true, false}) {
    MirroredStrategy strategy({.devices = test_devices(2), .share_mirrored = share, .may_drift = {"loose"}});
    EXPECT_THAT(strategy.pipeline().to_string(), HasSubstr("allow-drift(variables=[loose],strict=false)"));
    auto scope = strategy.scope();
    EXPECT_THAT(error_of([&] { strategy.function({kScalar}, [](Value x) { return x; }); }),
                HasSubstr("may_drift names 'loose'"));
    const Variable loose("loose", Tensor::scalar(0.F)), none("none", Tensor::scalar(0.F));
    const Variable tight("tight", Tensor::scalar(0.F), {.aggregation = Aggregation::kMean});
    const auto f = strategy.function({kScalar}, [=](Value x) { loose.assign(x); });
    f(scalars({1, 2}));
    EXPECT_EQ(loose.copies()[0].item(), 1);
    EXPECT_EQ(loose.copies()[1].item(), 2);
    EXPECT_THAT(error_of([&] { strategy.function({kScalar}, [=](Value x) { none.assign(x); }); }),
                HasSubstr("You must specify an aggregation method"));
    // Nothing is concluded from its copies: what is read differs, and is combined or refused.
    strategy.function({}, [=] { tight.assign(loose * 2.F); })();
    EXPECT_EQ(tight.value().item(), 3);
    EXPECT_THAT(error_of([&] { strategy.run([=] { none.assign(loose * 2.F); }); }),
                HasSubstr("You must specify an aggregation method"));
    EXPECT_EQ(error_of([&] { strategy.function({kScalar}, [](Value x) { return x; }); }), "no error");
  }
}

TEST(MayDrift, ReadsDiffer) {
  for (const bool share : {true, false}) {
    MirroredStrategy strategy({.devices = test_devices(2), .share_mirrored = share, .may_drift = {"loose"}});
    auto scope = strategy.scope();
    const Variable loose("loose", Tensor::scalar(0.F));
    EXPECT_EQ(str(loose), "Variable 'loose' f32[], each replica's own on 2 replicas");
    // A branch that writes it is each replica's own business.
    const auto set = strategy.function({kScalar}, [=](Value x) {
      cond(
          x > 1.F, [&] { return std::vector<Value>{loose.assign(x)}; },
          [&] { return std::vector<Value>{loose.assign(-x)}; });
    });
    set(scalars({1, 2}));
    EXPECT_EQ(loose.copies().kind(), ReplicaKind::kPerReplica);
    EXPECT_EQ(loose.copies()[0].item(), -1);
    EXPECT_EQ(loose.copies()[1].item(), 2);
    EXPECT_THAT(error_of([&] { loose.value(); }), HasSubstr("may drift apart"));
    const PerReplica<Tensor> read = strategy.function({}, [=] { return loose.read(); })();
    ASSERT_EQ(read.kind(), ReplicaKind::kPerReplica);
    EXPECT_EQ(read[1].item(), 2);
    const auto mean = strategy.function({}, [=] {
      return replica_context().merge_call(
          [](Strategy& s, const PerReplica<Value>& own) { return s.reduce(ReduceOp::kMean, own); },
          loose.read());
    });
    EXPECT_EQ(mean()[0].item(), 0.5);
  }
}

// One meaning for whatever is written, aggregation or not, and for gradients.
TEST(MayDrift, EachReplicaChangesItsOwn) {
  MirroredStrategy strategy(
      {.devices = test_devices(2), .may_drift = {"sum", "mean", "first", "rows", "trained", "a, [b]"}});
  auto scope = strategy.scope();
  std::vector<Variable> assigned;
  for (const auto& [name, aggregation] :
       {std::pair("sum", Aggregation::kSum), std::pair("mean", Aggregation::kMean),
        std::pair("first", Aggregation::kOnlyFirstReplica), std::pair("a, [b]", Aggregation::kNone)})
    assigned.emplace_back(name, Tensor::scalar(1.F), VariableOptions{.aggregation = aggregation});
  const Variable rows("rows", vec({0, 0}), {.aggregation = Aggregation::kSum});
  const Variable trained("trained", Tensor::scalar(1.F));
  const auto step = strategy.function({kScalar}, [=](Value x) {
    for (const Variable& variable : assigned) variable.assign_add(x);
    assigned[0].assign_add(1.F);  // the same on all replicas, which a sum would refuse
    rows.scatter_update(x.builder().constant(Tensor::from<std::int64_t>({1}, {1})), reshape(x, Shape{1}));
    Sgd(0.5).minimize(x * trained, {trained});
  });
  step(scalars({2, 4}));
  for (std::size_t r = 0; r < 2; ++r) {
    const double x = r == 0 ? 2 : 4;
    for (const Variable& variable : assigned)
      EXPECT_EQ(variable.copies()[r].item(), 1 + x + (variable.name() == "sum" ? 1 : 0)) << variable.name();
    EXPECT_TRUE(rows.copies()[r].bit_equal(vec({0, static_cast<float>(x)})));
    EXPECT_EQ(trained.copies()[r].item(), 1 - 0.5 * x);
  }
  // A step that is given as a graph.
  const Step given = strategy.distribute(parse(R"(
      var @sum : f32[] [aggregation=sum]
      %x = placeholder() : f32[]
      %u = assign_add[variable=@sum](%x) : f32[]
      return %u
    )"),
                                         {});
  const PerReplica<Tensor> fed = scalars({1, 2});
  const std::vector<PerReplica<Tensor>> results = given.run({&fed, 1});
  EXPECT_EQ(results[0][0].item(), 1 + 2 + 1 + 1);
  EXPECT_EQ(results[0][1].item(), 1 + 4 + 1 + 2);
}

// Slots that an optimizer makes go with their variable. A graph has them as variables like others: those that
// are not named may not drift along.
TEST(MayDrift, IsSaidOfSlotsThatAGraphBrings) {
  {
    MirroredStrategy strategy({.devices = test_devices(2), .may_drift = {"w"}});
    auto scope = strategy.scope();
    const Variable w("w", Tensor::scalar(1.F));
    const Momentum momentum(0.5, 0.9);
    strategy.function({kScalar}, [=](Value x) { momentum.minimize(x * w, {w}); })(scalars({2, 4}));
    EXPECT_EQ(w.copies()[1].item(), 1 - 0.5 * 4);
  }
  const auto trained = [](std::set<std::string> names) {
    MirroredStrategy strategy({.devices = test_devices(2), .may_drift = std::move(names)});
    const Step step = strategy.distribute(parse(R"(
      var @w : f32[]
      var @v : f32[] [trainable=false]
      %x = placeholder() : f32[]
      %rate = constant[value=f32[]{0.5}]() : f32[]
      %u = momentum[momentum=0.9, nesterov=false, variable=@w, velocity=@v](%x, %rate) : f32[], f32[]
      return %u
    )"));
    const PerReplica<Tensor> fed = scalars({2, 4});
    return step.run({&fed, 1})[0][1].item();
  };
  EXPECT_THAT(error_of([&] { trained({"w"}); }), HasSubstr("variable 'v' would not stay equal"));
  EXPECT_EQ(trained({"w", "v"}), -0.5 * 4);
}

// --- cross-device ops

// Adds up one after the other on replica 0's device, and says so in a name.
class Chain final : public CrossDeviceOps {
 public:
  std::string_view name() const override { return "chain"; }
  void lower(LowerContext& c) const override {
    for (std::size_t t = 0; t < c.tensors(); ++t) {
      ValueId total = c.input(0, t);
      for (std::size_t r = 1; r < c.replicas(); ++r) {
        const ValueId pair[] = {total, c.copy_to(c.device(0), c.input(r, t))};
        total = c.reduce_on(c.device(0), ReduceOp::kSum, pair, 2)[0];
      }
      c.give_all(t, total, c.device(0));
    }
  }
};

TEST(CrossDeviceOps, OfOnesOwn) {
  MirroredStrategy strategy(
      {.devices = test_devices(3), .custom_cross_device_ops = std::make_shared<Chain>()});
  EXPECT_THAT(strategy.pipeline().to_string(),
              HasSubstr("lower-collectives(ops=chain),prove-sync,insert-copies"));
  EXPECT_THAT(strategy.cross_device_choice().to_string(), HasSubstr("chain: "));
  const auto f =
      strategy.function({kScalar}, [](Value x) { return replica_context().all_reduce(ReduceOp::kSum, x); });
  EXPECT_EQ(f(scalars({1, 2, 4}))[2].item(), 7);
  int reductions = 0;
  for (const Node& node : f.replicated_graph().nodes())
    reductions += node.op().name == "reduce_replicas" ? 1 : 0;
  EXPECT_EQ(reductions, 2);
  EXPECT_THAT(
      error_of([] {
        MirroredStrategy({.cross_device_ops = "ring", .custom_cross_device_ops = std::make_shared<Chain>()});
      }),
      HasSubstr("in place of a name"));
}

// Says that it reduces, and hands each replica its own value back.
class OwnValues final : public CrossDeviceOps {
 public:
  std::string_view name() const override { return "own_values"; }
  void lower(LowerContext& c) const override {
    for (const std::size_t t : c.read_tensors()) {
      for (const std::size_t r : c.readers(t))
        c.give(r, t,
               r == 0 ? c.input(r, t) : c.copy(c.device(r), c.input(r, t), static_cast<std::int32_t>(r)));
    }
  }
};

TEST(CrossDeviceOps, OfOnesOwnAreProvenToKeepReplicasEqual) {
  const auto trained = [](CrossDeviceOpsPtr ops, std::set<std::string> may_drift = {}) {
    MirroredStrategy strategy({.devices = test_devices(3),
                               .custom_cross_device_ops = std::move(ops),
                               .share_mirrored = false,
                               .may_drift = std::move(may_drift)});
    auto scope = strategy.scope();
    const Variable w("w", Tensor::scalar(1.F)), loose("loose", Tensor::scalar(0.F));
    const Sgd sgd(0.5);
    const bool drifts = strategy.may_drift("loose");
    strategy.function({kScalar}, [=](Value x) {
      if (drifts) loose.assign(x);
      sgd.minimize(x * w, {w});
    })(scalars({1, 2, 4}));
    return w.copies();
  };
  const PerReplica<Tensor> copies = trained(std::make_shared<Chain>(), {"loose"});
  for (const Tensor& copy : copies) EXPECT_EQ(copy.item(), 1 - 0.5 * 7);
  const std::string refused = error_of([&] { trained(std::make_shared<OwnValues>()); });
  EXPECT_THAT(refused, HasSubstr("prove-sync: variable 'w' would not stay equal on all replicas"));
  EXPECT_THAT(refused, HasSubstr("from 'x' and 'x/replica_1' (placeholder"));
  EXPECT_THAT(refused, HasSubstr("fed to each replica by itself"));
  EXPECT_THAT(refused, HasSubstr("cross-device ops of one's own give all replicas the same"));
}

TEST(CrossDeviceOps, ReduceWhereTheyAreTold) {
  for (const std::string& device : {test_device(1), test_device(2)}) {  // a replica's, and one that is none's
    MirroredStrategy strategy(
        {.devices = test_devices(2), .cross_device_ops = "reduction_to_one_device", .reduce_device = device});
    const auto f =
        strategy.function({kScalar}, [](Value x) { return replica_context().all_reduce(ReduceOp::kSum, x); });
    EXPECT_THAT(devices_of(f.replicated_graph(), "reduce_replicas"), ElementsAre(device));
    EXPECT_EQ(f(scalars({1, 2}))[1].item(), 3);
  }
  EXPECT_THAT(error_of([] { MirroredStrategy({.cross_device_ops = "ring", .reduce_device = "cpu:0"}); }),
              HasSubstr("a device is for reduction_to_one_device"));
  std::ostringstream choice;
  choice << MirroredStrategy({.devices = {"cpu:0", "cpu:1"}}).cross_device_choice(1 << 20);
  EXPECT_EQ(choice.str(), "shared_memory: all replicas lie in one memory");
}

// --- calls without arguments, kinds, lines

TEST(StrategyRun, TakesNoArguments) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(1.F), {.aggregation = Aggregation::kMean});
  const auto f = strategy.cross_function({}, [&] {
    const PerReplica<Value> ids = strategy.run([] { return replica_context().replica_id(); });
    strategy.run([=] { w.assign(w + 1.F); });
    return std::pair(strategy.reduce(ReduceOp::kSum, ids), w.read());
  });
  const auto [ids, value] = f();
  EXPECT_EQ(ids[0].item(), 1);
  EXPECT_EQ(value[0].item(), 2);
  const PerReplica<Tensor> now = strategy.run([] { return replica_context().local_replica_id(); });
  EXPECT_EQ(now[1].item(), 1);
  strategy.run([=] { w.assign(w + 1.F); });
  EXPECT_EQ(w.value().item(), 3);
  EXPECT_THAT(error_of([&] { PerReplica<Value> wrong = strategy.run([=] { return w * 1.F; }); }),
              HasSubstr("the result holds tensors"));
}

TEST(StrategyRun, GivesWithoutArgumentsWhatReduceAndPrintingTake) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  const auto id = []() noexcept { return cast(replica_context().replica_id(), DType::kF32) + 1.F; };
  const auto losses = strategy.run(id);
  EXPECT_EQ(strategy.reduce(ReduceOp::kSum, losses).computed().item(), 3);
  const Tensor mean = strategy.reduce(ReduceOp::kMean, strategy.run(id));
  EXPECT_EQ(mean.item(), 1.5);
  EXPECT_EQ(str(losses), "per replica {0: f32[] {1}, 1: f32[] {2}}");
  EXPECT_EQ(str(strategy.reduce(ReduceOp::kMax, losses)), "f32[] {2}");
  EXPECT_EQ(losses.size(), 2U);
  EXPECT_EQ(losses[1].computed().item(), 2);
  const std::vector<Tensor> slots = strategy.local_results(losses);
  ASSERT_EQ(slots.size(), 2U);
  EXPECT_EQ(slots[0].item(), 1);
  EXPECT_THAT(error_of([&] { losses.traced(); }), HasSubstr("the result holds tensors"));

  const auto both = strategy.cross_function({}, [&] {
    const auto results = strategy.run([=] { return std::pair(id(), id() * 2.F); });
    const RunResult &loss = results.first, &twice = results.second;
    EXPECT_THAT(str(loss), HasSubstr("per replica {0: "));
    EXPECT_THAT(error_of([&] { loss.computed(); }), HasSubstr("no tensors yet"));
    const Value total = strategy.reduce(ReduceOp::kSum, loss);
    const std::vector<Value> local = strategy.local_results(twice);
    return std::pair(total, local[1]);
  });
  const auto [total, second] = both();
  EXPECT_EQ(total[0].item(), 3);
  EXPECT_EQ(second[0].item(), 4);
}

TEST(StrategyMergeCall, KnowsWhatIsTheSameOnAllReplicas) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(3.F));
  strategy.function({kScalar}, [&](Value x) {
    const Value all = replica_context().all_reduce(ReduceOp::kSum, x);
    replica_context().merge_call(
        [](Strategy& s, const PerReplica<Value>& own, const PerReplica<Value>& mirrored,
           const PerReplica<Value>& single) {
          EXPECT_EQ(own.kind(), ReplicaKind::kPerReplica);
          EXPECT_EQ(mirrored.kind(), ReplicaKind::kMirrored);
          EXPECT_EQ(single.kind(), ReplicaKind::kSingle);
          EXPECT_THAT(error_of([&] { s.reduce(ReduceOp::kSum, mirrored); }),
                      HasSubstr("mirrored value cannot"));
          EXPECT_THAT(error_of([&] { s.reduce(ReduceOp::kSum, single); }), HasSubstr("single value cannot"));
          return s.reduce(ReduceOp::kSum, own);
        },
        x, all, w * 2.F);
  });
}

// Thousands of merge calls in one function: each looks at what came since the last, so that they end.
TEST(StrategyMergeCall, ManyAreTracedInLinearTime) {
  MirroredStrategy strategy({.devices = test_devices(2), .base = {.checks = PipelineChecks::kNever}});
  constexpr int kCalls = 1500;
  const auto f = strategy.function({kScalar}, [](Value x) {
    for (int i = 0; i < kCalls; ++i) {
      x = x - replica_context().merge_call(
                  [](Strategy& s, const PerReplica<Value>& v) { return s.reduce(ReduceOp::kMean, v); }, x);
    }
    return x;
  });
  EXPECT_EQ(f(scalars({1, 3}))[1].item() + 0, 1);
}

TEST(StrategyLines, AreTheUsers) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  auto scope = strategy.scope();
  const Variable total("total", Tensor::zeros({2}), {.aggregation = Aggregation::kSum});
  const InputSpec input(DType::kI32, Shape{kUnknown}, "x");
  const auto f = strategy.cross_function({input}, [&](const PerReplica<Value>& x) {
    const auto [a, b] = strategy.run(
        [=](Value v) {
          total.assign_sub(cast(sum(v), DType::kF32));
          return replica_context().all_reduce(ReduceOp::kSum, std::pair(sum(v), cast(sum(v), DType::kF64)));
        },
        x);
    strategy.run([=] { replica_context().merge_call([](Strategy&) {}); });
    return std::pair(strategy.reduce(ReduceOp::kMean, x, 0),
                     extended::reduce_to(strategy, ReduceOp::kMean, a, b));
  });
  const auto check = [](const auto& self, const Graph& graph) -> void {
    for (const Node& node : graph.nodes()) {
      if (!node.site().known()) continue;  // parameters of regions
      EXPECT_THAT(std::string(node.site().file), EndsWith("api_test.cpp"))
          << node.name() << " " << node.op().name;
      for (const Graph& region : node.regions()) self(self, region);
    }
  };
  check(check, f.step_graph());
  std::set<std::uint32_t> lines;
  for (const Node& node : f.step_graph().nodes()) lines.insert(node.site().line);
  EXPECT_GT(lines.size(), 3U);  // each its own
}

// --- signatures

TEST(ElementSpec, DescribesABatch) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  const std::pair batch(PerReplica<Tensor>({Tensor::zeros({3, 2}), Tensor::zeros({1, 2})}),
                        PerReplica<Tensor>(Tensor::scalar(2.F)));
  const std::vector<InputSpec> specs = element_spec(batch);
  ASSERT_EQ(specs.size(), 2U);
  EXPECT_EQ(specs[0].spec, (TensorSpec{DType::kF32, Shape{kUnknown, 2}}));
  EXPECT_FALSE(specs[0].shared);
  EXPECT_TRUE(specs[1].shared);
  const auto f = strategy.function(specs, [](Value x, Value by) { return sum(x) * by; });
  EXPECT_EQ(f(PerReplica<Tensor>({Tensor::zeros({3, 2}), Tensor::full(DType::kF32, {5, 2}, 1)}),
              Tensor::scalar(2.F))[1]
                .item(),
            20);
  EXPECT_THAT(error_of([] {
                element_spec(PerReplica<Tensor>({Tensor::zeros({3}), Tensor::zeros({3, 1})}));
              }),
              HasSubstr("one dtype and rank"));
}

TEST(RunOptions, AreTaken) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  const std::vector<PerReplica<Tensor>> x = {scalars({1, 2})};
  EXPECT_EQ(strategy.run_list([](Value v) { return v + 1.F; }, x, RunOptions())[1].item(), 3);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_THAT(
      error_of([&] { strategy.run_list([](Value v) { return v + 1.F; }, x, {.cancel = stop.get_token()}); }),
      HasSubstr("cancelled"));
}

// --- many steps

auto pairs_of(std::vector<float> values) {
  return [values, next = std::size_t{
                      0}]() mutable -> std::optional<std::pair<PerReplica<Tensor>, PerReplica<Tensor>>> {
    if (next == values.size()) return std::nullopt;
    const float v = values[next++];
    return std::pair(scalars({v, 2 * v}), PerReplica<Tensor>(Tensor::scalar(v)));
  };
}

TEST(RunSteps, TakesNestsAndSetsOutputsInReplicas) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  auto scope = strategy.scope();
  const auto done =
      run_steps(strategy, pairs_of({1, 2, 3}), 3,
                [&](MultiStepContext& context, const std::pair<PerReplica<Value>, PerReplica<Value>>& batch) {
                  strategy.run(
                      [&](Value x, Value by) {
                        context.set_last_step_output("sum", x * by, ReduceOp::kSum);
                        context.set_non_tensor_output("traced", 1);
                        EXPECT_THAT(error_of([&] { context.set_last_step_output("none", x); }),
                                    HasSubstr("say how the replicas' values become one"));
                      },
                      batch.first, batch.second);
                  context.set_last_step_output("x", batch.first);
                });
  EXPECT_EQ(done.iterations(), 3);
  EXPECT_EQ(done.last_step_outputs().at("sum")[0].item(), 27);
  EXPECT_EQ(done.last_step_outputs().at("x")[1].item(), 6);
  EXPECT_EQ(std::any_cast<int>(done.non_tensor_outputs().at("traced")), 1);
  const auto nothing = [](MultiStepContext&, const std::pair<PerReplica<Value>, PerReplica<Value>>&) {};
  EXPECT_EQ(run_steps(strategy, pairs_of({}), 0, nothing, {{"y", Tensor::scalar(5.F)}})
                .last_step_outputs()
                .at("y")[0]
                .item(),
            5);
  EXPECT_THAT(error_of([&] { run_steps(strategy, pairs_of({1}), 2, nothing); }),
              HasSubstr("ended after 1 of 2"));
  EXPECT_THAT(error_of([&] { run_steps(strategy, pairs_of({}), 2, nothing); }),
              HasSubstr("ended after 0 of 2"));
  EXPECT_EQ(compat::experimental_run(
                strategy, [](const std::pair<Value, Value>& both) { return both.first + both.second; },
                pairs_of({4}))[1]
                .item(),
            12);
}

TEST(RunSteps, LoopsInsideTheProgramWithoutASource) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(0.F), {.aggregation = Aggregation::kMean});
  const std::uint64_t before = strategy.variables().step();
  const auto count = [&](MultiStepContext& context) {
    strategy.run([&] { w.assign(w + 1.F); });
    context.set_last_step_output("w", w.read());
  };
  const MultiStepContext done = run_steps(strategy, 7, count);
  EXPECT_EQ(done.iterations(), 7);
  EXPECT_EQ(done.last_step_outputs().at("w")[0].item(), 7);
  EXPECT_EQ(strategy.variables().step() - before, 7U);  // each iteration committed
  // One that fails says how many did.
  std::atomic<int> runs = 0;
  try {
    run_steps(strategy, 5, [&](MultiStepContext& context) {
      strategy.run([&] { w.assign(w + 1.F); });
      const TensorSpec spec{DType::kF32, Shape{}};
      context.set_last_step_output("y", current_builder()->call("fails", {}, {{spec}}, [&](KernelContext& c) {
        if (++runs > 2) throw std::domain_error("third");
        c.output<float>(0)[0] = 0;
      })[0]);
    });
    ADD_FAILURE() << "the third iteration fails";
  } catch (const RunError& error) {
    EXPECT_EQ(error.committed_steps(), 2U);
  }
  EXPECT_EQ(w.value().item(), 9);
}

// --- lower-level methods

TEST(ExtendedMap, TakesArgumentsAndIsReduced) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  const auto f = strategy.cross_function({kScalar}, [&](const PerReplica<Value>& x) {
    const Value items[] = {x[0], x[1], x[0] + x[1]};
    const PerReplica<Value> by[] = {PerReplica<Value>(strategy.reduce(ReduceOp::kMax, x))};
    const auto times = [](const Value& item, std::span<const Value> arguments) {
      return item * arguments[0];
    };
    const extended::Mapped mapped = extended::map(strategy, items, times, by);
    EXPECT_THAT(error_of([&] {
                  extended::map(strategy, items, times, {&x, 1});
                }),
                HasSubstr("Expected value to be mirrored"));
    return std::pair(extended::reduce_mapped(strategy, ReduceOp::kSum, mapped),
                     extended::reduce_mapped(strategy, ReduceOp::kMean, mapped));
  });
  const auto [total, average] = f(scalars({1, 2}));
  EXPECT_EQ(total[0].item(), 12);
  EXPECT_EQ(average[0].item(), 4);  // over items, not devices
}

TEST(Destinations, AreThoseOfAValue) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  strategy.cross_function({kScalar}, [&](const PerReplica<Value>& x) {
    const auto guard = current_builder()->device(test_device(1));
    const PerReplica<Value> there(x[0] * 2.F);
    EXPECT_THAT(extended::Destinations(there).devices(), ElementsAre(test_device(1)));
    EXPECT_TRUE(extended::Destinations(x).every_replica());
    return extended::reduce_to(strategy, ReduceOp::kSum, x, there);
  });
}

TEST(UpdateConfig, ChangesNothingItIsGiven) {
  MirroredStrategy strategy({.devices = {"cpu:0", "cpu:3"}});
  const RuntimeOptions given{.cpu_devices = 2};
  EXPECT_EQ(extended::update_config(strategy, given).cpu_devices, 4U);
  EXPECT_EQ(given.cpu_devices, 2U);
  EXPECT_EQ(extended::update_config(strategy, RuntimeOptions{.cpu_devices = 9}).cpu_devices, 9U);
}

// --- what is known of collectives

TEST(AllGather, HasAnUnknownExtentUntilReplicasAreKnown) {
  for (const std::size_t replicas : {1U, 2U}) {
    std::vector<std::string> devices = {"cpu:0", "cpu:1"};
    devices.resize(replicas);
    MirroredStrategy strategy({.devices = devices});
    const auto f = strategy.function({InputSpec(DType::kF32, Shape{2}, "x")}, [](Value x) {
      const Value all = replica_context().all_gather(x);
      EXPECT_EQ(all.shape()[0], kUnknown);
      return std::pair(shape_of(all), sum(all));
    });
    const auto [shape, total] = f(vec({1, 2}));
    EXPECT_EQ(shape[0].data<std::int64_t>()[0], static_cast<std::int64_t>(2 * replicas));
    EXPECT_EQ(total[0].item(), 3. * static_cast<double>(replicas));
  }
}

TEST(StepSchedule, IsKeptWithItsDigest) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  const auto reduced = [&](ReduceOp op) {
    return strategy.function({kScalar}, [=](Value x) { return replica_context().all_reduce(op, x); });
  };
  const auto sum_step = reduced(ReduceOp::kSum), again = reduced(ReduceOp::kSum),
             max_step = reduced(ReduceOp::kMax);
  ASSERT_EQ(sum_step.collective_schedule().size(), 1U);
  EXPECT_EQ(sum_step.collective_schedule()[0].to_string(), "0 all_reduce sum f32 x 1");
  EXPECT_EQ(sum_step.collective_digest(), again.collective_digest());
  EXPECT_NE(sum_step.collective_digest(), max_step.collective_digest());
}

TEST(CheckAssigns, SeesWhatTheBuilderAssigns) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  auto scope = strategy.scope();
  const Variable total("total", Tensor::scalar(0.F), {.aggregation = Aggregation::kSum});
  const auto assigned = [&](float value) {
    return error_of([&] {
      strategy.function({}, [&] {
        GraphBuilder& builder = *current_builder();
        builder.assign(total, builder.constant(value));
      });
    });
  };
  EXPECT_THAT(assigned(1), HasSubstr("same on all replicas"));
  EXPECT_EQ(assigned(0), "no error");
}

}  // namespace
}  // namespace lockstep
