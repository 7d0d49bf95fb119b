// Tests: core/error.cpp, core/scheduler.cpp
#include "lockstep/core/scheduler.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/core/taskflow.h"

namespace lockstep {
namespace {

void start_all(Scheduler::TaskSet& tasks, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) tasks.start(i);
}

// Every property holds for threads that Lockstep owns and for those that it borrows.
class SchedulerTest : public ::testing::TestWithParam<bool> {
 protected:
  std::shared_ptr<Scheduler> make(std::size_t threads) {
    if (!GetParam()) return make_scheduler(threads);
    executor_ = std::make_unique<tf::Executor>(threads);
    return borrow(*executor_);
  }

 private:
  std::unique_ptr<tf::Executor> executor_;
};

TEST_P(SchedulerTest, HasTheWorkersThatWereAskedFor) {
  EXPECT_EQ(make(1)->num_workers(), 1U);
  EXPECT_EQ(make(3)->num_workers(), 3U);
}

TEST_P(SchedulerTest, KnowsItsWorkers) {
  const auto scheduler = make(3);
  EXPECT_EQ(scheduler->this_worker(), -1);
  std::mutex mutex;
  std::set<int> seen;
  for (int i = 0; i < 100; ++i) {
    scheduler->submit([&] {
      const std::lock_guard<std::mutex> lock(mutex);
      seen.insert(scheduler->this_worker());
    });
  }
  scheduler->drain();
  EXPECT_FALSE(seen.empty());
  EXPECT_GE(*seen.begin(), 0);
  EXPECT_LT(*seen.rbegin(), 3);
}

TEST_P(SchedulerTest, AWorkerOfAnotherSchedulerIsNotOurs) {
  const auto ours = make(1);
  const auto other = make_scheduler(1);
  int here = 0, there = 0;
  other->submit([&] {
    here = other->this_worker();
    there = ours->this_worker();
  });
  other->drain();
  EXPECT_EQ(here, 0);
  EXPECT_EQ(there, -1);
}

TEST_P(SchedulerTest, DrainWaitsForEveryJob) {
  const auto scheduler = make(2);
  std::atomic<int> done{0};
  for (int round = 1; round <= 20; ++round) {
    for (int i = 0; i < 50; ++i) scheduler->submit([&] { done.fetch_add(1, std::memory_order_relaxed); });
    scheduler->drain();
    ASSERT_EQ(done.load(std::memory_order_relaxed), round * 50);
  }
}

TEST_P(SchedulerTest, DrainWaitsForJobsThatJobsSubmit) {
  const auto scheduler = make(2);
  std::atomic<int> done{0};
  std::function<void(int)> spawn = [&](int depth) {
    done.fetch_add(1);
    if (depth == 0) return;
    for (int i = 0; i < 2; ++i) scheduler->submit([&spawn, depth] { spawn(depth - 1); });
  };
  scheduler->submit([&] { spawn(6); });
  scheduler->drain();
  EXPECT_EQ(done.load(), (1 << 7) - 1);
}

TEST_P(SchedulerTest, DrainWaitsForWhatAJobHolds) {
  const auto scheduler = make(2);
  for (int round = 0; round < 100; ++round) {
    auto held = std::make_shared<int>(1);
    const std::weak_ptr<int> watch = held;
    scheduler->submit([held = std::move(held)] {});
    scheduler->drain();
    ASSERT_TRUE(watch.expired());
  }
}

TEST_P(SchedulerTest, DrainWaitsForTaskSets) {
  const auto scheduler = make(2);
  std::atomic<int> done{0};
  const auto tasks =
      scheduler->make_task_set([&](std::size_t) { done.fetch_add(1, std::memory_order_relaxed); });
  for (int round = 1; round <= 50; ++round) {
    start_all(*tasks, 7);
    scheduler->drain();
    ASSERT_EQ(done.load(std::memory_order_relaxed), 7 * round);
  }
}

TEST_P(SchedulerTest, DrainFromAWorkerHelpsWithTheRest) {
  for (const std::size_t threads : {1U, 2U}) {
    const auto scheduler = make(threads);
    std::atomic<int> done{0};
    int seen = 0;
    scheduler->submit([&] {
      for (int i = 0; i < 20; ++i) scheduler->submit([&] { done.fetch_add(1); });
      scheduler->drain();
      seen = done.load();
    });
    scheduler->drain();
    EXPECT_EQ(seen, 20);
  }
}

TEST_P(SchedulerTest, WorkersMayDrainAtOnceAndWithinEachOther) {
  for (const std::size_t threads : {1U, 2U, 4U}) {
    const auto scheduler = make(threads);
    std::atomic<int> done{0};
    for (int i = 0; i < 8; ++i) {
      scheduler->submit([&] {
        scheduler->submit([&] { done.fetch_add(1); });
        scheduler->drain();
        done.fetch_add(1);
      });
    }
    scheduler->drain();
    EXPECT_EQ(done.load(), 16);
  }
}

TEST_P(SchedulerTest, DrainFromATaskOfASetDoesNotWaitForItself) {
  const auto scheduler = make(2);
  std::atomic<int> done{0};
  const auto tasks = scheduler->make_task_set([&](std::size_t) {
    scheduler->drain();
    done.fetch_add(1);
  });
  start_all(*tasks, 4);
  scheduler->drain();
  EXPECT_EQ(done.load(), 4);
}

TEST_P(SchedulerTest, EveryTaskOfASetRunsOncePerStart) {
  const auto scheduler = make(2);
  std::vector<std::atomic<int>> runs(16);
  const auto tasks = scheduler->make_task_set([&](std::size_t i) { runs[i].fetch_add(1); });
  for (int round = 0; round < 10; ++round) start_all(*tasks, runs.size());  // they overlap
  scheduler->drain();
  for (const std::atomic<int>& count : runs) EXPECT_EQ(count.load(), 10);
}

TEST_P(SchedulerTest, ASetMayBeStartedFromManyThreads) {
  const auto scheduler = make(2);
  std::atomic<int> done{0};
  auto tasks = scheduler->make_task_set([&](std::size_t) { done.fetch_add(1); });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 25; ++i) start_all(*tasks, 3);
    });
  }
  for (std::thread& thread : threads) thread.join();
  scheduler->drain();
  EXPECT_EQ(done.load(), 3 * 100);
}

TEST_P(SchedulerTest, DestroyingASetWaitsForTasksThatHaveBegun) {
  const auto scheduler = make(2);
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> begun{0}, done{0};
    auto tasks = scheduler->make_task_set([&](std::size_t) {
      begun.fetch_add(1);
      for (int i = 0; i < 20; ++i) std::this_thread::yield();
      done.fetch_add(1);
    });
    start_all(*tasks, 5);
    while (begun.load() == 0) std::this_thread::yield();
    tasks.reset();
    const int ended = done.load();
    EXPECT_EQ(begun.load(), ended);
    scheduler->drain();
    EXPECT_EQ(begun.load(), ended);  // the others were withdrawn
  }
}

// Were the end of a set to wait for a worker, it would wait for ever here.
TEST_P(SchedulerTest, DestroyingASetWithdrawsWhatNoWorkerHasTakenUp) {
  const auto scheduler = make(2);
  std::latch busy(2), release(1);
  for (int i = 0; i < 2; ++i) {
    scheduler->submit([&] {
      busy.count_down();
      release.wait();
    });
  }
  busy.wait();
  std::atomic<int> done{0};
  const auto held = std::make_shared<int>(1);
  auto tasks = scheduler->make_task_set([&done, held](std::size_t) { done.fetch_add(1); });
  start_all(*tasks, 5);
  EXPECT_EQ(scheduler->waiting_starts(), 5U);
  tasks.reset();
  EXPECT_EQ(scheduler->waiting_starts(), 0U);
  EXPECT_EQ(held.use_count(), 1) << "what the tasks held is gone";
  release.count_down();
  scheduler->drain();
  EXPECT_EQ(done.load(), 0);
}

TEST_P(SchedulerTest, AWorkerMayDestroyASetOnASingleThread) {
  const auto scheduler = make(1);
  std::atomic<int> done{0};
  scheduler->submit([&] {
    auto tasks = scheduler->make_task_set([&](std::size_t) { done.fetch_add(1); });
    start_all(*tasks, 5);
    tasks.reset();  // the only worker is here
  });
  scheduler->drain();
  EXPECT_EQ(done.load(), 0);
}

TEST_P(SchedulerTest, ASetNeverStartedIsFine) {
  const auto scheduler = make(2);
  const auto idle = scheduler->make_task_set([](std::size_t) { FAIL(); });
  scheduler->drain();
}

TEST_P(SchedulerTest, DestructionRunsWhatWasSubmitted) {
  std::atomic<int> done{0};
  {
    const auto scheduler = make(2);
    for (int i = 0; i < 100; ++i) scheduler->submit([&] { done.fetch_add(1); });
  }
  EXPECT_EQ(done.load(), 100);
}

INSTANTIATE_TEST_SUITE_P(Threads, SchedulerTest, ::testing::Bool(),
                         [](const auto& about) { return about.param ? "Borrowed" : "Owned"; });

TEST(MakeScheduler, ZeroMeansOnePerHardwareThread) {
  EXPECT_EQ(make_scheduler()->num_workers(), std::max(1U, std::thread::hardware_concurrency()));
}

TEST(MakeScheduler, RefusesAbsurdNumbers) {
  EXPECT_THROW(make_scheduler(static_cast<std::size_t>(-1)), InvalidArgument);
}

TEST(Borrow, LeavesTheExecutorUsable) {
  tf::Executor executor(2);
  {
    const auto scheduler = borrow(executor);
    scheduler->submit([] {});
  }
  int ran = 0;
  tf::Taskflow flow;
  flow.emplace([&] { ran = 1; });
  executor.run(flow).wait();
  EXPECT_EQ(ran, 1);
}

TEST(Borrow, MayEndWhileEveryWorkerIsBusyWithTheApplicationsTasks) {
  tf::Executor executor(2);
  std::latch busy(2), release(1);
  for (int i = 0; i < 2; ++i) {
    executor.silent_async([&] {
      busy.count_down();
      release.wait();
    });
  }
  busy.wait();
  {
    const auto scheduler = borrow(executor);
    const auto tasks = scheduler->make_task_set([](std::size_t) { FAIL(); });
    start_all(*tasks, 3);
  }
  release.count_down();
  executor.wait_for_all();
}

TEST(Borrow, WorksFromATaskOfTheApplication) {
  tf::Executor executor(1);
  const auto scheduler = borrow(executor);
  std::atomic<int> done{0};
  tf::Taskflow flow;
  flow.emplace([&] {
    scheduler->submit([&] { done.fetch_add(1); });
    scheduler->drain();
    EXPECT_EQ(done.load(), 1);
  });
  executor.run(flow).wait();
  EXPECT_EQ(done.load(), 1);
}

}  // namespace
}  // namespace lockstep
