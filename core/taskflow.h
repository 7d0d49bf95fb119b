// core/taskflow.h - bring your own tf::Executor. Header-only: compiled in the application, with its Taskflow.
//
//   tf::Executor executor(8);                                    // the application's
//   Runtime runtime({.scheduler = borrow(executor)});            // Lockstep runs its programs there
//
// The executor must outlive the scheduler and every Program compiled for it. This is the only public header that
// names Taskflow's types; the umbrella header does not include it. It builds with Taskflow 3.9 and 4.x.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <taskflow/taskflow.hpp>
#include <thread>
#include <utility>

#include "lockstep/core/scheduler.h"

namespace lockstep {

class TaskflowScheduler final : public Scheduler {
 public:
  explicit TaskflowScheduler(tf::Executor& executor) : executor_(executor) {}
  ~TaskflowScheduler() override { TaskflowScheduler::drain(); }

  std::size_t num_workers() const override { return executor_.num_workers(); }
  int this_worker() const override { return executor_.this_worker_id(); }

  void submit(std::function<void()> job) override {
    pending_.fetch_add(1, std::memory_order_relaxed);
    executor_.silent_async([this, job = std::move(job)] {
      job();
      pending_.fetch_sub(1, std::memory_order_release);
    });
  }

  std::unique_ptr<TaskSet> make_task_set(std::size_t count, std::function<void(std::size_t)> body) override {
    return std::make_unique<Flow>(executor_, count, std::move(body));
  }

  void drain() override {
    wait_until(executor_, [this] { return pending_.load(std::memory_order_acquire) == 0; });
  }

 private:
  // A worker helps with other tasks while it waits; any other thread sleeps in short steps.
  template <class Done>
  static void wait_until(tf::Executor& executor, Done done) {
    if (executor.this_worker_id() >= 0) {
      executor.corun_until(done);
      return;
    }
    while (!done()) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

  class Flow final : public TaskSet {
   public:
    Flow(tf::Executor& executor, std::size_t count, std::function<void(std::size_t)> body)
        : executor_(executor), body_(std::move(body)) {
      for (std::size_t i = 0; i < count; ++i) flow_.emplace([this, i] { body_(i); });
    }
    ~Flow() override {
      if (!last_.valid()) return;
      wait_until(executor_, [this] { return last_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; });
    }
    // Taskflow runs a flow that is started again while it runs once more after it: the last future is the last to end.
    void start() override { last_ = executor_.run(flow_); }

   private:
    tf::Executor& executor_;
    std::function<void(std::size_t)> body_;
    tf::Taskflow flow_;
    tf::Future<void> last_;
  };

  tf::Executor& executor_;
  std::atomic<std::size_t> pending_{0};
};

// A Scheduler over the application's executor.
inline std::shared_ptr<Scheduler> borrow(tf::Executor& executor) {
  return std::make_shared<TaskflowScheduler>(executor);
}

}  // namespace lockstep
