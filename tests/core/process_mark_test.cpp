// Tests: core/process_mark.cpp, core/scheduler.cpp
#include "lockstep/core/process_mark.h"

#include <memory>
#include <optional>

#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/core/scheduler.h"
#include "support/forked.h"

namespace lockstep {
namespace {

using testing::exit_status_of_child;

TEST(ProcessMark, TellsAChildFromItsParent) {
  const ProcessMark before;
  EXPECT_TRUE(before.is_of_this_process());
  EXPECT_EQ(exit_status_of_child([&] {
              if (before.is_of_this_process()) return 1;
              return ProcessMark().is_of_this_process() ? 0 : 2;
            }),
            0);
  EXPECT_TRUE(before.is_of_this_process());
}

TEST(ForkedScheduler, EndsInTheChildAndGoesOnInTheParent) {
  std::shared_ptr<Scheduler> scheduler = make_scheduler(2);
  auto tasks = scheduler->make_task_set([](std::size_t) {});
  tasks->start(0);
  EXPECT_EQ(exit_status_of_child([&] {
              tasks->start(1);
              scheduler->drain();
              tasks.reset();
              scheduler.reset();
              return 0;
            }),
            0);
  int ran = 0;
  scheduler->submit([&] { ran = 1; });
  scheduler->drain();
  EXPECT_EQ(ran, 1);
}

TEST(ForkedScheduler, RefusesJobsInTheChild) {
  const std::shared_ptr<Scheduler> scheduler = make_scheduler(2);
  EXPECT_EQ(exit_status_of_child([&] {
              try {
                scheduler->submit([] {});
                return 1;
              } catch (const FailedPrecondition&) {
                return 0;
              }
            }),
            0);
}

}  // namespace
}  // namespace lockstep
