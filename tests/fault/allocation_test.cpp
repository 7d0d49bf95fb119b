// Tests: core/scheduler.cpp, graph/run/program.cpp, io/state/checkpoint_series.cpp
// Each allocation of an operation fails once. Whatever fails, everything ends (what hangs fails by the test's
// timeout), and the next try succeeds.
#include <cstdint>
#include <exception>
#include <future>
#include <new>
#include <optional>
#include <vector>

#include <gtest/gtest.h>
#include <taskflow/taskflow.hpp>

#include "lockstep/core/taskflow.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/io/state/checkpoint_series.h"
#include "support/failing_allocations.h"
#include "support/program_test.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using testing::FailingAllocations;
using testing::with_lanes;

class AllocationFailures : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::kAllocationsFail) GTEST_SKIP() << "sanitizers have an allocator of their own";
  }
};

// Calls `round(n)` for n = 1, 2, ... until it says that the n-th allocation was not reached.
template <class Round>
void for_each_allocation(const Round& round) {
  std::int64_t n = 1;
  while (round(n)) {
    ++n;
    ASSERT_LT(n, 100000) << "there is no end of it";
  }
  EXPECT_GT(n, 2) << "nothing failed";
}

Graph counting_graph() {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {16});
  b.assign_add(b.variable("count", Tensor::scalar(0.0F)), b.constant(1.0F));
  b.result(sum(relu(x) + x * 2.0F));
  return b.finish();
}

const std::vector<Tensor>& ones() {
  static const std::vector<Tensor> feeds = {Tensor::full(DType::kF32, {16}, 1)};
  return feeds;
}

enum class Threads { kOwned, kBorrowed };
class Ends : public AllocationFailures, public ::testing::WithParamInterface<Threads> {
 protected:
  Runtime make(std::optional<tf::Executor>& executor) const {
    if (GetParam() == Threads::kOwned) return Runtime({.threads = 2});
    executor.emplace(2);
    return Runtime({.scheduler = borrow(*executor)});
  }
};
INSTANTIATE_TEST_SUITE_P(Threads, Ends, ::testing::Values(Threads::kOwned, Threads::kBorrowed),
                         [](const auto& about) {
                           return about.param == Threads::kOwned ? "Owned" : "Borrowed";
                         });

TEST_P(Ends, ARunWithWorkers) {
  for (const auto of : {FailingAllocations::Of::kThisThread, FailingAllocations::Of::kProcess}) {
    for_each_allocation([&](std::int64_t n) {
      std::optional<tf::Executor> executor;  // ends last, and waits for what Taskflow has counted
      const Program program = compile(counting_graph(), make(executor), with_lanes(Clustering::kOff));
      bool reached = false;
      double runs = 0;
      {
        const FailingAllocations failing({.nth = n, .of = of});
        try {
          program.run(ones());
          runs = 1;
        } catch (const std::bad_alloc&) {
        } catch (const Error&) {  // of a kernel that could not get memory
        }
        reached = failing.reached();
      }
      EXPECT_EQ(program.run(ones())[0].item(), 48.0);
      EXPECT_EQ(program.variables().value("count").item(), runs + 1);
      return reached;
    });
  }
}

// The helpers of runs in steady state: the context is there, so that all that can fail is their start.
TEST_P(Ends, EveryStartOfAHelper) {
  std::optional<tf::Executor> executor;
  const Program program = compile(counting_graph(), make(executor), with_lanes(Clustering::kOff));
  std::vector<Tensor> results = program.run(ones());
  for (int i = 0; i < 200; ++i) {
    program.runtime().scheduler().drain();  // helpers that are still there need no start
    const FailingAllocations failing({.nth = 1, .of = FailingAllocations::Of::kThisThread, .times = 1000});
    program.run_into(ones(), results);
    EXPECT_EQ(results[0].item(), 48.0);
  }
}

TEST_P(Ends, AnAsynchronousRun) {
  for (const auto of : {FailingAllocations::Of::kThisThread, FailingAllocations::Of::kProcess}) {
    for_each_allocation([&](std::int64_t n) {
      std::optional<tf::Executor> executor;
      const Program program = compile(counting_graph(), make(executor), with_lanes(Clustering::kOff));
      std::vector<Tensor> feeds = ones();
      const FailingAllocations failing({.nth = n, .of = of});
      try {
        program.run_async(std::move(feeds)).get();
      } catch (const std::bad_alloc&) {
      } catch (const Error&) {
      }
      return failing.reached();
    });
  }
}

// The first save starts the thread.
TEST_F(AllocationFailures, ASaveThatFailsSavesNothingAndTheNextOneSucceeds) {
  VariableStore store;
  store.find_or_create("v", {DType::kF32, {4}}, [] { return Tensor::zeros({4}); });
  const TemporaryFolder folder;
  for_each_allocation([&](std::int64_t n) {
    CheckpointSeries series(folder.path() / "series", {.keep = 2});
    bool reached = false;
    {
      const FailingAllocations failing({.nth = n});
      try {
        series.save(store);
      } catch (const std::bad_alloc&) {
      }
      reached = failing.reached();
    }
    series.wait();
    series.save(store);
    series.wait();
    EXPECT_FALSE(series.list().empty());
    return reached;
  });
}

// One that waits to be written while a further save fails is written all the same.
TEST_F(AllocationFailures, ASaveThatFailsLeavesTheOneBeforeInLine) {
  VariableStore store;
  store.find_or_create("v", {DType::kF32, {4}}, [] { return Tensor::zeros({4}); });
  const TemporaryFolder folder;
  for_each_allocation([&](std::int64_t n) {
    std::promise<void> go;
    const std::shared_future<void> gone = go.get_future().share();
    bool first = true;
    CheckpointSeries series(folder.path() / "series",
                            {.keep = 1, .before_write = [&first, gone](const SavedCheckpoint&) {
                               if (std::exchange(first, false)) gone.wait();
                             }});
    store.set_step(10);
    series.save(store);  // under way until it may go
    store.set_step(20);
    series.save(store);  // in line, or the first itself
    bool reached = false;
    {
      const FailingAllocations failing({.nth = n});
      try {
        series.save(store);
      } catch (const std::bad_alloc&) {
      }
      reached = failing.reached();
    }
    go.set_value();
    series.wait();
    EXPECT_EQ(series.restore_latest(store)->report.step, 20U);
    return reached;
  });
}

}  // namespace
}  // namespace lockstep
