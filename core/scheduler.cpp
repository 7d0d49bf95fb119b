// core/scheduler.cpp - workers that run tasks; the only source file of core that includes Taskflow.
#include "lockstep/core/scheduler.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/process_mark.h"
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
  std::unique_ptr<TaskSet> make_task_set(std::function<void(std::size_t)> body) override {
    return tasks_.make_task_set(std::move(body));
  }
  std::size_t waiting_starts() const override { return tasks_.waiting_starts(); }
  void drain() override { tasks_.drain(); }

  // Called when the last handle goes.
  static void end(OwnedScheduler* scheduler) {
    // After fork() there are no threads to join: joining them would wait for ever.
    if (!scheduler->process_.is_of_this_process()) return;
    end_left_over();
    if (scheduler->this_worker() < 0) {
      delete scheduler;
      return;
    }
    // A worker cannot end the executor it belongs to: another thread does it or, if none can be started, the
    // next call of end() or make_scheduler().
    try {
      std::thread([scheduler] { delete scheduler; }).detach();
    } catch (...) {
      const std::lock_guard<std::mutex> lock(left_over_mutex);
      scheduler->next_left_over_ = std::exchange(left_over, scheduler);
    }
  }

  static void end_left_over() {
    OwnedScheduler* mine = nullptr;
    {
      const std::lock_guard<std::mutex> lock(left_over_mutex);
      if (left_over == nullptr || left_over->this_worker() >= 0) return;
      mine = std::exchange(left_over, left_over->next_left_over_);
    }
    delete mine;
  }

 private:
  static std::mutex left_over_mutex;
  static OwnedScheduler* left_over;

  const ProcessMark process_;
  OwnedScheduler* next_left_over_ = nullptr;
  tf::Executor executor_;
  TaskflowScheduler tasks_;  // after the executor, so that it drains before the threads end
};

// Taskflow's executor ends the process if a thread after its first cannot be started. So as many as it needs are
// started here before, all at once. (What is left: that the limit is reached between here and there.)
void try_threads(std::size_t count) {
  std::mutex mutex;
  std::condition_variable changed;
  bool go = false;
  std::vector<std::thread> tried;
  const auto end = [&] {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      go = true;
    }
    changed.notify_all();
    for (std::thread& thread : tried) thread.join();
  };
  tried.reserve(count);
  try {
    while (tried.size() < count) {
      tried.emplace_back([&] {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return go; });
      });
    }
  } catch (const std::system_error& error) {
    const std::size_t started = tried.size();
    end();
    throw Error(ErrorCode::kUnavailable,
                str("cannot start thread ", started + 1, " of ", count, " (", error.code().message(),
                    "): ask for fewer (RuntimeOptions::threads, --threads), or let the system allow more"));
  } catch (...) {
    end();
    throw;
  }
  end();
}

std::mutex OwnedScheduler::left_over_mutex;
OwnedScheduler* OwnedScheduler::left_over = nullptr;

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
  OwnedScheduler::end_left_over();
  try_threads(threads);
  return {new OwnedScheduler(threads), OwnedScheduler::end};
}

}  // namespace lockstep
