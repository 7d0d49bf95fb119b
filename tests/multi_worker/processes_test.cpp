// Tests: strategies/multi_worker.cpp
// Several processes that train one model, and what happens when one of them is lost.
#include "support/processes.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/membership/membership.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/strategies/multi_worker.h"
#include "support/strategy_test.h"
#include "support/training.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kScalar;
using ::testing::Not;
using testing::Outcome;
using testing::Processes;

MultiWorkerOptions options_of(int rank, int count, const std::filesystem::path& folder, int replicas = 1) {
  std::vector<std::string> devices;
  for (int r = 0; r < replicas; ++r) devices.push_back("cpu:" + std::to_string(r));
  return {.worker = WorkerSpec{.index = rank, .rank = rank, .count = count},
          .folder = folder / "place",
          .start = 60s,
          .lost = 3s,  // a busy machine may hold up a process for a second
          .runtime = {.threads = 1, .backends = {}},
          .mirrored = {.devices = devices}};
}

// FNV-1a of all variables.
std::uint64_t digest_of(const Strategy& strategy) {
  std::uint64_t digest = 0xCBF29CE484222325U;
  const auto add = [&](const void* data, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i)
      digest = (digest ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001B3U;
  };
  for (const std::string& name : strategy.variables().names()) {
    if (name.find("replica_") != std::string::npos) continue;
    const Tensor value = strategy.variables().find(name)->storage().clone();
    add(name.data(), name.size());
    add(value.raw(), value.num_bytes());
  }
  return digest;
}

// Trains on four replicas altogether; called after each step.
void train(Strategy& strategy, int steps, const std::function<void(int step)>& after = {}) {
  const auto scope = strategy.scope();
  const auto step =
      strategy.function({{DType::kF64, {kUnknown, 3}, "x"}, {DType::kI64, {kUnknown}, "rows"}},
                        [&](Value x, Value rows) { testing::train(dropout(x, 0.25), rows, false); });
  for (int k = 1; k <= steps; ++k) {
    std::vector<Tensor> x, rows;
    for (std::int64_t r = 0; r < strategy.num_local_replicas(); ++r) {
      const auto number = static_cast<std::uint64_t>(strategy.first_replica() + r);
      const testing::Batch batch = testing::make_batch(2 + static_cast<std::int64_t>(number),
                                                       100 * static_cast<std::uint64_t>(k) + 10 * number);
      x.push_back(batch.x);
      rows.push_back(batch.rows);
    }
    step(PerReplica<Tensor>(std::move(x)), PerReplica<Tensor>(std::move(rows)));
    if (after) after(k);
  }
}

// The state after each step, of one process.
std::vector<std::uint64_t> digests_of_one(int steps) {
  MirroredStrategy together({.devices = {"cpu:0", "cpu:1", "cpu:2", "cpu:3"},
                             .base = {.runtime = Runtime({.threads = 1, .cpu_devices = 4, .backends = {}})}});
  std::vector<std::uint64_t> digests(1);
  train(together, steps, [&](int) { digests.push_back(digest_of(together)); });
  digests[0] = 0;  // nothing was made
  return digests;
}

// In a child, since it has threads.
std::vector<std::uint64_t> right_digests(int steps) {
  Processes one(1, [&](int, std::ostream& say) {
    for (const std::uint64_t digest : digests_of_one(steps)) say << digest << '\n';
    return 0;
  });
  std::istringstream said(one.wait()[0].said);
  std::vector<std::uint64_t> digests;
  for (std::uint64_t digest = 0; said >> digest;) digests.push_back(digest);
  return digests;
}

class Workers : public ::testing::TestWithParam<int> {};

TEST_P(Workers, EndWithTheBitsOfOneProcess) {
  constexpr int kSteps = 20;
  const std::vector<std::uint64_t> right = right_digests(kSteps);
  ASSERT_EQ(right.size(), kSteps + 1U);
  const int count = GetParam();
  TemporaryFolder place;
  Processes workers(count, [&](int rank, std::ostream& say) {
    MultiWorkerMirroredStrategy strategy(options_of(rank, count, place.path(), 4 / count));
    EXPECT_EQ(strategy.num_replicas_in_sync(), 4);
    train(strategy, kSteps);
    say << digest_of(strategy) << ' ' << strategy.last_step();
    return 0;
  });
  for (const Outcome& worker : workers.wait()) {
    EXPECT_EQ(worker.status, 0) << worker.said;
    EXPECT_EQ(worker.said, str(right[kSteps], ' ', kSteps));
  }
}
INSTANTIATE_TEST_SUITE_P(Processes, Workers, ::testing::Values(1, 2, 4));

// Each survivor ends with an error that names the one that was lost, with the variables of a committed step.
void expect_survivors(Processes& workers, int lost, const std::vector<std::uint64_t>& right) {
  const std::vector<Outcome> all = workers.wait(lost);
  for (int rank = 0; rank < static_cast<int>(all.size()); ++rank) {
    if (rank == lost) continue;
    const Outcome& worker = all[static_cast<std::size_t>(rank)];
    EXPECT_EQ(worker.status, 42) << rank << ": " << worker.said;
    EXPECT_THAT(worker.said, AllOf(HasSubstr("Unavailable"), HasSubstr(str("worker:", lost, " "))));
    const std::size_t at = worker.said.rfind("state ");
    ASSERT_NE(at, std::string::npos) << worker.said;
    std::istringstream state(worker.said.substr(at + 6));
    std::size_t step = 0;
    std::uint64_t digest = 0;
    state >> step >> digest;
    ASSERT_LT(step, right.size());
    EXPECT_EQ(digest, right[step]) << "after step " << step;
  }
}

Processes::Body trains_until_lost(int count, const std::filesystem::path& place, int steps) {
  return [=](int rank, std::ostream& say) {
    MultiWorkerMirroredStrategy strategy(options_of(rank, count, place, 4 / count));
    try {
      train(strategy, steps, [&](int step) { say << "step " << step << std::endl; });
    } catch (const Error& error) {
      say << error.what() << "\nstate " << strategy.last_step() << ' ' << digest_of(strategy) << std::endl;
      return 42;
    }
    return 0;
  };
}

TEST(LostWorkers, AreNamedToAllOthersWhoeverIsKilled) {
  constexpr int kSteps = 4000;
  const std::vector<std::uint64_t> right = right_digests(400);
  for (const int lost : {0, 1, 3}) {
    TemporaryFolder place;
    Processes workers(4, trains_until_lost(4, place.path(), kSteps));
    ASSERT_TRUE(workers.says(lost, str("step ", 3 + 2 * lost, "\n"))) << workers.said(lost);
    workers.signal(lost, SIGKILL);
    expect_survivors(workers, lost, right);
  }
}

TEST(LostWorkers, ThatStandStillAreNamed) {
  const std::vector<std::uint64_t> right = right_digests(400);
  TemporaryFolder place;
  Processes workers(4, trains_until_lost(4, place.path(), 4000));
  ASSERT_TRUE(workers.says(2, "step 5\n")) << workers.said(2);
  workers.signal(2, SIGSTOP);
  expect_survivors(workers, 2, right);
  workers.signal(2, SIGCONT);
}

TEST(Programs, ThatDifferAreRefusedOnAllWorkers) {
  TemporaryFolder place;
  Processes workers(2, [&](int rank, std::ostream& say) {
    MultiWorkerMirroredStrategy strategy(options_of(rank, 2, place.path()));
    const float rate = rank == 0 ? 0.5F : 0.25F;
    say << error_of([&] {
      strategy.function({kScalar},
                        [&](Value x) { return replica_context().all_reduce(ReduceOp::kSum, x) * rate; });
    });
    return 0;
  });
  for (const Outcome& worker : workers.wait()) {
    EXPECT_EQ(worker.status, 0);
    EXPECT_THAT(worker.said, AllOf(HasSubstr("0.5"), HasSubstr("0.25"), HasSubstr("processes_test.cpp")));
  }
}

TEST(Programs, OneThatFailsEndsTheStepOfAllAndTheNextIsRight) {
  TemporaryFolder place;
  Processes workers(3, [&](int rank, std::ostream& say) {
    MultiWorkerMirroredStrategy strategy(options_of(rank, 3, place.path()));
    const auto scope = strategy.scope();
    const Variable w("w", Tensor::scalar(0.F), {.aggregation = Aggregation::kSum});
    const auto step = strategy.function({kScalar}, [&](Value x) { w.assign_add(check_finite(x)); });
    const auto feed = [](float value) { return PerReplica<Tensor>(std::vector{Tensor::scalar(value)}); };
    for (int k = 1; k <= 20; ++k) {
      step(feed(1));
      say << error_of([&] { step(feed(rank == k % 3 ? std::numeric_limits<float>::infinity() : 1.F)); });
      say << " w=" << w.copies()[0].item() << " step " << strategy.last_step() << '\n';
    }
    return 0;
  });
  for (const Outcome& worker : workers.wait()) {
    EXPECT_EQ(worker.status, 0) << worker.said;
    EXPECT_THAT(worker.said,
                AllOf(Not(HasSubstr("no error")), HasSubstr("w=3 step 1\n"), HasSubstr("w=60 step 20\n"),
                      HasSubstr("inf"), HasSubstr("check_finite"), HasSubstr("processes_test.cpp"),
                      HasSubstr("could not run the step, so no worker has committed it")));
  }
}

// One worker is asked to end: all save the same step and leave.
TEST(Programs, AreAskedToStopAtTheSameStepOnAllWorkers) {
  TemporaryFolder place;
  Processes workers(3, [&](int rank, std::ostream& say) {
    MultiWorkerMirroredStrategy strategy(options_of(rank, 3, place.path()));
    static std::atomic<MultiWorkerMirroredStrategy*> asked{nullptr};
    asked = &strategy;
    std::signal(SIGTERM, [](int) { asked.load()->want_stop(); });
    const auto scope = strategy.scope();
    const Variable w("w", Tensor::scalar(0.F), {.aggregation = Aggregation::kSum});
    const auto step = strategy.function({kScalar}, [&](Value x) { w.assign_add(x); });
    while (!strategy.is_stop_wanted() && strategy.last_step() < 100'000) {
      step(PerReplica<Tensor>(std::vector{Tensor::scalar(1.F)}));
      if (strategy.last_step() == 5) say << "step 5" << std::endl;
    }
    say << "stops after " << strategy.last_step() << " with " << w.copies()[0].item() << std::endl;
    return 42;
  });
  ASSERT_TRUE(workers.says(1, "step 5")) << workers.said(1);
  workers.signal(1, SIGTERM);
  const std::vector<Outcome> all = workers.wait();
  for (const Outcome& worker : all) {
    EXPECT_EQ(worker.status, 42) << worker.said;
    EXPECT_EQ(worker.said, all[0].said);
  }
  EXPECT_THAT(all[0].said, Not(HasSubstr("after 100000 ")));
}

TEST(Start, TakesWhoItIsFromTheEnvironmentAndSeedsFromTheFirst) {
  TemporaryFolder place;
  Processes workers(2, [&](int rank, std::ostream& say) {
    const std::string index = std::to_string(rank);
    setenv("RANK", index.c_str(), 1);
    setenv("LOCAL_RANK", index.c_str(), 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    MultiWorkerOptions options = options_of(rank, 2, place.path());
    options.worker.reset();
    options.runtime.seed = 7 + static_cast<std::uint64_t>(rank);
    MultiWorkerMirroredStrategy strategy(options);
    const auto drawn = strategy.cross_function({}, [&] {
      return current_builder()->random_uniform({DType::kF32, {2}}, 0, 1, 3);
    });
    say << strategy.worker().rank << ' ' << strategy.description() << '\n' << drawn().values()[0];
    return 0;
  });
  const std::vector<Outcome> all = workers.wait();
  for (const Outcome& worker : all) EXPECT_EQ(worker.status, 0) << worker.said;
  EXPECT_THAT(all[1].said, AllOf(HasSubstr("1 worker:1"), HasSubstr("torchrun"), HasSubstr("Gloo")));
  const auto numbers = [](const Outcome& worker) { return worker.said.substr(worker.said.find('\n')); };
  EXPECT_EQ(numbers(all[0]), numbers(all[1]));
}

TEST(Start, NamesWhoDoesNotCome) {
  TemporaryFolder place;
  Processes workers(1, [&](int, std::ostream& say) {
    MultiWorkerOptions options = options_of(0, 3, place.path());
    options.start = 300ms;
    say << error_of([&] { MultiWorkerMirroredStrategy strategy(options); });
    return 0;
  });
  const Outcome worker = workers.wait()[0];
  EXPECT_THAT(worker.said, AllOf(HasSubstr("DeadlineExceeded"), HasSubstr("missing are workers 1, 2")));
}

TEST(Start, RefusesWorkersWithOtherNumbersOfReplicas) {
  TemporaryFolder place;
  Processes workers(2, [&](int rank, std::ostream& say) {
    say << error_of(
        [&] { MultiWorkerMirroredStrategy strategy(options_of(rank, 2, place.path(), 1 + rank)); });
    return 0;
  });
  // The first goes on waiting for one that fits.
  EXPECT_THAT(workers.wait(0)[1].said, AllOf(HasSubstr("InvalidArgument"), HasSubstr("replica")));
}

TEST(Start, RefusesWhatDoesNotFit) {
  EXPECT_THAT(error_of([] {
                MultiWorkerMirroredStrategy(
                    {.worker = WorkerSpec{}, .communication = CollectiveCommunication::kNccl});
              }),
              HasSubstr("nccl exchanges values of cards"));
  EXPECT_THAT(
      error_of([] {
        MultiWorkerMirroredStrategy({.worker = WorkerSpec{}, .mirrored = {.base = {.runtime = Runtime()}}});
      }),
      HasSubstr("MultiWorkerOptions::runtime"));
  EXPECT_THAT(error_of([] { MultiWorkerMirroredStrategy({.worker = WorkerSpec{.rank = 1, .count = 1}}); }),
              HasSubstr("does not exist"));
}

TEST(Start, OneWorkerIsAMirroredStrategy) {
  Processes alone(1, [&](int, std::ostream& say) {
    CollectiveAllReduceStrategy strategy({.mirrored = {.devices = {"cpu:0", "cpu:1"}}});
    EXPECT_EQ(strategy.membership(), nullptr);
    say << strategy.num_replicas_in_sync() << ' ' << strategy.name();
    return 0;
  });
  EXPECT_EQ(alone.wait()[0].said, "2 MultiWorkerMirroredStrategy");
}

}  // namespace
}  // namespace lockstep
