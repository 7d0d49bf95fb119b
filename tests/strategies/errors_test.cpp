// Tests: strategies/central_storage.cpp, strategies/extended.cpp, strategies/make_strategy.cpp,
//        strategies/mirrored.cpp, strategies/one_device.cpp, strategies/run_steps.cpp,
//        strategies/trace/assign_check.cpp
// Wrong devices, options, values, variables and reductions.
#include <functional>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/gradients.h"
#include "lockstep/strategies/central_storage.h"
#include "lockstep/strategies/compat.h"
#include "lockstep/strategies/extended.h"
#include "lockstep/strategies/make_strategy.h"
#include "lockstep/strategies/mirrored.h"
#include "lockstep/strategies/one_device.h"
#include "lockstep/strategies/run_steps.h"
#include "support/mistakes.h"
#include "support/test_devices.h"

namespace lockstep {
namespace {

using testing::kVector;
using testing::test_devices;
using testing::vec;

// --- devices and options

TEST_F(StrategyErrors, DevicesAndOptionsAreChecked) {
  if (testing::on_gpus()) GTEST_SKIP() << "of CPUs";
  const auto mirrored_with = [](std::vector<std::string> devices) {
    return [devices] { MirroredStrategy({.devices = devices}); };
  };
  expect_refused({
      {"no devices", mirrored_with({}), kArgument, {"must not be empty", "leave it out"}},
      {"a device twice", mirrored_with({"cpu:0", "cpu:1", "cpu:0"}), kArgument, {"'cpu:0' is listed twice"}},
      {"in two spellings", mirrored_with({"cpu:1", "/device:CPU:1"}), kArgument, {"'cpu:1' is listed twice"}},
      {"in case", mirrored_with({"/cpu:0", "CPU:0"}), kArgument, {"listed twice"}},
      {"no such kind", mirrored_with({"abacus:0"}), kArgument, {"abacus:0"}},
      {"another machine's",
       mirrored_with({"cpu:0", "/job:worker/task:1/cpu:0"}),
       kArgument,
       {"/job:worker/task:1"}},
      {"one device of OneDevice", [] { OneDeviceStrategy("nowhere"); }, kArgument, {"nowhere"}},
      {"more than the runtime has",
       [] {
         MirroredStrategy(
             {.devices = test_devices(2), .base = {.runtime = Runtime({.threads = 1, .cpu_devices = 1})}});
       },
       kArgument,
       {"cpu:1"}},
      {"a parameter device",
       [] { CentralStorageStrategy({.devices = test_devices(2)}, "cpu:x"); },
       kArgument,
       {"cpu:x"}},
      {"unknown ways to reduce",
       [] { MirroredStrategy({.devices = test_devices(2), .cross_device_ops = "mpi"}); },
       kArgument,
       {"'mpi'", "nccl", "also auto"}},
      {"negative packs",
       [] { MirroredStrategy({.devices = test_devices(1), .num_packs = -2}); },
       kArgument,
       {"num_packs"}},
      {"negative bytes",
       [] { MirroredStrategy({.devices = test_devices(1), .bytes_per_pack = -1}); },
       kArgument,
       {"bytes_per_pack"}},
      {"packs and bytes",
       [] { MirroredStrategy({.devices = test_devices(1), .bytes_per_pack = 1024, .num_packs = 2}); },
       kArgument,
       {"bytes_per_pack=1024 and num_packs=2 say two things", "give one of them"}},
      {"reducing where nothing is",
       [] {
         MirroredStrategy({.devices = test_devices(2),
                           .cross_device_ops = "reduction_to_one_device",
                           .reduce_device = "cpu:7",
                           .base = {.runtime = Runtime({.threads = 1, .cpu_devices = 2})}});
       },
       kArgument,
       {"device 'cpu:7'"}},
      {"storing where nothing is",
       [] {
         CentralStorageStrategy(
             {.devices = test_devices(2), .base = {.runtime = Runtime({.threads = 1, .cpu_devices = 2})}},
             "cpu:2");
       },
       kArgument,
       {"device 'cpu:2'"}},
      {"nor on another machine",
       [] { CentralStorageStrategy({.devices = test_devices(1)}, "/job:worker/task:1/cpu:0"); },
       kArgument,
       {"/job:worker/task:1"}},
      {"no devices in text", [] { make_strategy("mirrored(devices=[])"); }, kArgument, {"must not be empty"}},
      {"nor for central storage",
       [] { make_strategy("central-storage(devices=[])"); },
       kArgument,
       {"must not be empty"}},
      {"step passes",
       [] { MirroredStrategy({.devices = test_devices(1), .step_passes = "clip-by-global-nrom(norm=1)"}); },
       ErrorCode::kNotFound,
       {"clip-by-global-nrom"}},
      {"a strategy that is none",
       [] { make_strategy("parameter-server"); },
       ErrorCode::kNotFound,
       {"no strategy named 'parameter-server' is registered; did you mean", "'mirrored'"}},
  });
}

// As options and as text.
TEST_F(StrategyErrors, CountsOfGpusAreChecked) {
  if (testing::on_gpus()) GTEST_SKIP() << "of a machine without GPUs";
  const std::string both = "You cannot specify both num_gpus and num_gpus_per_worker";
  const std::string one_of = "Must only specify one of devices and num_gpus";
  const auto text = [](const std::string& options) {
    return [options] { make_strategy("mirrored(" + options + ")"); };
  };
  expect_refused({
      {"two names",
       [] { MirroredStrategy(compat::mirrored_options(1, {.num_gpus = 1})); },
       kArgument,
       {both}},
      {"text", text("num_gpus=0,num_gpus_per_worker=0"), kArgument, {both}},
      {"beside devices",
       [] { MirroredStrategy({.devices = test_devices(1), .num_gpus = 0}); },
       kArgument,
       {one_of, "name the devices, or count them"}},
      {"text", text("devices=[cpu:0],num_gpus=0"), kArgument, {one_of}},
      {"the other name",
       [] { MirroredStrategy(compat::mirrored_options(1, {.devices = test_devices(1)})); },
       kArgument,
       {one_of}},
      {"text", text("devices=[cpu:0],num_gpus_per_worker=1"), kArgument, {one_of}},
      {"fewer than none", [] { MirroredStrategy({.num_gpus = -1}); }, kArgument, {"0 or more, got -1"}},
      {"text", text("num_gpus=-1"), kArgument, {"0 or more, got -1"}},
      {"more than there are", [] { MirroredStrategy({.num_gpus = 2}); }, kArgument, {"device 'gpu:0'"}},
      {"text", text("num_gpus_per_worker=2"), kArgument, {"device 'gpu:0'"}},
  });
}

// --- values

TEST_F(StrategyErrors, ReductionsAreChecked) {
  const PerReplica<Tensor> one_slot(std::vector<Tensor>{vec({1})}),
      integers(std::vector<Tensor>{Tensor::scalar(1), Tensor::scalar(2)});
  const auto reduced = [&](ReduceOp op, const PerReplica<Tensor>& value,
                           std::optional<std::int64_t> axis = {}) {
    return [=, this] { strategy.reduce(op, value, axis); };
  };
  const std::string same = "divide by their number first, or take the mean";
  expect_refused({
      {"no such op",
       [] { parse_reduce_op("median"); },
       kArgument,
       {"'median' is no way to reduce", "sum, mean"}},
      {"the sum of a single value", reduced(ReduceOp::kSum, vec({1})), kArgument, {"a single value", same}},
      {"of a mirrored one", reduced(ReduceOp::kSum, mirrored_value), kArgument, {"a mirrored value", same}},
      {"the product of a mirrored one",
       reduced(ReduceOp::kProd, mirrored_value),
       kArgument,
       {"a mirrored value cannot be multiplied over replicas", "the value itself"}},
      {"of a single one", reduced(ReduceOp::kProd, vec({1})), kArgument, {"a single value cannot be multi"}},
      {"with an axis", reduced(ReduceOp::kSum, mirrored_value, 0), kArgument, {"a mirrored value", same}},
      {"an axis that is not there",
       reduced(ReduceOp::kMean, per_replica, 1),
       kArgument,
       {"axis 1 is out of range for values of rank 1"}},
      {"a negative one", reduced(ReduceOp::kSum, per_replica, -2), kArgument, {"axis -2 is out of range"}},
      {"the largest along an axis",
       reduced(ReduceOp::kMax, per_replica, 0),
       kArgument,
       {"over an axis it takes sum or mean, got max"}},
      {"too few slots", reduced(ReduceOp::kSum, integers), kArgument, {"2 slots for 3 replicas"}},
      {"one slot", reduced(ReduceOp::kSum, one_slot), kArgument, {"1 slot for 3 replicas"}},
      {"the mean of one slot", reduced(ReduceOp::kMean, one_slot), kArgument, {"1 slot for 3 replicas"}},
      {"nothing", reduced(ReduceOp::kSum, PerReplica<Tensor>()), kArgument, {"the value is empty"}},
      {"shapes that differ",
       reduced(ReduceOp::kSum, PerReplica<Tensor>(std::vector<Tensor>{vec({1}), vec({1, 2}), vec({1})})),
       kArgument,
       {"f32[2]", "errors_test.cpp:"}},
      {"dtypes that differ",
       reduced(ReduceOp::kSum, PerReplica<Tensor>(std::vector<Tensor>{Tensor::scalar(1.F), Tensor::scalar(1),
                                                                      Tensor::scalar(1)})),
       kArgument,
       {"i32[]"}},
      {"reduce_to the largest",
       across([&](const PerReplica<Value>& x) { extended::reduce_to(strategy, ReduceOp::kMax, x, w); }),
       kArgument,
       {"reduce_to() takes sum or mean, got max"}},
      {"a batch to the least",
       across([&](const PerReplica<Value>& x) {
         const std::pair<PerReplica<Value>, extended::Destinations> pairs[] = {{x, w}};
         extended::batch_reduce_to(strategy, ReduceOp::kMin, pairs);
       }),
       kArgument,
       {"batch_reduce_to() takes sum or mean, got min"}},
      {"reduce_to of one slot",
       across([&](const PerReplica<Value>& x) {
         extended::reduce_to(strategy, ReduceOp::kSum, PerReplica<Value>(std::vector<Value>{x[0]}), w);
       }),
       kArgument,
       {"1 slot for 3 replicas"}},
      {"reduce_to of what is mirrored",
       across([&](const PerReplica<Value>& x) {
         const PerReplica<Value> all = extended::reduce_to(strategy, ReduceOp::kSum, x, w);
         extended::reduce_to(strategy, ReduceOp::kSum, all, w);
       }),
       kArgument,
       {"a mirrored value", same}},
      {"nowhere", [] { extended::Destinations(""); }, kArgument, {"destinations can not be empty"}},
      {"to no device of a list",
       [] { extended::Destinations{std::vector<std::string>()}; },
       kArgument,
       {"destinations can not be empty"}},
      {"to one device twice",
       [] {
         extended::Destinations{std::vector<std::string>{"cpu:1", "/device:CPU:1"}};
       },
       kArgument,
       {"'cpu:1' is listed twice"}},
      {"the first of too few",
       across([&](const PerReplica<Value>& x) {
         extended::first_replica_to(strategy, PerReplica<Value>(std::vector<Value>{x[0]}), w);
       }),
       kArgument,
       {"first_replica_to()", "1 slot for 3 replicas"}},
      {"to an empty value",
       [] { extended::Destinations{PerReplica<Value>()}; },
       kArgument,
       {"destinations can not be empty"}},
      {"outside of functions",
       [&] {
         auto scope = strategy.scope();
         extended::reduce_to(strategy, ReduceOp::kSum, PerReplica<Value>(), "cpu:0");
       },
       kContext,
       {"makes nodes"}},
      {"a gradient of the largest",
       in_replica([](Value x) { gradients(sum(replica_context().all_reduce(ReduceOp::kMax, x)), {x}); }),
       kArgument,
       {"all_reduce of max has no gradient", "sum and mean"}},
      {"gathering along no axis",
       in_replica([](Value x) { replica_context().all_gather(x, 3); }),
       kArgument,
       {"axis"}},
  });
}

TEST_F(StrategyErrors, FunctionsAndResultsAreChecked) {
  const auto f = strategy.function({kVector, InputSpec(DType::kF32, Shape{}, "rate", true)},
                                   [](Value x, Value rate) { return x * rate; });
  const Tensor rate = Tensor::scalar(1.F);
  const std::vector<Tensor> two = {vec({1}), vec({2})};
  expect_refused({
      {"an argument too few", [&] { f(per_replica); }, kArgument, {"takes 2 values, got 1"}},
      {"slots too few",
       [&] { f(PerReplica<Tensor>(two), rate); },
       kArgument,
       {"input 'x' has 2 slots for 3 replicas"}},
      {"a shared input per replica",
       [&] { f(per_replica, per_replica); },
       kArgument,
       {"input 'rate' is shared by all replicas", "per replica"}},
      {"another dtype", [&] { f(Tensor::scalar(1), rate); }, kArgument, {"x"}},
      {"values and parameters",
       [&] { strategy.function({kVector}, [](Value, Value) {}); },
       kArgument,
       {"takes 2 values, got 1"}},
      {"no tensor for a replica",
       [&] {
         strategy.distribute_values_from_function(
             [](std::int64_t replica, std::int64_t) { return replica == 2 ? Tensor() : vec({1}); });
       },
       kArgument,
       {"distribute_values_from_function(): the tensor for replica 2 is empty"}},
      {"slots of several dtypes",
       [&] {
         strategy.run([](Value x) { return x; },
                      PerReplica<Tensor>(std::vector<Tensor>{vec({1}), vec({1}), Tensor::scalar(1)}));
       },
       kArgument,
       {"the slots of an argument are"}},
      {"results with too few slots",
       [&] {
         strategy.cross_function({kVector}, [](const PerReplica<Value>& x) {
           return PerReplica<Value>(std::vector<Value>{x[0], x[1]});
         });
       },
       kArgument,
       {"2 slots for 3 replicas", "one for all"}},
      {"results with one slot",
       [&] {
         strategy.cross_function({kVector}, [](const PerReplica<Value>& x) {
           return PerReplica<Value>(std::vector<Value>{x[0]});
         });
       },
       kArgument,
       {"1 slot for 3 replicas"}},
      {"mirrored ones",
       [&] {
         strategy.cross_function({kVector}, [](const PerReplica<Value>& x) {
           return mirrored(std::vector<Value>{x[0], x[0]});
         });
       },
       kArgument,
       {"2 slots for 3 replicas"}},
      {"merge results",
       in_replica([](Value x) {
         replica_context().merge_call(
             [](Strategy&, const PerReplica<Value>& v) {
               return PerReplica<Value>(std::vector<Value>{v[0], v[1]});
             },
             x);
       }),
       kArgument,
       {"merge_call", "2 values for 3 replicas"}},
      {"a merge function that sees one replica",
       in_replica([](Value x) {
         replica_context().merge_call([&](Strategy&, const PerReplica<Value>&) { return x; }, x);
       }),
       kArgument,
       {"hand it over as an argument"}},
      {"an argument of run with too few slots",
       across([&](const PerReplica<Value>& x) {
         strategy.run([](Value v) { return v; }, PerReplica<Value>(std::vector<Value>{x[0]}));
       }),
       kArgument,
       {"1 slot for 3 replicas"}},
      {"run on Values outside",
       [&] {
         auto scope = strategy.scope();
         strategy.run([](Value v) { return v; }, PerReplica<Value>(std::vector<Value>(3)));
       },
       kContext,
       {"inside cross_function()"}},
      {"a function in a function",
       across([&](const PerReplica<Value>&) { strategy.function({kVector}, [](Value x) { return x; }); }),
       kContext,
       {"while another one is being traced"}},
      {"an empty function", [] { Step().run({}); }, kContext, {"this function is empty"}},
      {"no slots", [] { PerReplica<Tensor>(std::vector<Tensor>()); }, kArgument, {"at least one slot"}},
      {"a replica that is not there", [&] { per_replica[3]; }, kArgument, {"no replica 3; the value has 3"}},
      {"a predicate that differs",
       in_replica([&](Value x) {
         cond(
             sum(x) > 0.F,
             [&]() -> std::vector<Value> { return {replica_context().all_reduce(ReduceOp::kSum, sum(x))}; },
             [&]() -> std::vector<Value> { return {sum(x)}; });
       }),
       kArgument,
       {"prove-sync", "must be equal on all replicas", "all_reduce it"}},
  });
}

// --- variables and updates

TEST_F(StrategyErrors, VariablesAreChecked) {
  const auto made = [&](std::string name, Tensor initial, VariableOptions options = {}) {
    return [=, this] {
      auto scope = strategy.scope();
      const Variable variable(name, initial, options);
    };
  };
  {
    auto scope = strategy.scope();
    const Variable copy_first("late/replica_2", vec({1})), counted("counted", vec({1}));
  }
  expect_refused({
      {"a taken name", made("w", vec({1})), kArgument, {"variable 'w' exists already"}},
      {"no value", made("v", Tensor()), kArgument, {"'v' needs an initial value"}},
      {"no name", made("", vec({1})), kArgument, {"name"}},
      {"no synchronization",
       made("v", vec({1}), {.synchronization = Synchronization::kNone}),
       kArgument,
       {"`NONE` variable synchronization mode is not supported"}},
      {"unknown synchronization",
       made("v", vec({1}), {.synchronization = static_cast<Synchronization>(9)}),
       kArgument,
       {"Invalid variable synchronization mode"}},
      {"unknown aggregation",
       made("v", vec({1}), {.aggregation = static_cast<Aggregation>(9)}),
       kArgument,
       {"Invalid variable aggregation mode"}},
      {"the name of a copy",
       made("counted/replica_1", vec({1})),
       kArgument,
       {"'counted/replica_1'", "the copy of 'counted' for replica 1"}},
      {"a copy whose name is taken",
       made("late", vec({1})),
       kArgument,
       {"'late/replica_2'", "the copy of 'late' for replica 2"}},
      {"its value while tracing", in_replica([&](Value) { w.value(); }), kContext, {"'w'", "use read()"}},
      {"its copies while tracing", in_replica([&](Value) { w.copies(); }), kContext, {"'w'", "use read()"}},
      {"a tensor while tracing",
       in_replica([&](Value) {
         w.assign(vec({1, 2}));
       }),
       kContext,
       {"'w' is given a tensor while a function is traced", "assign a Value"}},
      {"its value while tracing",
       in_replica([&](Value) { w.value(); }),
       kContext,
       {"'w' is asked for its value while a function is traced", "use read()"}},
      {"a read outside", [&] { w.read(); }, kContext, {"'w' reads as a Value only where", "use value()"}},
      {"a Value outside", [&] { w.assign(Value()); }, kContext, {"'w' takes Values only where"}},
      {"another shape outside", [&] { w.assign(vec({1})); }, kArgument, {"'w' holds f32[2], got f32[1]"}},
      {"another shape inside",
       in_replica([&](Value x) { w.assign(broadcast_to(sum(x), Shape{3})); }),
       kArgument,
       {"w"}},
      {"a value per replica across",
       across([&](const PerReplica<Value>& x) {
         strategy.update(
             w, [](const Variable& copy, std::span<const Value> in) { return copy.assign(in[0]); }, {&x, 1});
       }),
       kArgument,
       {"update() of 'w'", "Expected value to be mirrored across replicas", "reduce it first"}},
      {"an update on other devices",
       across([&](const PerReplica<Value>&) {
         const std::vector<std::string> devices = {"cpu:0"};
         extended::update_non_slot(strategy, devices, [](std::span<const Value> in) { return in[0]; }, {});
       }),
       kArgument,
       {"update_non_slot()", "use non_slot_devices()"}},
  });
  EXPECT_EQ(w.value().data<float>()[1], 2);
}

// --- many steps

TEST_F(StrategyErrors, ManyStepsAreChecked) {
  const auto nothing = [](MultiStepContext&, std::span<const PerReplica<Value>>) {};
  const auto output = [](MultiStepContext& c, std::span<const PerReplica<Value>> in) {
    c.set_last_step_output("y", in[0]);
  };
  const auto setting = [&](std::optional<ReduceOp> reduce) {
    return [=, this](MultiStepContext& c, std::span<const PerReplica<Value>> in) {
      strategy.run([&](Value x) { c.set_last_step_output("y", PerReplica<Value>(x), reduce); }, in[0]);
    };
  };
  const BatchSource source = [&] { return std::vector{per_replica}; };
  expect_refused({
      {"fewer than none",
       [&] { run_steps(strategy, source, -1, {kVector}, nothing); },
       kArgument,
       {"-1 iterations"}},
      {"a replica's output",
       [&] { run_steps(strategy, source, 1, {kVector}, setting(std::nullopt)); },
       kArgument,
       {"output 'y' is set in replica context", "say how"}},
      {"initial values of nothing",
       [&] {
         run_steps(strategy, source, 1, {kVector}, output, {{"z", per_replica}});
       },
       kArgument,
       {"an initial value for 'z', which is no output"}},
      {"of another shape",
       [&] {
         run_steps(strategy, source, 1, {kVector}, output,
                   {{"y", PerReplica<Tensor>(std::vector<Tensor>(3, Tensor::scalar(1.F)))}});
       },
       kArgument,
       {"the initial value for 'y' is f32[], the output f32[?]"}},
      {"of another dtype",
       [&] {
         run_steps(strategy, source, 1, {kVector}, setting(ReduceOp::kSum),
                   {{"y", Tensor::from(Shape{1}, {std::int32_t{1}})}});
       },
       kArgument,
       {"the initial value for 'y' is i32[1], the output f32[?]"}},
      {"one for all replicas",
       [&] {
         run_steps(strategy, source, 1, {kVector}, output, {{"y", vec({1})}});
       },
       kArgument,
       {"is single, the output per replica", "as broadcast() does"}},
      {"one for each where there is one",
       [&] {
         run_steps(strategy, source, 1, {kVector}, setting(ReduceOp::kSum), {{"y", per_replica}});
       },
       kArgument,
       {"is per replica, the output single", "give the one value"}},
      {"a source that has ended",
       [&] {
         run_steps(
             strategy, [] { return std::nullopt; }, 1, {kVector}, output);
       },
       kContext,
       {"ended after 0 of 1"}},
      {"a batch of another kind",
       [&] {
         run_steps(
             strategy,
             [&] {
               return std::vector{per_replica, per_replica};
             },
             1, {kVector}, output);
       },
       kArgument,
       {"iteration 0", "takes 1 value, got 2"}},
      {"one step of nothing",
       [&] {
         compat::experimental_run(
             strategy, [](Value x) { return x; }, [] { return std::nullopt; });
       },
       kContext,
       {"has ended"}},
  });
  // No steps at all: nothing is asked of the source, and outputs are the initial ones.
  int asked = 0;
  const BatchSource counted = [&]() -> std::optional<std::vector<PerReplica<Tensor>>> {
    ++asked;
    return std::nullopt;
  };
  const MultiStepContext none = run_steps(strategy, counted, 0, {kVector}, output, {{"y", per_replica}});
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(none.iterations(), 0);
  EXPECT_EQ(none.last_step_outputs().at("y")[2].item(), 3);
  EXPECT_TRUE(run_steps(strategy, counted, 0, {kVector}, output).last_step_outputs().empty());
  const StepOutputs same = {{"y", strategy.broadcast(vec({5}))}};
  EXPECT_EQ(run_steps(strategy, counted, 0, {kVector}, output, same).last_step_outputs().at("y")[2].item(),
            5);
}

}  // namespace
}  // namespace lockstep
