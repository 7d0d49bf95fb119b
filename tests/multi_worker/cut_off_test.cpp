// Tests: strategies/multi_worker.cpp, core/membership/hub.cpp, core/membership/guest.cpp
// Workers in networks of their own, one of which is cut off without a word. Needs the right to make networks; skipped without.
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/strategies/multi_worker.h"
#include "support/processes.h"
#include "support/sanitizers.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using ::testing::HasSubstr;
using testing::Outcome;
using testing::Processes;

constexpr int kWorkers = 3;
constexpr int kNoNetworks = 77;  // an exit status

bool run(const std::string& command) { return std::system((command + " 2>/dev/null").c_str()) == 0; }

std::string address_of(int rank) { return str("10.77.0.", rank + 1); }

// Sums ones until it is told of a loss.
int train(int rank, const std::filesystem::path& folder, std::ostream& say) {
  MultiWorkerMirroredStrategy strategy({.worker = WorkerSpec{.index = rank, .rank = rank, .count = kWorkers},
                                        .host = address_of(rank),
                                        .folder = folder / "place",
                                        .secret = "between us",
                                        .start = 60s,
                                        .lost = testing::kSanitized ? 3s : 1s,
                                        .runtime = {.threads = 1, .backends = {}}});
  const auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(0.F), {.aggregation = Aggregation::kSum});
  const auto step = strategy.function({{DType::kF32, {}}}, [&](Value x) { w.assign_add(x); });
  try {
    for (;;) {
      step(PerReplica<Tensor>(std::vector{Tensor::scalar(1.F)}));
      if (strategy.last_step() == 5) say << "step 5" << std::endl;
    }
  } catch (const Error& error) {
    say << "told " << Clock::now().time_since_epoch().count() << ' ' << strategy.last_step() << ' '
        << w.copies()[0].item() << ' ' << error.what() << std::endl;
  }
  return 0;
}

// In a process and a network of its own.
int cut_one_off(int victim, std::ostream& say) {
  if (unshare(CLONE_NEWNET) != 0 || !run("ip link set lo up") ||
      !run("ip link add between type bridge && ip link set between up"))
    return kNoNetworks;
  TemporaryFolder folder;
  Processes workers(kWorkers, [&](int rank, std::ostream& line) {
    if (unshare(CLONE_NEWNET) != 0) return kNoNetworks;
    line << "here" << std::endl;
    for (int i = 0; i < 3000 && !run("ip link show eth0 >/dev/null"); ++i) std::this_thread::sleep_for(10ms);
    if (!run(str("ip addr add ", address_of(rank),
                 "/24 dev eth0 && ip link set eth0 up && ip link set lo up")))
      return kNoNetworks;
    return train(rank, folder.path(), line);
  });
  for (int rank = 0; rank < kWorkers; ++rank) {
    if (!workers.says(rank, "here")) return kNoNetworks;
    if (!run(str("ip link add to", rank, " type veth peer name eth0 netns ", workers.id(rank))) ||
        !run(str("ip link set to", rank, " master between && ip link set to", rank, " up")))
      return kNoNetworks;
  }
  for (int rank = 0; rank < kWorkers; ++rank) {
    if (!workers.says(rank, "step 5\n")) {
      say << "worker " << rank << " says " << workers.said(rank);
      return 1;
    }
  }
  const auto begin = Clock::now();
  if (!run(str("ip link set to", victim, " nomaster"))) return kNoNetworks;
  const std::vector<Outcome> all = workers.wait();
  for (int rank = 0; rank < kWorkers; ++rank) {
    const Outcome& worker = all[static_cast<std::size_t>(rank)];
    if (worker.status == kNoNetworks) return kNoNetworks;
    std::istringstream told(worker.said.substr(worker.said.rfind("told ") + 5));
    Clock::rep at = 0;
    told >> at;
    say << "worker " << rank << " after "
        << std::chrono::duration<double>(Clock::time_point(Clock::duration(at)) - begin).count()
        << told.rdbuf();
  }
  return 0;
}

class CutOff : public ::testing::TestWithParam<int> {};

TEST_P(CutOff, WorkersAreNamedToAllOthers) {
  const int victim = GetParam();
  Processes driver(1, [&](int, std::ostream& say) { return cut_one_off(victim, say); });
  const Outcome outcome = driver.wait()[0];
  if (outcome.status == kNoNetworks) GTEST_SKIP() << "no networks can be made here";
  ASSERT_EQ(outcome.status, 0) << outcome.said;
  std::cout << outcome.said;
  std::istringstream lines(outcome.said);
  std::string line;
  double first_sum = -1;
  for (int rank = 0; rank < kWorkers; ++rank) {
    ASSERT_TRUE(std::getline(lines, line)) << outcome.said;
    std::istringstream words(line);
    std::string word, worker;
    double seconds = 0, sum = 0;
    std::int64_t steps = 0;
    words >> word >> worker >> word >> seconds >> steps >> sum;
    EXPECT_THAT(line, HasSubstr("Unavailable"));
    EXPECT_LT(seconds, 20) << line;  // among other tests
    EXPECT_EQ(sum, static_cast<double>(steps * kWorkers)) << "of a committed step: " << line;
    if (rank == victim) continue;  // it cannot know whether it is the others
    EXPECT_THAT(line, HasSubstr(str("worker:", victim, " (", address_of(victim))));
    if (first_sum < 0) first_sum = sum;
    EXPECT_LE(std::abs(sum - first_sum), kWorkers) << "one may have committed a step more";
  }
}
INSTANTIATE_TEST_SUITE_P(Workers, CutOff, ::testing::Values(0, 2));

}  // namespace
}  // namespace lockstep
