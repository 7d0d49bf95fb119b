// Tests: io/state/checkpoint.cpp, io/state/logical_variables.cpp, io/state/snapshot.cpp,
//        graph/run/variable_role.cpp
// Checkpoints of strategies: what one number of replicas saved, another restores.
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/io/state/checkpoint.h"
#include "lockstep/io/state/snapshot.h"
#include "lockstep/strategies/central_storage.h"
#include "lockstep/strategies/mirrored.h"
#include "support/temporary_folder.h"
#include "support/test_devices.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using testing::test_devices;

std::unique_ptr<Strategy> make_strategy(const std::string& kind, int replicas) {
  std::vector<std::string> devices;
  for (int i = 0; i < replicas; ++i) devices.push_back(str("cpu:", i));
  if (kind == "central") return std::make_unique<CentralStorageStrategy>(MirroredOptions{.devices = devices});
  return std::make_unique<MirroredStrategy>(
      MirroredOptions{.devices = devices, .share_mirrored = kind != "apart"});
}

Variable on_read(const std::string& name, const Tensor& initial, Aggregation aggregation) {
  return Variable(name, initial, {.synchronization = Synchronization::kOnRead, .aggregation = aggregation});
}

// A step with everything that a checkpoint keeps: mirrored variables, slots and iterations of an optimizer,
// random draws, and what replicas keep for themselves.
struct Model {
  explicit Model(Strategy& strategy) : Model(strategy, strategy.scope()) {}
  Model(Strategy& strategy, const Strategy::Scope& /*in it*/)
      : strategy_(strategy),
        w("w", Tensor::from({3}, {0.5F, -1.F, 2.F})),
        seen(on_read("seen", Tensor::scalar(std::int64_t{0}), Aggregation::kSum)),
        total(on_read("total", Tensor::zeros({2}), Aggregation::kSum)),
        level(on_read("level", Tensor::scalar(0.F), Aggregation::kMean)),
        first(on_read("first", Tensor::scalar(0.F), Aggregation::kOnlyFirstReplica)) {
    const Adam adam(0.1);
    train_ = strategy.function({InputSpec(DType::kF32, {3}, "x")}, [adam, w = w, seen = seen, total = total,
                                                                    level = level, first = first](Value x) {
      const Value noise = random_normal(x.builder(), {DType::kF32, {3}}, 0, 1, 11);
      const Value loss = global_mean(square(x * w + 0.1F * noise - 1.F));
      adam.minimize(loss, {w});
      const Value replica = cast(replica_context().replica_id(), DType::kF32);
      seen.assign_add(3);
      total.assign_add(x.builder().constant(Tensor::from({2}, {1.F, 0.5F})));
      level.assign_add(replica + 1.F);
      first.assign(replica + 5.F);
      return loss;
    });
  }
  void train(int steps) const {
    for (int i = 0; i < steps; ++i) {
      const auto step = static_cast<float>(strategy_.variables().step());
      train_(strategy_.distribute_values_from_function([&](std::int64_t replica, std::int64_t) {
        return Tensor::full(DType::kF32, {3}, step * 0.25F + static_cast<float>(replica));
      }));
    }
  }

  Strategy& strategy_;
  Variable w, seen, total, level, first;
  Function<PerReplica<Tensor>> train_;
};

struct Case {
  std::string kind;
  int replicas;
};
const Case kTargets[] = {{"mirrored", 1}, {"mirrored", 2}, {"apart", 3}, {"mirrored", 8}, {"central", 2}};

TEST(CheckpointReplicas, FitAnyNumberOfThem) {
  const TemporaryFolder folder;
  for (const Case& from : {Case{"mirrored", 1}, Case{"mirrored", 2}, Case{"apart", 3}, Case{"mirrored", 8}}) {
    const auto source = make_strategy(from.kind, from.replicas);
    const Model saved(*source);
    saved.train(2);
    save_checkpoint(source->variables(), folder / "a.lkc");
    const Snapshot file = read_checkpoint(folder / "a.lkc");
    EXPECT_EQ(file.find("seen")->item(), 6.0 * from.replicas);
    EXPECT_TRUE(file.find("w")->bit_equal(saved.w.value()));
    for (const Snapshot::Item& item : file.variables()) {
      EXPECT_THAT(item.name, Not(HasSubstr("replica_"))) << "one copy is enough";
    }

    for (const Case& to : kTargets) {
      SCOPED_TRACE(str(from.replicas, " ", from.kind, " to ", to.replicas, " ", to.kind));
      const auto target = make_strategy(to.kind, to.replicas);
      const Model restored(*target);
      restored.train(1);
      restore_checkpoint(target->variables(), folder / "a.lkc");
      EXPECT_EQ(target->variables().step(), 2U);
      // Every copy, and so what is read across replicas.
      for (const char* name : {"w", "w/adam/m", "w/adam/v", "adam/iterations"}) {
        ASSERT_NE(file.find(name), nullptr) << name;
        for (int r = 0; r < to.replicas; ++r) {
          const std::string copy = copy_name(name, r);
          if (!target->variables().contains(copy)) continue;
          EXPECT_TRUE(target->variables().value(copy).bit_equal(*file.find(name))) << copy;
        }
      }
      EXPECT_TRUE(restored.seen.value().bit_equal(saved.seen.value()))
          << "integers divide with their remainder";
      EXPECT_NEAR(restored.total.value().data<float>()[1], saved.total.value().data<float>()[1], 1e-6);
      EXPECT_NEAR(restored.level.value().item(), saved.level.value().item(), 1e-6);
      EXPECT_EQ(restored.first.value().item(), 5.0);

      Snapshot again;  // and what was restored saves the same
      again.take(target->variables());
      EXPECT_EQ(again.variables().size(), file.variables().size());
      EXPECT_TRUE(again.find("seen")->bit_equal(*file.find("seen")));
    }
  }
}

TEST(CheckpointReplicas, ASumIsReadAsItWasSaved) {
  const TemporaryFolder folder;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Tensor values = Tensor::from({8}, {0.F, -0.F, kInfinity, 3.86447F, std::numeric_limits<float>::max(),
                                           std::numeric_limits<float>::denorm_min(), -1e-38F, 16777217.F});
  Tensor many = Tensor::empty(DType::kF64, {1000});
  for (std::size_t i = 0; i < 1000; ++i)
    many.data<double>()[i] =
        std::sin(static_cast<double>(i)) * std::pow(10., static_cast<double>(i % 40) - 20.);
  Tensor halves = Tensor::empty(DType::kF16, {1000}), brains = Tensor::empty(DType::kBF16, {1000});
  for (std::size_t i = 0; i < 1000; ++i) {
    const auto value = static_cast<float>(std::sin(static_cast<double>(i)) * 100.);
    halves.data<F16>()[i] = F16(value);
    brains.data<BF16>()[i] = BF16(value);
  }
  const auto declare = [](Strategy& strategy, const std::vector<Tensor>& initial) {
    const auto scope = strategy.scope();
    std::vector<Variable> variables;
    for (const Tensor& value : initial)
      variables.push_back(on_read(str("v", variables.size()), value, Aggregation::kSum));
    return variables;
  };
  const std::vector<Tensor> all = {values, many, halves, brains};
  std::vector<Tensor> nothing;
  for (const Tensor& value : all) nothing.push_back(Tensor::zeros(value.dtype(), value.shape()));
  const auto one = make_strategy("mirrored", 1);
  const std::vector<Variable> saved = declare(*one, all);
  save_checkpoint(one->variables(), folder / "a.lkc");
  for (const int replicas : {2, 3, 5, 7, 8}) {
    SCOPED_TRACE(replicas);
    const auto target = make_strategy("apart", replicas);
    const std::vector<Variable> restored = declare(*target, nothing);
    restore_checkpoint(target->variables(), folder / "a.lkc");
    for (std::size_t i = 0; i < all.size(); ++i)
      EXPECT_TRUE(restored[i].value().bit_equal(all[i])) << restored[i].value();
    const float last = target->variables().value(copy_name("v0", replicas - 1)).data<float>()[3];
    EXPECT_NEAR(last * static_cast<float>(replicas), 3.86447F, 1e-4F)
        << "an equal share, but for the last digits";
  }
}

TEST(CheckpointReplicas, GoOnToTheSameBits) {
  const TemporaryFolder folder;
  const auto whole = make_strategy("mirrored", 2);
  const Model uninterrupted(*whole);
  uninterrupted.train(6);
  {
    const auto first_half = make_strategy("mirrored", 2);
    const Model model(*first_half);
    model.train(3);
    save_checkpoint(first_half->variables(), folder / "a.lkc");
  }
  const auto second_half = make_strategy("mirrored", 2);
  const Model resumed(*second_half);
  restore_checkpoint(second_half->variables(), folder / "a.lkc");
  resumed.train(3);
  for (const char* name : {"w", "w/adam/m", "w/adam/v", "adam/iterations"}) {
    EXPECT_TRUE(second_half->variables().value(name).bit_equal(whole->variables().value(name))) << name;
  }
  EXPECT_EQ(second_half->variables().step(), 6U);
  // What replicas keep for themselves goes on as one value; here all sums are exact.
  for (const auto& [now, then] :
       {std::pair(resumed.seen, uninterrupted.seen), std::pair(resumed.total, uninterrupted.total),
        std::pair(resumed.level, uninterrupted.level), std::pair(resumed.first, uninterrupted.first)}) {
    EXPECT_TRUE(now.value().bit_equal(then.value())) << then.name() << ": " << now.value();
  }
}

// Between two steps of which only every third changes the variable: what was summed up so far is kept as
// well. It goes on as one value for all replicas, so that later sums are rounded in another order.
TEST(CheckpointReplicas, GoOnInTheMiddleOfAccumulatedGradients) {
  const TemporaryFolder folder;
  struct Accumulating {
    Accumulating() {
      const auto scope = strategy.scope();
      const Variable w("w", Tensor::from({3}, {0.5F, -1.F, 2.F}));
      step = strategy.function({InputSpec(DType::kF32, {3}, "x")}, [=](Value x) {
        const Value loss = global_mean(square(x * w - 1.F));
        Adam(0.1).minimize(loss, {w});
        return loss;
      });
    }
    void train(int steps) {
      for (int i = 0; i < steps; ++i) {
        const auto at = static_cast<float>(strategy.variables().step());
        step(strategy.distribute_values_from_function([&](std::int64_t replica, std::int64_t) {
          return Tensor::full(DType::kF32, {3}, at * 0.3F + static_cast<float>(replica));
        }));
      }
    }
    MirroredStrategy strategy{
        MirroredOptions{.devices = test_devices(2), .step_passes = "accumulate-gradients(steps=3)"}};
    Function<PerReplica<Tensor>> step;
  };
  Accumulating whole;
  whole.train(7);
  for (const int first : {1, 2, 3, 5}) {
    SCOPED_TRACE(first);
    Accumulating interrupted, resumed;
    interrupted.train(first);
    save_checkpoint(interrupted.strategy.variables(), folder / "a.lkc");
    restore_checkpoint(resumed.strategy.variables(), folder / "a.lkc");
    resumed.train(7 - first);
    Snapshot then, now;
    then.take(whole.strategy.variables());
    now.take(resumed.strategy.variables());
    ASSERT_EQ(now.variables().size(), then.variables().size());
    bool accumulates = false;
    for (const Snapshot::Item& item : then.variables()) {
      accumulates = accumulates || item.name.starts_with("w/accumulated");
      const Tensor& value = *now.find(item.name);
      if (item.value.dtype() != DType::kF32) {
        EXPECT_TRUE(value.bit_equal(item.value)) << item.name << ": " << value;
        continue;
      }
      for (std::size_t i = 0; i < item.value.data<float>().size(); ++i) {
        const float wanted = item.value.data<float>()[i];
        EXPECT_NEAR(value.data<float>()[i], wanted, 1e-6F * (1 + std::abs(wanted))) << item.name;
      }
    }
    EXPECT_TRUE(accumulates);
  }
}

// What has no one value is kept copy by copy, for as many replicas.
TEST(CheckpointReplicas, KeepEachCopyOfWhatHasNoOneValue) {
  const TemporaryFolder folder;
  for (const int replicas : {1, 2}) {
    const auto strategy = make_strategy("mirrored", replicas);
    const auto scope = strategy->scope();
    const Variable mine = on_read("mine", Tensor::scalar(1.F), Aggregation::kNone);
    const Variable flag = on_read("flag", Tensor::scalar(true), Aggregation::kSum);
    if (replicas == 1) {
      save_checkpoint(strategy->variables(), folder / "a.lkc");
      continue;
    }
    save_checkpoint(strategy->variables(), folder / "b.lkc");
    const Snapshot kept = read_checkpoint(folder / "b.lkc");
    for (const Snapshot::Item& item : kept.variables()) EXPECT_EQ(item.copies.size(), 2U) << item.name;
    strategy->variables().set("mine/replica_1", Tensor::scalar(7.F));
    restore_checkpoint(strategy->variables(), folder / "b.lkc");
    EXPECT_EQ(strategy->variables().value("mine/replica_1").item(), 1);
    try {
      restore_checkpoint(strategy->variables(), folder / "a.lkc");
      ADD_FAILURE() << "no error";
    } catch (const FailedPrecondition& error) {
      EXPECT_THAT(error.message(), HasSubstr("mismatched: 'mine' was saved as one value"));
      EXPECT_THAT(error.message(), HasSubstr("mismatched: 'flag' was saved as one value"));
    }
  }
}

// --- snapshots

void put(VariableStore& store, const std::string& name, const Tensor& value, const VariableRole& role = {}) {
  store.find_or_create(
      name, value.spec(), [&] { return value; }, role);
}

TEST(Snapshot, SumsCopiesInTheOrderOfReplicas) {
  VariableStore store;
  // (1e8 + -1e8) + 1 is 1 in f32, and 0 in another order; of twelve copies "replica_10" comes behind
  // "replica_9".
  put(store, "s", Tensor::scalar(0.F), {"", CopyRule::kSum});
  for (int r = 1; r < 12; ++r) {
    const float value = r == 2 ? 1e8F : r == 9 ? -1e8F : r == 10 ? 1.F : 0.F;
    put(store, copy_name("s", r), Tensor::scalar(value), {"s", CopyRule::kSum});
  }
  Snapshot snapshot;
  snapshot.take(store);
  ASSERT_EQ(snapshot.variables().size(), 1U);
  EXPECT_EQ(snapshot.find("s")->item(), 1.0);
}

TEST(Snapshot, SharesIntegersOutExactly) {
  for (const std::int64_t value : {7, -7, 0, 1, -1, 12}) {
    VariableStore store;
    for (int r = 0; r < 4; ++r) {
      put(store, copy_name("n", r), Tensor::scalar(std::int64_t{0}), {r == 0 ? "" : "n", CopyRule::kSum});
    }
    Snapshot(1, {{"n", Tensor::scalar(value)}}).restore(store);
    Snapshot again;
    again.take(store);
    EXPECT_EQ(again.find("n")->data<std::int64_t>()[0], value);
    EXPECT_LE(std::abs(store.value("n").item() - store.value("n/replica_3").item()), 1.0) << value;
  }
}

// As they are after a restore: saving again changes nothing.
TEST(Snapshot, TheMeanOfEqualCopiesIsTheirValue) {
  for (int count = 2; count < 9; ++count) {
    VariableStore store;
    for (int r = 0; r < count; ++r)
      put(store, copy_name("m", r), Tensor::zeros({3}), {r == 0 ? "" : "m", CopyRule::kMean});
    const Tensor value = Tensor::from({3}, {0.1F, 3.86447F, -1e-40F});
    Snapshot(1, {{"m", value}}).restore(store);
    Snapshot again;
    again.take(store);
    EXPECT_TRUE(again.find("m")->bit_equal(value)) << count;
  }
}

TEST(Snapshot, KeepsTheCopiesOfAMeanOfIntegers) {
  VariableStore store;
  const Tensor most = Tensor::scalar(std::numeric_limits<std::int64_t>::max());
  put(store, "n", most, {"", CopyRule::kMean});
  Snapshot one;
  one.take(store);
  EXPECT_TRUE(one.find("n")->bit_equal(most)) << "of one copy it is the value";
  put(store, "n/replica_1", Tensor::scalar(std::int64_t{1}), {"n", CopyRule::kMean});
  Snapshot two;
  two.take(store);
  ASSERT_EQ(two.variables()[0].copies.size(), 2U);
  EXPECT_TRUE(two.variables()[0].copies[0].bit_equal(most));
  EXPECT_EQ(two.variables()[0].copies[1].item(), 1);
  EXPECT_THROW(one.restore(store), FailedPrecondition);
}

TEST(Snapshot, UsesItsMemoryAgain) {
  VariableStore store;
  put(store, "a", Tensor::zeros({100}));
  put(store, "b", Tensor::zeros({100}));
  Snapshot snapshot;
  snapshot.take(store);
  const void* const a = snapshot.find("a")->raw();
  const Tensor kept = *snapshot.find("b");
  put(store, "aa", Tensor::zeros({5}));
  store.set("b", Tensor::full(DType::kF32, {100}, 1));
  snapshot.take(store);
  EXPECT_EQ(snapshot.find("a")->raw(), a);
  EXPECT_NE(snapshot.find("b")->raw(), kept.raw()) << "somebody has it";
  EXPECT_EQ(kept.data<float>()[0], 0.F);
  EXPECT_EQ(snapshot.variables().size(), 3U);
}

TEST(Snapshot, RefusesItemsThatAreNone) {
  EXPECT_THROW(Snapshot(0, {{"a", Tensor::scalar(1.F)}, {"a", Tensor::scalar(1.F)}}), InvalidArgument);
  EXPECT_THROW(Snapshot(0, {{"a", Tensor()}}), InvalidArgument);
}

// Steps run one after another on a second thread; whatever moment a snapshot catches, it is between two of
// them.
TEST(Snapshot, IsTakenBetweenSteps) {
  const auto strategy = make_strategy("mirrored", 2);
  const auto scope = strategy->scope();
  const VariableOptions mean{.aggregation = Aggregation::kMean};
  const Variable a("a", Tensor::zeros({1000}), mean), b("b", Tensor::zeros({1000}), mean);
  const auto step = strategy->function({}, [=](std::span<const Value>) {
    a.assign_add(1.F);
    b.assign_add(1.F);
  });
  // Ended by its destructor, also where an assertion returns.
  std::jthread trainer([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) step();
  });
  Snapshot snapshot;
  std::uint64_t last = 0;
  for (int caught = 0; caught < 20;) {
    snapshot.take(strategy->variables());
    ASSERT_TRUE(snapshot.find("a")->bit_equal(*snapshot.find("b")));
    ASSERT_EQ(snapshot.find("a")->data<float>()[999], static_cast<float>(snapshot.step()));
    ASSERT_GE(snapshot.step(), last);
    if (snapshot.step() > last) ++caught;  // the trainer comes through as well
    last = snapshot.step();
  }
}

}  // namespace
}  // namespace lockstep
