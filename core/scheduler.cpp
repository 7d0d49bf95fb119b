// The only source of core that sees Taskflow.
#include "lockstep/core/scheduler.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/taskflow.h"

namespace lockstep {
namespace {

constexpr std::size_t kMaxThreads = 4096;

class OwnedScheduler final : public Scheduler {
 public:
  explicit OwnedScheduler(std::size_t threads) : executor_(threads), tasks_(executor_) {}

  std::size_t num_workers() const override { return tasks_.num_workers(); }
  int this_worker() const override { return tasks_.this_worker(); }
  void submit(std::function<void()> job) override { tasks_.submit(std::move(job)); }
  std::unique_ptr<TaskSet> make_task_set(std::size_t count, std::function<void(std::size_t)> body) override {
    return tasks_.make_task_set(count, std::move(body));
  }
  std::size_t waiting_starts() const override { return tasks_.waiting_starts(); }
  void drain() override { tasks_.drain(); }

 private:
  tf::Executor executor_;
  TaskflowScheduler tasks_;  // after the executor, so that it drains before the threads end
};

}  // namespace

Scheduler::TaskSet::~TaskSet() = default;
Scheduler::Scheduler() = default;
Scheduler::~Scheduler() = default;

std::shared_ptr<Scheduler> make_scheduler(std::size_t threads) {
  if (threads > kMaxThreads) {
    throw InvalidArgument(str("make_scheduler: ", threads, " threads: at most ", kMaxThreads,
                              " are supported (0 means one per hardware thread)"));
  }
  if (threads == 0) threads = std::max<std::size_t>(std::thread::hardware_concurrency(), 1);
  // A worker cannot end the executor it belongs to: where a task holds the last handle, another thread does
  // it.
  return {new OwnedScheduler(threads), [](OwnedScheduler* scheduler) {
            if (scheduler->this_worker() < 0) {
              delete scheduler;
            } else {
              std::thread([scheduler] { delete scheduler; }).detach();
            }
          }};
}

}  // namespace lockstep
