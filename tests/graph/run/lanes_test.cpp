// Tests: graph/run/lanes.cpp
#include "lockstep/graph/run/internal/lanes.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep::internal {
namespace {

using Clock = std::chrono::steady_clock;

// Clusters by the ones that each waits for, lower numbers only; a last one that waits for all without successors.
Clusters clusters_of(std::vector<std::vector<std::uint32_t>> before) {
  std::set<std::uint32_t> ends;
  for (std::uint32_t i = 0; i < before.size(); ++i) ends.insert(i);
  for (const auto& list : before) {
    for (const std::uint32_t one : list) ends.erase(one);
  }
  before.emplace_back(ends.begin(), ends.end());
  Clusters made;
  made.clusters.resize(before.size());
  for (std::uint32_t i = 0; i < before.size(); ++i) {
    Cluster& cluster = made.clusters[i];
    cluster.predecessors = static_cast<std::uint32_t>(before[i].size());
    cluster.first_successor = static_cast<std::uint32_t>(made.successors.size());
    for (std::uint32_t j = i + 1; j < before.size(); ++j) {
      if (std::ranges::count(before[j], i) > 0) made.successors.push_back(j);
    }
    cluster.end_successor = static_cast<std::uint32_t>(made.successors.size());
    cluster.urgency = static_cast<float>(before.size() - i);
  }
  made.clusters.back().last = true;
  return made;
}

std::vector<std::vector<std::uint32_t>> random_edges(std::uint32_t seed, std::uint32_t size) {
  std::mt19937 random(seed);
  std::vector<std::vector<std::uint32_t>> before(size);
  for (std::uint32_t i = 1; i < size; ++i) {
    std::set<std::uint32_t> chosen;
    for (std::uint32_t k = random() % 4; k > 0; --k) chosen.insert(static_cast<std::uint32_t>(random() % i));
    before[i].assign(chosen.begin(), chosen.end());
  }
  return before;
}

// Writes plain memory, so that a sanitizer sees whether one cluster may read what another wrote.
class Sums : public Lanes::Work {
 public:
  explicit Sums(std::vector<std::vector<std::uint32_t>> before)
      : before_(std::move(before)), sums_(before_.size() + 1) {}
  void begin(std::uint64_t seed) { seed_ = seed; }
  void run_cluster(std::uint32_t cluster, bool /*follows*/) noexcept override {
    std::uint64_t sum = seed_ + cluster;
    if (cluster < before_.size()) {
      for (const std::uint32_t one : before_[cluster]) sum = sum * 31 + sums_[one];
    }
    sums_[cluster] = sum;
  }
  const std::vector<std::uint64_t>& sums() const { return sums_; }

 private:
  std::vector<std::vector<std::uint32_t>> before_;
  std::uint64_t seed_ = 0;
  std::vector<std::uint64_t> sums_;
};

TEST(Lanes, RunEveryClusterAfterThoseItWaitsFor) {
  const std::shared_ptr<Scheduler> scheduler = make_scheduler(3);
  for (const std::uint32_t seed : {1U, 2U, 3U, 4U}) {
    const auto before = random_edges(seed, 10 * seed * seed);
    const Clusters clusters = clusters_of(before);
    for (const std::size_t lanes : {1U, 2U, 4U}) {
      Sums work(before);
      Sums expected(before);
      Lanes many(clusters, lanes, *scheduler, work);
      for (std::uint64_t run = 0; run < 200; ++run) {
        work.begin(run);
        expected.begin(run);
        for (std::uint32_t i = 0; i < before.size(); ++i) expected.run_cluster(i, false);
        many.run();
        for (std::uint32_t i = 0; i < before.size(); ++i)
          ASSERT_EQ(work.sums()[i], expected.sums()[i]) << run;
      }
    }
  }
}

// Nobody but the caller is free: it does all the work, and the end does not wait for a worker.
TEST(Lanes, NeedNoHelper) {
  const std::shared_ptr<Scheduler> scheduler = make_scheduler(1);
  std::mutex busy;
  const std::unique_lock<std::mutex> lock(busy);
  std::atomic<bool> taken{false};
  scheduler->submit([&] {
    taken.store(true);
    const std::lock_guard<std::mutex> wait(busy);
  });
  while (!taken.load()) std::this_thread::yield();
  const auto before = random_edges(5, 40);
  const Clusters clusters = clusters_of(before);
  Sums work(before);
  Lanes lanes(clusters, 4, *scheduler, work);
  for (int run = 0; run < 20; ++run) lanes.run();
  EXPECT_EQ(work.sums()[0], 0U);
}

// Two clusters that wait for each other to begin: a run needs two lanes.
class Meeting : public Lanes::Work {
 public:
  void run_cluster(std::uint32_t cluster, bool /*follows*/) noexcept override {
    if (cluster > 1) return;
    begun.fetch_add(1);
    const auto deadline = Clock::now() + std::chrono::seconds(10);
    here_.fetch_add(1);
    while (here_.load() % 2 != 0 && !missed.load()) {
      if (Clock::now() > deadline) missed.store(true);
      std::this_thread::yield();
    }
  }
  std::atomic<std::uint32_t> begun{0};  // clusters of all runs
  std::atomic<bool> missed{false};

 private:
  std::atomic<std::uint32_t> here_{0};
};

TEST(Lanes, HelpersComeBackForEveryRun) {
  const std::shared_ptr<Scheduler> scheduler = make_scheduler(1);
  const Clusters clusters = clusters_of({{}, {}});
  Meeting work;
  Lanes lanes(clusters, 2, *scheduler, work);
  std::mt19937 random(7);
  for (int run = 0; run < 500 && !work.missed; ++run) {
    // A helper leaves some 50 us after it has found nothing to do.
    const auto until = Clock::now() + std::chrono::nanoseconds(random() % 120'000);
    while (Clock::now() < until) {
    }
    lanes.run();
  }
  EXPECT_FALSE(work.missed);
}

// Once, it holds a helper that looks whether others need its worker, and tells it so when the next run has begun.
class HoldsALeavingHelper : public Scheduler {
 public:
  explicit HoldsALeavingHelper(Meeting& work) : work_(work) {}
  std::size_t num_workers() const override { return real_->num_workers(); }
  int this_worker() const override { return real_->this_worker(); }
  void submit(std::function<void()> job) override { real_->submit(std::move(job)); }
  std::unique_ptr<TaskSet> make_task_set(std::function<void(std::size_t)> body) override {
    return real_->make_task_set(std::move(body));
  }
  void drain() override { real_->drain(); }
  std::size_t waiting_starts() const override {
    const std::uint32_t before = work_.begun;
    if (held.exchange(true)) return 0;
    while (work_.begun == before) std::this_thread::yield();
    return 1;
  }
  mutable std::atomic<bool> held{false};

 private:
  Meeting& work_;
  std::shared_ptr<Scheduler> real_ = make_scheduler(1);
};

// The run pushes after the helper's last look and before it has left: nobody calls it, so it has to see by itself.
TEST(Lanes, AHelperThatIsLeavingSeesWhatIsPushed) {
  Meeting work;
  HoldsALeavingHelper scheduler(work);
  const Clusters clusters = clusters_of({{}, {}});
  Lanes lanes(clusters, 2, scheduler, work);
  while (!scheduler.held) {  // it may also leave because it is tired
    lanes.run();
    const auto until = Clock::now() + std::chrono::milliseconds(5);
    while (!scheduler.held && Clock::now() < until) std::this_thread::yield();
  }
  lanes.run();
  EXPECT_FALSE(work.missed);
}

}  // namespace
}  // namespace lockstep::internal
