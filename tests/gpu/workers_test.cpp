// Tests: strategies/multi_worker.cpp, strategies/worker_group.cpp, core/communicators/host_and_cards.cpp, core/nccl/nccl_group.cpp
// Workers that share the one card, each with a replica, over NCCL; LOCKSTEP_KILLS says how often one of them is killed.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/nccl/nccl_group.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/strategies/multi_worker.h"
#include "support/on_card.h"
#include "support/random_tensors.h"
#include "support/spawned_members.h"
#include "support/strategy_test.h"
#include "support/temporary_folder.h"
#include "support/training.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::Member;
using testing::SpawnedMembers;

constexpr int kWorkers = 3, kSteps = 10;

// --- a worker, in a process of its own

MultiWorkerOptions options_of(const Member& me, int generation = 0) {
  return {.worker = WorkerSpec{.index = me.rank, .rank = me.rank, .count = me.size, .generation = generation},
          .folder = me.folder / "place",
          .start = 120s,
          .runtime = {.threads = 1},
          .mirrored = {.devices = {"gpu:0"}}};
}

// The f64 variables, one behind the other.
std::vector<double> state_of(const Strategy& strategy) {
  std::vector<double> state;
  for (const std::string& name : strategy.variables().names()) {
    if (name.find("replica_") != std::string::npos) continue;
    const Tensor value = strategy.variables().find(name)->storage().host();
    if (value.dtype() != DType::kF64) continue;
    state.insert(state.end(), value.data<double>().begin(), value.data<double>().end());
  }
  return state;
}

void train(Strategy& strategy, int steps, const std::function<void(int step)>& after = {}) {
  const auto scope = strategy.scope();
  const auto step = strategy.function({{DType::kF64, {kUnknown, 3}, "x"}, {DType::kI64, {kUnknown}, "rows"}},
                                      [&](Value x, Value rows) { testing::train(x, rows, false); });
  for (int k = 1; k <= steps; ++k) {
    std::vector<Tensor> x, rows;
    for (std::int64_t r = 0; r < strategy.num_local_replicas(); ++r) {
      const auto number = static_cast<std::uint64_t>(strategy.first_replica() + r);
      const testing::Batch batch = testing::make_batch(4, 100 * static_cast<std::uint64_t>(k) + 10 * number);
      x.push_back(batch.x);
      rows.push_back(batch.rows);
    }
    step(PerReplica<Tensor>(std::move(x)), PerReplica<Tensor>(std::move(rows)));
    if (after) after(k);
  }
}

void write_state(const Member& me, const Strategy& strategy) {
  const std::vector<double> state = state_of(strategy);
  std::ofstream(me.folder / str("state.", me.rank), std::ios::binary)
      .write(reinterpret_cast<const char*>(state.data()),
             static_cast<std::streamsize>(state.size() * sizeof(double)));
}

void train_to_the_end(const Member& me) {
  const int generation = me.part == "again" ? 1 : 0;
  MultiWorkerMirroredStrategy strategy(options_of(me, generation));
  EXPECT_THAT(strategy.description(), HasSubstr("over NCCL from card 0"));
  train(strategy, kSteps);
  write_state(me, strategy);
}

// What a run of one worker fails with is everybody's, though NCCL itself cannot decline; the next run is right.
void fail_now_and_then(const Member& me) {
  MultiWorkerMirroredStrategy strategy(options_of(me));
  const auto scope = strategy.scope();
  const Variable w("w", Tensor::zeros(DType::kF32, {1000}), {.aggregation = Aggregation::kSum});
  const auto step =
      strategy.function({{DType::kF32, {1000}}}, [&](Value x) { w.assign_add(check_finite(x)); });
  const auto feed = [](float value) {
    return PerReplica<Tensor>(std::vector{Tensor::full(DType::kF32, {1000}, value)});
  };
  for (int k = 1; k <= 20; ++k) {
    step(feed(1));
    const float bad = std::numeric_limits<float>::infinity();
    const std::string error = error_of([&] {
      step(feed(me.rank == k % me.size ? bad : 1.F));
      static_cast<void>(w.copies()[0].host());
    });
    const std::string whose = me.rank == k % me.size ? "" : str("worker:", k % me.size, " ");
    EXPECT_THAT(error, AllOf(HasSubstr("check_finite"), HasSubstr(whose)));
    EXPECT_EQ(strategy.last_step(), k);
  }
  EXPECT_TRUE(w.copies()[0].host().bit_equal(Tensor::full(DType::kF32, {1000}, 20. * me.size)));
  // A run that is refused at its start.
  if (me.rank == 1) {
    EXPECT_THROW(step(PerReplica<Tensor>(std::vector{Tensor::scalar(1.F)})), Error);
  } else {
    EXPECT_THAT(error_of([&] { step(feed(1)); }), HasSubstr("worker:1 "));
  }
  step(feed(1));
  EXPECT_TRUE(w.copies()[0].host().bit_equal(Tensor::full(DType::kF32, {1000}, 21. * me.size)));
}

void train_until_lost(const Member& me) {
  std::ofstream say(me.folder / str("said.", me.rank));
  MultiWorkerMirroredStrategy strategy(options_of(me));
  try {
    train(strategy, 100'000, [&](int step) { say << "step " << step << std::endl; });
  } catch (const Error& error) {
    const auto now = Clock::now().time_since_epoch().count();
    say << "told " << now << ' ' << strategy.last_step() << ' ' << error.what() << std::endl;
  }
}

TEST(WorkerOnCard, DISABLED_Plays) {
  const Member me = testing::this_member();
  const std::map<std::string, std::function<void(const Member&)>> parts = {{"train", train_to_the_end},
                                                                           {"again", train_to_the_end},
                                                                           {"fail", fail_now_and_then},
                                                                           {"lose", train_until_lost}};
  parts.at(me.part)(me);
  testing::says_played(me);
}

// --- those who start them

class WorkersOnCard : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::has_card()) GTEST_SKIP() << "this machine has no card";
    if (const Decision found = has_nccl(); !found) GTEST_SKIP() << found.reason();
  }
  static constexpr const char* kFilter = "WorkerOnCard.*";

  static std::string read(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  // All have the same bits, which are those of one process on CPUs but for rounding.
  static void expect_states(const std::filesystem::path& folder) {
    MirroredStrategy together(
        {.devices = {"cpu:0", "cpu:1", "cpu:2"},
         .base = {.runtime = Runtime({.threads = 1, .cpu_devices = kWorkers, .backends = {}})}});
    train(together, kSteps);
    const std::vector<double> right = state_of(together);
    const std::string first = read(folder / "state.0");
    ASSERT_EQ(first.size(), right.size() * sizeof(double));
    for (int rank = 1; rank < kWorkers; ++rank) EXPECT_EQ(read(folder / str("state.", rank)), first);
    for (std::size_t i = 0; i < right.size(); ++i) {
      double value = 0;
      std::memcpy(&value, first.data() + i * sizeof value, sizeof value);
      ASSERT_NEAR(value, right[i], 1e-8) << i;
    }
  }
};

TEST_F(WorkersOnCard, TrainAsOneProcess) {
  TemporaryFolder folder;
  EXPECT_EQ(SpawnedMembers(kFilter, "train", kWorkers, folder.path()).wait(),
            (std::vector<int>(kWorkers, 0)));
  expect_states(folder.path());
}

TEST_F(WorkersOnCard, ARunThatFailsOnOneFailsOnAllAndTheNextIsRight) {
  TemporaryFolder folder;
  EXPECT_EQ(SpawnedMembers(kFilter, "fail", kWorkers, folder.path()).wait(), (std::vector<int>(kWorkers, 0)));
}

TEST_F(WorkersOnCard, OneThatIsKilledIsNamedToAllAndANewGroupIsRight) {
  const char* const text = std::getenv("LOCKSTEP_KILLS");
  const int times = text == nullptr ? 2 : std::atoi(text);
  std::vector<double> told_after;
  for (int kill = 0; kill < times; ++kill) {
    Dice dice(static_cast<std::uint64_t>(kill));
    const int victim = static_cast<int>(dice.roll(kWorkers));
    const std::int64_t step = 1 + dice.roll(60);
    SCOPED_TRACE(str("worker ", victim, " after step ", step));
    TemporaryFolder folder;
    {
      SpawnedMembers members(kFilter, "lose", kWorkers, folder.path());
      const auto end = Clock::now() + 120s;
      while (read(folder / str("said.", victim)).find(str("step ", step, "\n")) == std::string::npos) {
        ASSERT_LT(Clock::now(), end);
        std::this_thread::sleep_for(1ms);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(dice.roll(3000)));
      const auto begin = Clock::now();
      members.signal(victim, SIGKILL);
      std::vector<int> expected(kWorkers, 0);
      expected[static_cast<std::size_t>(victim)] = -SIGKILL;
      ASSERT_EQ(members.wait(), expected);
      for (int rank = 0; rank < kWorkers; ++rank) {
        if (rank == victim) continue;
        const std::string said = read(folder / str("said.", rank));
        ASSERT_NE(said.rfind("told "), std::string::npos) << said;
        std::istringstream told(said.substr(said.rfind("told ") + 5));
        Clock::rep at = 0;
        std::int64_t committed = 0;
        told >> at >> committed;
        EXPECT_GE(committed, step - 1);
        EXPECT_THAT(said.substr(said.rfind("told ")),
                    AllOf(HasSubstr("Unavailable"), HasSubstr(str("worker:", victim, " "))));
        told_after.push_back(
            std::chrono::duration<double, std::milli>(Clock::time_point(Clock::duration(at)) - begin)
                .count());
      }
    }
    EXPECT_EQ(SpawnedMembers(kFilter, "again", kWorkers, folder.path()).wait(),
              (std::vector<int>(kWorkers, 0)));
    expect_states(folder.path());
  }
  std::ranges::sort(told_after);
  ASSERT_FALSE(told_after.empty());
  std::cout << told_after.size() << " survivors were told, half of them within "
            << told_after[told_after.size() / 2] << " ms, the last after " << told_after.back() << " ms\n";
  EXPECT_LE(told_after.back(), 2000);
}

}  // namespace
}  // namespace lockstep
