// Tests: core/error.cpp, core/scheduler.cpp
#include "lockstep/core/scheduler.h"

#include <algorithm>
#include <atomic>
#include <functional>
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
      scheduler->make_task_set(7, [&](std::size_t) { done.fetch_add(1, std::memory_order_relaxed); });
  for (int round = 1; round <= 50; ++round) {
    tasks->start();
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
  const auto tasks = scheduler->make_task_set(4, [&](std::size_t) {
    scheduler->drain();
    done.fetch_add(1);
  });
  tasks->start();
  scheduler->drain();
  EXPECT_EQ(done.load(), 4);
}

TEST_P(SchedulerTest, EveryTaskOfASetRunsOncePerStart) {
  const auto scheduler = make(2);
  std::vector<std::atomic<int>> runs(16);
  const auto tasks = scheduler->make_task_set(runs.size(), [&](std::size_t i) { runs[i].fetch_add(1); });
  for (int round = 0; round < 10; ++round) tasks->start();  // they overlap
  scheduler->drain();
  for (const std::atomic<int>& count : runs) EXPECT_EQ(count.load(), 10);
}

TEST_P(SchedulerTest, ASetMayBeStartedFromManyThreads) {
  const auto scheduler = make(2);
  std::atomic<int> done{0};
  auto tasks = scheduler->make_task_set(3, [&](std::size_t) { done.fetch_add(1); });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 25; ++i) tasks->start();
    });
  }
  for (std::thread& thread : threads) thread.join();
  tasks.reset();
  EXPECT_EQ(done.load(), 3 * 100);
}

TEST_P(SchedulerTest, DestroyingASetWaitsForItsTasks) {
  const auto scheduler = make(2);
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> done{0};
    auto tasks = scheduler->make_task_set(5, [&](std::size_t) { done.fetch_add(1); });
    tasks->start();
    tasks->start();
    tasks.reset();
    ASSERT_EQ(done.load(), 10);
  }
}

TEST_P(SchedulerTest, AWorkerMayDestroyASetOnASingleThread) {
  const auto scheduler = make(1);
  std::atomic<int> done{0};
  scheduler->submit([&] {
    auto tasks = scheduler->make_task_set(5, [&](std::size_t) { done.fetch_add(1); });
    tasks->start();
    tasks.reset();
    EXPECT_EQ(done.load(), 5);
  });
  scheduler->drain();
  EXPECT_EQ(done.load(), 5);
}

TEST_P(SchedulerTest, AnEmptySetOrOneNeverStartedIsFine) {
  const auto scheduler = make(2);
  const auto empty = scheduler->make_task_set(0, [](std::size_t) { FAIL(); });
  empty->start();
  const auto idle = scheduler->make_task_set(3, [](std::size_t) { FAIL(); });
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
