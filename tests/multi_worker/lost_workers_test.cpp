// Tests: strategies/multi_worker.cpp, io/state/worker_checkpoints.cpp
// Workers that are killed or stopped at any moment of training, again and again. By default a few times; LOCKSTEP_KILLS and
// LOCKSTEP_STOPS say how often (scripts/test_lost_workers), and LOCKSTEP_SEED where to begin.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/membership/membership.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/io/state/worker_checkpoints.h"
#include "lockstep/strategies/multi_worker.h"
#include "support/processes.h"
#include "support/random_tensors.h"
#include "support/sanitizers.h"
#include "support/strategy_test.h"
#include "support/training.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using testing::digest_of;
using ::testing::HasSubstr;
using testing::Outcome;
using testing::Processes;

constexpr int kWorkers = 4;
constexpr std::uint64_t kSteps = 40, kBetweenCheckpoints = 5;

int number_of(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

// Trains until the end, from the newest checkpoint on, which may be that of the end. Says each step, and the end, with the digest of
// the state then.
Processes::Body trains(const std::filesystem::path& folder, int generation, std::chrono::milliseconds lost) {
  return [=](int rank, std::ostream& say) {
    MultiWorkerMirroredStrategy strategy(
        {.worker = WorkerSpec{.index = rank, .rank = rank, .count = kWorkers, .generation = generation},
         .folder = folder / "place",
         .start = 60s,
         .lost = lost,
         .runtime = {.threads = 1, .backends = {}}});
    const auto scope = strategy.scope();
    const auto step =
        strategy.function({{DType::kF64, {kUnknown, 3}, "x"}, {DType::kI64, {kUnknown}, "rows"}},
                          [&](Value x, Value rows) { testing::train(dropout(x, 0.25), rows, false); });
    WorkerCheckpoints checkpoints(strategy, folder / "checkpoints", {.keep = 2});
    try {
      checkpoints.restore_latest();
      while (strategy.variables().step() < kSteps) {
        const std::uint64_t k = strategy.variables().step();
        const testing::Batch batch =
            testing::make_batch(2 + rank, 100 * k + 10 * static_cast<std::uint64_t>(rank));
        step(PerReplica<Tensor>(std::vector{batch.x}), PerReplica<Tensor>(std::vector{batch.rows}));
        if (strategy.variables().step() % kBetweenCheckpoints == 0) checkpoints.save();
        say << "step " << strategy.variables().step() << ' ' << digest_of(strategy) << std::endl;
      }
      checkpoints.wait();
      say << "end " << strategy.variables().step() << ' ' << digest_of(strategy) << std::endl;
    } catch (const Error& error) {
      const auto now = Clock::now().time_since_epoch().count();
      say << "told " << now << ' ' << strategy.variables().step() << ' ' << digest_of(strategy) << ' '
          << error.what() << std::endl;
      return error.code() == ErrorCode::kUnavailable ? 42 : 1;
    }
    return 0;
  };
}

// The digests after each step of a run that nobody disturbs.
std::vector<std::uint64_t> undisturbed(std::chrono::milliseconds lost) {
  TemporaryFolder folder;
  Processes workers(kWorkers, trains(folder.path(), 0, lost));
  std::vector<std::uint64_t> digests(1);
  std::istringstream said(workers.wait()[0].said);
  std::string word;
  for (std::uint64_t step = 0, digest = 0; said >> word >> step >> digest && word == "step";)
    digests.push_back(digest);
  return digests;
}

// One worker gets the signal at some moment; the others are told within `most`, and all together end as if nothing had been.
void disturb(int signal, std::uint64_t seed, const std::vector<std::uint64_t>& right,
             std::chrono::milliseconds lost, std::vector<double>& told_after) {
  Dice dice(seed);
  const int victim = static_cast<int>(dice.roll(kWorkers));
  const std::int64_t step = 1 + dice.roll(static_cast<std::int64_t>(kSteps) - 5);
  const auto later = std::chrono::microseconds(dice.roll(3000));
  SCOPED_TRACE(str("seed ", seed, ": worker ", victim, " after step ", step));
  TemporaryFolder folder;
  Processes workers(kWorkers, trains(folder.path(), 0, lost));
  ASSERT_TRUE(workers.says(victim, str("step ", step, ' '))) << workers.said(victim);
  std::this_thread::sleep_for(later);
  const auto begin = Clock::now();
  workers.signal(victim, signal);
  const std::vector<Outcome> all = workers.wait(victim);
  for (int rank = 0; rank < kWorkers; ++rank) {
    const Outcome& worker = all[static_cast<std::size_t>(rank)];
    if (rank == victim || worker.status == 0) continue;  // it had come to the end
    ASSERT_EQ(worker.status, 42) << rank << ": " << worker.said;
    std::istringstream told(worker.said.substr(worker.said.rfind("told ") + 5));
    Clock::rep at = 0;
    std::size_t committed = 0;
    std::uint64_t digest = 0;
    std::string why;
    told >> at >> committed >> digest;
    std::getline(told, why);
    EXPECT_THAT(why, HasSubstr(str("worker:", victim, " "))) << rank;
    ASSERT_LT(committed, right.size());
    if (committed > 0) {
      EXPECT_EQ(digest, right[committed]) << rank;
    }
    told_after.push_back(
        std::chrono::duration<double, std::milli>(Clock::time_point(Clock::duration(at)) - begin).count());
  }
  // One that stands still is there all the while.
  Processes again(kWorkers, trains(folder.path(), 1, lost));
  for (const Outcome& worker : again.wait()) {
    ASSERT_EQ(worker.status, 0) << worker.said;
    EXPECT_THAT(worker.said, HasSubstr(str("end ", kSteps, ' ', right[kSteps], '\n')));
  }
}

void disturb_often(int signal, int times, std::chrono::milliseconds lost, std::chrono::milliseconds most) {
  const std::vector<std::uint64_t> right = undisturbed(lost);
  ASSERT_EQ(right.size(), kSteps + 1);
  std::vector<double> told;
  const auto first = static_cast<std::uint64_t>(number_of("LOCKSTEP_SEED", 1));
  for (int i = 0; i < times && !::testing::Test::HasFatalFailure(); ++i)
    disturb(signal, first + static_cast<std::uint64_t>(i), right, lost, told);
  std::ranges::sort(told);
  ASSERT_FALSE(told.empty());
  std::cout << told.size() << " survivors were told, half of them within " << told[told.size() / 2]
            << " ms, the last after " << told.back() << " ms\n";
  EXPECT_LE(told.back(), static_cast<double>(most.count()));
}

// A few times among other tests, on a machine that may hold up a process for a second; or as often as is wished, alone.
void disturb_as_wished(int signal, const char* variable, int few) {
  const int times = number_of(variable, 0);
  const int slower = testing::kSanitized ? 3 : 1;
  if (times > 0) return disturb_often(signal, times, slower * 1s, slower * 2s);
  disturb_often(signal, few, 3s, 30s);
}

TEST(LostWorkers, ThatAreKilledAtAnyMomentAreNamedAndTheRestartEndsAsIfNothingHadBeen) {
  disturb_as_wished(SIGKILL, "LOCKSTEP_KILLS", 3);
}
TEST(LostWorkers, ThatStandStillAtAnyMomentAreNamedAndTheRestartEndsAsIfNothingHadBeen) {
  disturb_as_wished(SIGSTOP, "LOCKSTEP_STOPS", 2);
}

}  // namespace
}  // namespace lockstep
