// core/taskflow.h - bring your own tf::Executor. Header-only: compiled in the application, with its Taskflow.
//
//   tf::Executor executor(8);                                    // the application's
//   Runtime runtime({.scheduler = borrow(executor)});            // Lockstep runs its programs there
//
// The executor must outlive the scheduler and every Program compiled for it. This is the only public header
// that names Taskflow's types; the umbrella header does not include it. It builds with Taskflow 3.9 and 4.x.
// Thread safety: as Scheduler: all methods may be called from any thread, workers included.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <taskflow/taskflow.hpp>

#include "lockstep/core/scheduler.h"

namespace lockstep {

class TaskflowScheduler final : public Scheduler {
 public:
  explicit TaskflowScheduler(tf::Executor& executor) : state_(std::make_shared<State>(executor)) {}
  ~TaskflowScheduler() override { TaskflowScheduler::drain(); }

  std::size_t num_workers() const override { return state_->executor.num_workers(); }
  std::size_t waiting_starts() const override { return state_->waiting.load(std::memory_order_relaxed); }
  int this_worker() const override { return state_->executor.this_worker_id(); }

  // The job may hold the last handle on this scheduler: its task keeps what it needs to end.
  void submit(std::function<void()> job) override {
    state_->tasks.fetch_add(kOneTask, std::memory_order_relaxed);
    state_->executor.silent_async([state = state_, job = std::move(job)]() mutable {
      state->run_task([&job] {
        job();
        job = nullptr;  // what the job holds is gone before drain() returns
      });
    });
  }

  // Task sets must be gone before their scheduler.
  std::unique_ptr<TaskSet> make_task_set(std::size_t count, std::function<void(std::size_t)> body) override {
    return std::make_unique<Flow>(*state_, count, std::move(body));
  }

  // The tasks that a worker is in the middle of cannot end while it waits here, nor can those of other
  // workers that wait here: a worker waits for all tasks but these, any other thread for all.
  void drain() override {
    State& state = *state_;
    const int worker = state.executor.this_worker_id();
    if (worker < 0) {
      state.wait_until([&state] { return state.tasks.load(std::memory_order_acquire) == 0; });
      return;
    }
    Worker& self = state.workers[static_cast<std::size_t>(worker)];
    const std::uint64_t mine = self.running - self.draining;
    self.draining = self.running;
    state.tasks.fetch_add(mine * kOneDraining, std::memory_order_relaxed);
    state.wait_until([&state] {
      const std::uint64_t tasks = state.tasks.load(std::memory_order_acquire);
      return tasks / kOneTask == tasks % kOneTask;
    });
    state.tasks.fetch_sub(mine * kOneDraining, std::memory_order_relaxed);
    self.draining -= mine;
  }

 private:
  // Both counts in one word, so that they are read at one moment: tasks begun or to come in the upper half,
  // those of them that wait in drain() in the lower.
  static constexpr std::uint64_t kOneTask = std::uint64_t{1} << 32U;
  static constexpr std::uint64_t kOneDraining = 1;

  // Read and written by one worker only; workers nest tasks when they help.
  struct alignas(64) Worker {
    std::uint64_t running = 0;   // tasks that have begun and not ended on this thread
    std::uint64_t draining = 0;  // how many of them wait in drain()
  };

  struct State {
    explicit State(tf::Executor& e) : executor(e), workers(e.num_workers()) {}

    template <class Task>
    void run_task(const Task& task) {
      Worker& self = workers[static_cast<std::size_t>(executor.this_worker_id())];
      ++self.running;
      task();
      --self.running;
      // The last touch of a task set's task: a drain in a destructor may be waiting.
      tasks.fetch_sub(kOneTask, std::memory_order_release);
    }

    // A worker helps with other tasks while it waits; any other thread sleeps in short steps.
    template <class Done>
    void wait_until(Done done) {
      if (executor.this_worker_id() >= 0) {
        executor.corun_until(done);
        return;
      }
      while (!done()) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }

    tf::Executor& executor;
    std::vector<Worker> workers;
    std::atomic<std::uint64_t> tasks{0};
    std::atomic<std::size_t> waiting{0};
  };

  class Flow final : public TaskSet {
   public:
    Flow(State& state, std::size_t count, std::function<void(std::size_t)> body)
        : state_(state), count_(count), body_(std::move(body)) {
      for (std::size_t i = 0; i < count; ++i) {
        flow_.emplace([this, i] {
          state_.waiting.fetch_sub(1, std::memory_order_relaxed);
          state_.run_task([this, i] { body_(i); });
        });
      }
    }
    // The future, and not the count of tasks, says when Taskflow itself is done with the flow.
    ~Flow() override {
      if (!last_.valid()) return;
      state_.wait_until(
          [this] { return last_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; });
    }
    // Taskflow runs a flow that is started again while it runs once more after it: the last future is the
    // last to end.
    void start() override {
      state_.tasks.fetch_add(count_ * kOneTask, std::memory_order_relaxed);
      state_.waiting.fetch_add(count_, std::memory_order_relaxed);
      const std::lock_guard<std::mutex> lock(mutex_);
      try {
        last_ = state_.executor.run(flow_);
      } catch (...) {  // there was no memory for it: as if it had never been asked for
        state_.waiting.fetch_sub(count_, std::memory_order_relaxed);
        state_.tasks.fetch_sub(count_ * kOneTask, std::memory_order_release);
        throw;
      }
    }

   private:
    State& state_;
    std::size_t count_;
    std::function<void(std::size_t)> body_;
    tf::Taskflow flow_;
    std::mutex mutex_;  // starts may come from several threads
    tf::Future<void> last_;
  };

  std::shared_ptr<State> state_;
};

// A Scheduler over the application's executor.
inline std::shared_ptr<Scheduler> borrow(tf::Executor& executor) {
  return std::make_shared<TaskflowScheduler>(executor);
}

}  // namespace lockstep
