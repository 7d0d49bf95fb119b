// Tests: strategies/central_storage.cpp, strategies/extended.cpp, strategies/make_strategy.cpp,
//        strategies/mirrored.cpp, strategies/one_device.cpp, strategies/run_steps.cpp
#include "lockstep/strategies/extended.h"

#include <atomic>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/strategies/central_storage.h"
#include "lockstep/strategies/compat.h"
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
using testing::error_of;
using ::testing::HasSubstr;
using testing::kScalar;
using testing::scalars;
using testing::test_device;
using testing::test_devices;
using ::testing::UnorderedElementsAre;

class Extended : public ::testing::Test {
 protected:
  MirroredStrategy strategy{{.devices = test_devices(2)}};
};

TEST_F(Extended, ReducesToDestinations) {
  const Variable w = [&] {
    auto scope = strategy.scope();
    return Variable("w", Tensor::scalar(0.F));
  }();
  const auto f = strategy.cross_function({kScalar}, [&](const PerReplica<Value>& x) {
    const PerReplica<Value> all = extended::reduce_to(strategy, ReduceOp::kSum, x, w);
    EXPECT_EQ(all.kind(), ReplicaKind::kMirrored);
    const PerReplica<Value> one = extended::reduce_to(strategy, ReduceOp::kMean, x, test_device(1));
    EXPECT_EQ(one.kind(), ReplicaKind::kSingle);
    return std::pair(all, one);
  });
  const auto [all, one] = f(scalars({1, 5}));
  EXPECT_EQ(all[0].item(), 6);
  EXPECT_EQ(all[1].item(), 6);
  EXPECT_EQ(one[0].item(), 3);
  EXPECT_THAT(error_of([&] {
                strategy.cross_function({kScalar}, [&](const PerReplica<Value>& x) {
                  return extended::reduce_to(strategy, ReduceOp::kMax, x, x);
                });
              }),
              HasSubstr("takes sum or mean"));
  EXPECT_THAT(error_of([&] { extended::Destinations(""); }), HasSubstr("can not be empty"));
  EXPECT_THAT(error_of([&] { extended::Destinations{PerReplica<Value>()}; }), HasSubstr("can not be empty"));
}

// The nodes are where they were told to be, in the traced step and in what runs.
TEST_F(Extended, PlacesNodesAtTheirDestinations) {
  MirroredStrategy plain({.devices = test_devices(2), .optimize = false});
  const auto f = plain.cross_function({kScalar}, [&](const PerReplica<Value>& x) {
    const PerReplica<Value> sum = extended::reduce_to(plain, ReduceOp::kSum, x, test_device(1));
    const PerReplica<Value> copy = extended::broadcast_to(plain, x[0], test_device(1));
    const Value items[] = {x[0], x[1], x[0] + x[1]};
    return std::tuple(sum, copy, extended::map(plain, items, [](const Value& item) { return neg(item); }));
  });
  for (const Graph* graph : {&f.step_graph(), &f.replicated_graph()}) {
    EXPECT_THAT(devices_of(*graph, "reduce_replicas"), ElementsAre(test_device(1)));
    EXPECT_THAT(devices_of(*graph, "copy"),
                ::testing::Each(test_device(1)));  // and from one memory to another
    EXPECT_THAT(devices_of(*graph, "neg"),
                UnorderedElementsAre(test_device(0), test_device(1), test_device(0)));
  }
  const auto [sum, copy, mapped] = f(scalars({1, 5}));
  EXPECT_EQ(sum[0].item(), 6);
  EXPECT_EQ(copy[0].item(), 1);
  EXPECT_EQ(mapped.at(test_device(0))[1][0].item(), -6);
}

TEST_F(Extended, TakesListsOfDevicesAndTheFirstReplica) {
  MirroredStrategy three({.devices = test_devices(3), .optimize = false});
  const auto f = three.cross_function({kScalar}, [&](const PerReplica<Value>& x) {
    const PerReplica<Value> first = extended::first_replica_to(three, x, x);
    EXPECT_EQ(first.kind(), ReplicaKind::kMirrored);
    const PerReplica<Value> listed = extended::reduce_to(
        three, ReduceOp::kSum, x, std::vector<std::string>{test_device(2), "/" + test_device(0)});
    EXPECT_EQ(listed.kind(), ReplicaKind::kMirrored);
    EXPECT_EQ(listed.size(), 2U);
    const PerReplica<Value> all = extended::reduce_to(three, ReduceOp::kMean, x, three.worker_devices());
    EXPECT_EQ(all.kind(), ReplicaKind::kMirrored);
    // Nothing has to be combined, but moved it is.
    const PerReplica<Value> moved = extended::reduce_to(three, ReduceOp::kMean, first, test_device(1));
    return std::vector<PerReplica<Value>>{first, listed[0], listed[1], all, moved};
  });
  EXPECT_THAT(devices_of(f.step_graph(), "copy"),
              ElementsAre(test_device(2), test_device(0), test_device(1)));
  EXPECT_THAT(devices_of(f.step_graph(), "reduce_replicas"), ElementsAre(test_device(2), ""));
  const std::vector<PerReplica<Tensor>> out = f(scalars({1, 2, 6}));
  EXPECT_EQ(out[0][2].item(), 1);
  EXPECT_EQ(out[1][0].item(), 9);
  EXPECT_EQ(out[2][0].item(), 9);
  EXPECT_EQ(out[3][2].item(), 3);
  EXPECT_EQ(out[4][0].item(), 1);
}

TEST_F(Extended, BatchReducesInOneNode) {
  const auto f =
      strategy.cross_function({kScalar, InputSpec(DType::kF32, Shape{}, "y")},
                              [&](const PerReplica<Value>& x, const PerReplica<Value>& y) {
                                const std::pair<PerReplica<Value>, extended::Destinations> pairs[] = {
                                    {x, x}, {y, test_device(0)}, {y, y}};
                                return extended::batch_reduce_to(strategy, ReduceOp::kSum, pairs);
                              });
  int reductions = 0;
  for (const Node& node : f.step_graph().nodes()) reductions += node.op().name == "reduce_replicas" ? 1 : 0;
  EXPECT_EQ(reductions, 2);
  const std::vector<PerReplica<Tensor>> out = f(scalars({1, 2}), scalars({10, 20}));
  EXPECT_EQ(out[0][1].item(), 3);
  EXPECT_EQ(out[1][0].item(), 30);
  EXPECT_EQ(out[2][0].item(), 30);
}

TEST_F(Extended, UpdatesWithoutAVariable) {
  const auto f =
      strategy.cross_function({InputSpec(DType::kF32, Shape{}, "x", true)}, [&](const PerReplica<Value>& x) {
        return extended::update_non_slot(strategy, extended::non_slot_devices(strategy),
                                         [](std::span<const Value> in) { return in[0] * 2.F; }, {&x, 1});
      });
  EXPECT_EQ(f(Tensor::scalar(4.F))[0].item(), 8);
  EXPECT_THAT(error_of([&] {
                strategy.cross_function({kScalar}, [&](const PerReplica<Value>& x) {
                  return extended::update_non_slot(strategy, extended::non_slot_devices(strategy),
                                                   [](std::span<const Value> in) { return in[0]; }, {&x, 1});
                });
              }),
              HasSubstr("Expected value to be mirrored"));
}

TEST_F(Extended, MapsItemsOverDevices) {
  const auto f = strategy.cross_function({kScalar}, [&](const PerReplica<Value>& x) {
    const Value items[] = {x[0], x[1], x[0] + x[1]};
    return extended::map(strategy, items, [](const Value& item) { return item * 10.F; });
  });
  const auto out = f(scalars({1, 2}));
  ASSERT_EQ(out.size(), 2U);
  ASSERT_EQ(out.at(test_device(0)).size(), 2U);
  EXPECT_EQ(out.at(test_device(0))[1][0].item(), 30);
  EXPECT_EQ(out.at(test_device(1))[0][0].item(), 20);
}

TEST_F(Extended, KnowsTheRest) {
  if (testing::on_gpus()) GTEST_SKIP() << "of CPUs";
  EXPECT_EQ(extended::worker_device_index(strategy)[1].item(), 1);
  EXPECT_EQ(extended::update_config(strategy, RuntimeOptions()).cpu_devices, 2U);
  EXPECT_TRUE(compat::initialize(strategy).empty());
  EXPECT_FALSE(compat::is_single_tower(strategy));
  EXPECT_FALSE(compat::between_graph(strategy));
  EXPECT_TRUE(compat::should_init(strategy) && compat::should_checkpoint(strategy) &&
              compat::should_save_summary(strategy));
  MirroredStrategy other({.devices = test_devices(1)});
  const Variable foreign = [&] {
    auto scope = other.scope();
    return Variable("w", Tensor::scalar(0.F));
  }();
  EXPECT_THAT(error_of([&] { auto guard = extended::colocate_vars_with(strategy, foreign); }),
              HasSubstr("belongs to another strategy"));
  const auto f = strategy.cross_function({kScalar}, [&](const PerReplica<Value>& x) {
    EXPECT_NE(extended::group(strategy, x, "all"), x[0].id().node);
    EXPECT_EQ(extended::group(strategy, PerReplica<Value>(x[0])), x[0].id().node);
    return x;
  });
  EXPECT_EQ(f(scalars({1, 2}))[1].item(), 2);
}

// --- run_steps

BatchSource counting(int batches) {
  return [batches, next = 0]() mutable -> std::optional<std::vector<PerReplica<Tensor>>> {
    if (next == batches) return std::nullopt;
    ++next;
    return std::vector{scalars({static_cast<float>(next), 10 * static_cast<float>(next)})};
  };
}

TEST_F(Extended, RunsManySteps) {
  auto scope = strategy.scope();
  const Variable total("total", Tensor::scalar(0.F), {.aggregation = Aggregation::kSum});
  int traces = 0;
  const auto fn = [&](MultiStepContext& context, std::span<const PerReplica<Value>> batch) {
    ++traces;
    const PerReplica<Value> mine = strategy.run(
        [=](Value x) {
          total.assign_add(x);
          return x * 2.F;
        },
        batch[0]);
    context.set_last_step_output("mine", mine);
    context.set_last_step_output("sum", mine, ReduceOp::kSum);
    context.set_non_tensor_output("note", std::string("traced"));
  };
  const MultiStepContext done = run_steps(strategy, counting(5), 3, {kScalar}, fn);
  EXPECT_EQ(traces, 1);
  EXPECT_EQ(done.iterations(), 3);
  EXPECT_EQ(done.last_step_outputs().at("sum")[0].item(), 66);
  EXPECT_EQ(done.last_step_outputs().at("mine")[1].item(), 60);
  EXPECT_EQ(std::any_cast<std::string>(done.non_tensor_outputs().at("note")), "traced");
  EXPECT_EQ(total.value().item(), 11 * (1 + 2 + 3));
  try {
    run_steps(strategy, counting(2), 3, {kScalar}, fn);
    ADD_FAILURE() << "the source is too short";
  } catch (const RunError& error) {
    EXPECT_EQ(error.committed_steps(), 2U);
    EXPECT_THAT(error.what(), HasSubstr("ended after 2 of 3"));
  }
  std::atomic<int> runs = 0;
  const auto failing = [&](MultiStepContext& context, std::span<const PerReplica<Value>> batch) {
    const TensorSpec spec{DType::kF32, Shape{}};
    context.set_last_step_output("y", strategy.run(
                                          [&](Value x) {
                                            return current_builder()->call(
                                                "fails", {{x}}, {{spec}}, [&](KernelContext& c) {
                                                  if (++runs > 4) throw std::domain_error("the third batch");
                                                  c.output<float>(0)[0] = 0;
                                                })[0];
                                          },
                                          batch[0]));
  };
  try {
    run_steps(strategy, counting(5), 5, {kScalar}, failing);
    ADD_FAILURE() << "the third batch fails";
  } catch (const RunError& error) {
    EXPECT_EQ(error.committed_steps(), 2U);
    EXPECT_THAT(error.what(), HasSubstr("iteration 2"));
  }
  const MultiStepContext none = run_steps(strategy, counting(0), 0, {kScalar}, fn,
                                          {{"mine", scalars({7, 8})}, {"sum", Tensor::scalar(9.F)}});
  EXPECT_EQ(none.last_step_outputs().at("sum")[0].item(), 9);
  EXPECT_THAT(error_of([&] {
                run_steps(strategy, counting(1), 1, {kScalar}, fn, {{"other", scalars({7, 8})}});
              }),
              HasSubstr("no output"));
  BatchSource source = counting(1);
  EXPECT_EQ(compat::experimental_run(
                strategy, [](Value x) { return x + 1.F; }, source)[1]
                .item(),
            11);
  EXPECT_THAT(error_of([&] {
                compat::experimental_run(
                    strategy, [](Value x) { return x; }, source);
              }),
              HasSubstr("has ended"));
}

// --- other strategies

TEST(CentralStorage, KeepsVariablesInOnePlace) {
  CentralStorageStrategy strategy({.devices = test_devices(2)}, test_device(1));
  EXPECT_THAT(strategy.parameter_devices(), ElementsAre(test_device(1)));
  auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(1.F), {.aggregation = Aggregation::kMean});
  const auto f = strategy.function({kScalar}, [=](Value x) { w.assign_add(x); });
  f(scalars({2, 4}));
  EXPECT_EQ(w.value().item(), 4);
  for (const VariableDecl& decl : f.replicated_graph().variables())
    EXPECT_EQ(decl.shares, !decl.copy_of.empty()) << decl.name;
  EXPECT_THAT(error_of([] { CentralStorageStrategy({.share_mirrored = false}); }),
              HasSubstr("cannot be off"));
}

TEST(MakeStrategy, ReadsText) {
  const auto mirrored =
      make_strategy("mirrored(devices=[cpu:0,cpu:1,cpu:2],cross_device_ops=ring,bytes_per_pack=1MiB)");
  EXPECT_EQ(mirrored->num_replicas_in_sync(), 3);
  EXPECT_THAT(mirrored->pipeline().to_string(), HasSubstr("ring"));
  EXPECT_EQ(make_strategy("one-device")->name(), "OneDeviceStrategy");
  EXPECT_EQ(make_strategy("central-storage(devices=[cpu:0,cpu:1])")->name(), "CentralStorageStrategy");
  EXPECT_EQ(strategy_names().size(), 3U);
  const auto told = make_strategy(
      "mirrored(devices=[cpu:0,cpu:1],cross_device_ops=reduction_to_one_device,reduce_device=cpu:1,"
      "may_drift=[loose])");
  EXPECT_THAT(told->pipeline().to_string(), AllOf(HasSubstr("ops=reduction_to_one_device,device=cpu:1"),
                                                  HasSubstr("allow-drift(variables=[loose]")));
  EXPECT_TRUE(told->may_drift("loose"));
  for (const char* counted : {"mirrored(num_gpus=0)", "mirrored(num_gpus_per_worker=0)"})
    EXPECT_THAT(make_strategy(counted)->worker_devices(), ElementsAre("cpu:0")) << counted;
}

TEST(MakeStrategy, SaysWhatIsWrongWithAStrategy) {
  const std::pair<const char*, const char*> cases[] = {
      {"mirored", "no strategy named 'mirored' is registered; did you mean 'mirrored', "},
      {"mirrored(device=cpu:0)", "strategy 'mirrored' has no option 'device'; it has 'devices' (list"},
      {"mirrored(optimize=perhaps)", "option 'optimize' of strategy 'mirrored' takes true or false"},
      {"mirrored(optimize=true,optimize=true)", "option 'optimize' of strategy 'mirrored' is given twice"},
      {"mirrored,mirrored", "expected one strategy, got 2"},
      {"", "expected one strategy, got 0"},
      {"(devices=[cpu:0])", "expected the name of a strategy"},
      {"mirrored(cross_device_ops=nonsense)", "nonsense"},
  };
  for (const auto& row : cases)
    EXPECT_THAT(error_of([&] { make_strategy(row.first); }), HasSubstr(row.second)) << row.first;
}

}  // namespace
}  // namespace lockstep
