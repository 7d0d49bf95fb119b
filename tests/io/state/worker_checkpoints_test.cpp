// Tests: io/state/worker_checkpoints.cpp, core/communicators/group_round.cpp
// Checkpoints of several workers: the file is that of one process with all replicas, and fits any split.
#include "lockstep/io/state/worker_checkpoints.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/strategies/mirrored.h"
#include "support/strategy_test.h"
#include "support/temporary_folder.h"
#include "support/virtual_workers.h"

namespace lockstep {
namespace {

using ::testing::Each;
using testing::error_of;
using testing::expect_workers;
using ::testing::HasSubstr;
using testing::run_workers;

Variable on_read(const std::string& name, const Tensor& initial, Aggregation aggregation) {
  return Variable(name, initial, {.synchronization = Synchronization::kOnRead, .aggregation = aggregation});
}

// Mirrored variables, slots of an optimizer, random draws, and what each of four replicas keeps for itself.
struct Model {
  explicit Model(Strategy& strategy) : Model(strategy, strategy.scope()) {}
  Model(Strategy& strategy, const Strategy::Scope& /*in it*/)
      : strategy_(strategy),
        w("w", Tensor::from({3}, {0.5F, -1.F, 2.F})),
        seen(on_read("seen", Tensor::scalar(std::int64_t{0}), Aggregation::kSum)),
        total(on_read("total", Tensor::zeros({2}), Aggregation::kSum)),
        level(on_read("level", Tensor::scalar(0.F), Aggregation::kMean)),
        first(on_read("first", Tensor::scalar(0.F), Aggregation::kOnlyFirstReplica)),
        own(on_read("own", Tensor::scalar(0.F), Aggregation::kNone)) {
    const Adam adam(0.1);
    train_ = strategy.function({InputSpec(DType::kF32, {3}, "x")}, [adam, this](Value x) {
      const Value noise = random_normal(x.builder(), {DType::kF32, {3}}, 0, 1, 11);
      const Value replica = cast(replica_context().replica_id(), DType::kF32);
      adam.minimize(global_mean(square(x * w + 0.1F * noise - 1.F)), {w});
      seen.assign_add(cast(replica, DType::kI64) + 3);
      total.assign_add((replica * 0.1F + 1.F / 3.F) * x.builder().constant(Tensor::from({2}, {1.F, 0.5F})));
      level.assign_add(replica + 1.F / 3.F);
      first.assign(replica + 5.F);
      own.assign_add(replica + 1.F);
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
  Variable w, seen, total, level, first, own;
  Function<void> train_;
};

const DeviceList kFour{"cpu:0", "cpu:1", "cpu:2", "cpu:3"};

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// What one process with all of the replicas saves after so many steps, from the newest checkpoint on if there is one.
std::string saved_by_one(const std::filesystem::path& folder, int steps) {
  MirroredStrategy together({.devices = kFour});
  const Model model(together);
  CheckpointSeries series(folder);
  series.restore_latest(together.variables());
  model.train(steps);
  series.save(together.variables());
  series.wait();
  return bytes_of(*series.latest());
}

class WorkerCheckpointsOf : public ::testing::TestWithParam<int> {};

TEST_P(WorkerCheckpointsOf, AreTheFilesOfOneProcess) {
  const int workers = GetParam();
  TemporaryFolder one, several;
  for (const int steps : {3, 2}) {  // the second goes on from the first
    const std::string right = saved_by_one(one.path(), steps);
    ASSERT_GT(right.size(), 100U);
    expect_workers({.count = workers, .replicas = 4 / workers}, [&](MirroredStrategy& strategy) {
      const Model model(strategy);
      WorkerCheckpoints checkpoints(strategy, several.path());
      EXPECT_EQ(checkpoints.restore_latest().has_value(), steps == 2);
      model.train(steps - 1);
      checkpoints.save();
      model.train(1);
      checkpoints.save();
      checkpoints.wait();
    });
    EXPECT_EQ(bytes_of(*CheckpointSeries(several.path()).latest()), right);
  }
}

// Values and what restore_latest() says are the same on all workers, whether they see the file or not.
TEST_P(WorkerCheckpointsOf, AreRestoredWhereTheFileIsNotSeenToo) {
  const int workers = GetParam();
  TemporaryFolder folder;
  {
    MirroredStrategy together({.devices = kFour});
    const Model model(together);
    model.train(4);
    Snapshot snapshot;
    snapshot.take(together.variables());
    snapshot.set_state("input", Tensor::from<std::uint8_t>({3}, {7, 8, 9}));
    write_checkpoint(snapshot, folder / "checkpoint-00000001.lkc");
  }
  std::map<std::string, std::vector<std::string>> told;
  std::mutex mutex;
  for (const bool all_see : {true, false}) {
    TemporaryFolder again;
    expect_workers({.count = workers, .replicas = 4 / workers}, [&](MirroredStrategy& strategy) {
      const Model model(strategy);
      CheckpointSeriesOptions options;
      if (!all_see && strategy.worker().rank > 0) options.limits.file_bytes = 10;
      WorkerCheckpoints checkpoints(strategy, folder.path(), options);
      const std::optional<SeriesRestore> restored = checkpoints.restore_latest();
      ASSERT_TRUE(restored.has_value());
      EXPECT_EQ(restored->path, folder / "checkpoint-00000001.lkc");
      EXPECT_EQ(restored->report.step, 4U);
      ASSERT_EQ(restored->report.states.size(), 1U);
      EXPECT_EQ(restored->report.states[0].first, "input");
      EXPECT_EQ(restored->report.states[0].second.data<std::uint8_t>()[2], 9);
      EXPECT_EQ(strategy.variables().step(), 4U);
      EXPECT_EQ(model.own.copies()[0].item(), 4. * (static_cast<double>(strategy.first_replica()) + 1));
      WorkerCheckpoints next(strategy, again.path());
      next.save();
      next.wait();
      const std::lock_guard<std::mutex> lock(mutex);
      told["w"].push_back(
          str(model.w.copies()[0].data<float>()[0], ' ', model.w.copies()[0].data<float>()[2]));
    });
    // Sums of floats are saved again as they were: their shares add up.
    const Snapshot before = read_checkpoint(folder / "checkpoint-00000001.lkc"),
                   after = read_checkpoint(again / "checkpoint-00000001.lkc");
    for (const char* const name : {"w", "seen", "level", "first"})
      EXPECT_TRUE(after.find(name)->bit_equal(*before.find(name))) << name;
  }
  EXPECT_THAT(told["w"], Each(told["w"][0]));
}
INSTANTIATE_TEST_SUITE_P(Splits, WorkerCheckpointsOf, ::testing::Values(1, 2, 4));

TEST(WorkerCheckpoints, WithoutAnyThereIsNothingToRestore) {
  TemporaryFolder folder;
  expect_workers({.count = 2}, [&](MirroredStrategy& strategy) {
    const Model model(strategy);
    WorkerCheckpoints checkpoints(strategy, folder.path());
    EXPECT_FALSE(checkpoints.restore_latest().has_value());
    EXPECT_EQ(strategy.variables().step(), 0U);
  });
}

TEST(WorkerCheckpoints, ThatCannotBeWrittenOrDoNotFitAreErrorsOfAllWorkers) {
  TemporaryFolder folder, other;
  {
    VariableStore store;
    store.find_or_create("v", {DType::kF32, {}}, [] { return Tensor::scalar(1.F); });
    save_checkpoint(store, other / "checkpoint-00000001.lkc");
  }
  expect_workers({.count = 3}, [&](MirroredStrategy& strategy) {
    const Model model(strategy);
    CheckpointSeriesOptions options;
    std::atomic<int> writes{0};
    options.before_write = [&](const SavedCheckpoint&) {
      if (++writes == 1) throw Error(ErrorCode::kUnavailable, "the disk is full");
    };
    WorkerCheckpoints checkpoints(strategy, folder.path(), options);
    checkpoints.save();
    EXPECT_THAT(error_of([&] { checkpoints.wait(); }), HasSubstr("the disk is full"));
    model.train(1);  // goes on
    checkpoints.save();
    checkpoints.wait();
    WorkerCheckpoints wrong(strategy, other.path());
    EXPECT_THAT(error_of([&] { wrong.restore_latest(); }),
                HasSubstr("extra (the program does not have them): 'v'"));
    EXPECT_EQ(strategy.variables().step(), 1U);
    model.train(1);
  });
  EXPECT_TRUE(std::filesystem::exists(folder / "checkpoint-00000001.lkc"));
}

TEST(WorkerCheckpoints, AreSavedByAllWorkersAtOneStep) {
  TemporaryFolder folder;
  expect_workers({.count = 2}, [&](MirroredStrategy& strategy) {
    const Model model(strategy);
    WorkerCheckpoints checkpoints(strategy, folder.path());
    const bool first = strategy.worker().is_chief();
    // One alone: the other one runs a step, or restores.
    EXPECT_THAT(
        error_of([&] { first ? checkpoints.save() : static_cast<void>(checkpoints.restore_latest()); }),
        HasSubstr("all workers have to call the same"));
    if (!first) strategy.variables().set_step(7);
    EXPECT_THAT(error_of([&] { checkpoints.save(); }), HasSubstr("all workers have to save the same"));
    if (!first) strategy.variables().set_step(0);
    checkpoints.save();
    checkpoints.wait();
  });
  const std::vector<std::string> errors = run_workers({.count = 2}, [&](MirroredStrategy& strategy) {
    const Model model(strategy);
    WorkerCheckpoints checkpoints(strategy, folder.path());
    if (strategy.worker().is_chief()) {
      checkpoints.save();
    } else {
      model.train(1);
    }
  });
  EXPECT_THAT(errors, Each(HasSubstr("do not agree")));
}

TEST(WorkerCheckpoints, OfOneWorkerAreASeries) {
  TemporaryFolder folder;
  const std::string right = saved_by_one(folder.path(), 2);
  MirroredStrategy together({.devices = kFour});
  const Model model(together);
  WorkerCheckpoints checkpoints(together, folder.path());
  EXPECT_EQ(checkpoints.restore_latest()->report.step, 2U);
  checkpoints.save();
  checkpoints.wait();
  EXPECT_EQ(CheckpointSeries(folder.path()).list().size(), 2U);
}

}  // namespace
}  // namespace lockstep
