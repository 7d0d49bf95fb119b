// core/taskflow.h - bring your own tf::Executor. Header-only: compiled in the application, with its Taskflow.
//
//   tf::Executor executor(8);                                    // the application's
//   Runtime runtime({.scheduler = borrow(executor)});            // Lockstep runs its programs there
//
// The executor must outlive the scheduler and every Program compiled for it. It may be busy with the
// application's own tasks for as long as it likes: runs, new feed shapes and the ends of programs do not wait
// for its workers. Starts that a program withdrew stay in the executor's queue as tasks that do nothing.
//
// This is the only public header that names Taskflow's types; the umbrella header does not include it. It
// builds with Taskflow 3.9 and 4.x.
//
// Thread safety: as Scheduler: all methods may be called from any thread, workers included.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <taskflow/taskflow.hpp>

#include "lockstep/core/error.h"
#include "lockstep/core/process_mark.h"
#include "lockstep/core/scheduler.h"

namespace lockstep {

namespace internal {

void uncount_task(tf::Executor& executor);
// Access is not checked for a name in an explicit instantiation: that makes Taskflow's own count reachable.
template <void (tf::Executor::*kUncount)()>
struct TaskCount {
  friend void uncount_task(tf::Executor& executor) { (executor.*kUncount)(); }
};
template struct TaskCount<&tf::Executor::_decrement_topology>;

// Taskflow counts a task before it makes it, and keeps the count if there is no memory to make it: the
// destructor of the executor would wait for ever for a task that does not exist.
template <class Task>
void start_task(tf::Executor& executor, Task task) {
  static_assert(sizeof(Task) <= 2 * sizeof(void*) && std::is_trivially_copyable_v<Task>,
                "a std::function has to hold the task without memory of its own");
  try {
    executor.silent_async(task);
  } catch (...) {
    uncount_task(executor);
    throw;
  }
}

}  // namespace internal

class TaskflowScheduler final : public Scheduler {
 public:
  explicit TaskflowScheduler(tf::Executor& executor) : state_(std::make_shared<State>(executor)) {}
  ~TaskflowScheduler() override { TaskflowScheduler::drain(); }

  std::size_t num_workers() const override { return state_->executor.num_workers(); }
  std::size_t waiting_starts() const override { return state_->waiting.load(std::memory_order_relaxed); }
  int this_worker() const override { return state_->executor.this_worker_id(); }

  // The job may hold the last handle to this scheduler: its task keeps alive the state that it needs to end.
  void submit(std::function<void()> job) override {
    if (!state_->process.is_of_this_process()) {
      throw FailedPrecondition(
          "the threads of this scheduler are in the process that called fork(), and this is its child: make "
          "a "
          "Runtime here, or use run(), which works on the calling thread");
    }
    auto made = std::make_unique<Job>(Job{state_, std::move(job)});
    state_->tasks.fetch_add(kOneTask, std::memory_order_relaxed);
    try {
      internal::start_task(state_->executor, [task = made.get()] {
        const std::unique_ptr<Job> mine(task);
        mine->state->run_task([&mine] {
          mine->job();
          mine->job = nullptr;  // what the job holds is gone before drain() returns
        });
      });
    } catch (...) {
      state_->tasks.fetch_sub(kOneTask, std::memory_order_release);
      throw;
    }
    static_cast<void>(made.release());
  }

  // Task sets must be gone before their scheduler.
  std::unique_ptr<TaskSet> make_task_set(std::function<void(std::size_t)> body) override {
    return std::make_unique<Tasks>(std::make_unique<Starts>(*state_, std::move(body)));
  }

  // The tasks that a worker is in the middle of cannot end while it waits here, nor can those of other
  // workers that wait here: a worker waits for all tasks but these, any other thread for all.
  void drain() override {
    State& state = *state_;
    if (!state.process.is_of_this_process()) return;
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
  // Both counts in one word, so that they are read at one moment: in the upper half the tasks begun or to
  // come, in the lower half the ones among them that wait in drain().
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
      // The last access to the state: a destructor may be waiting in drain().
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

    const ProcessMark process;
    tf::Executor& executor;
    std::vector<Worker> workers;
    std::atomic<std::uint64_t> tasks{0};
    std::atomic<std::size_t> waiting{0};
  };

  struct Job {
    std::shared_ptr<State> state;
    std::function<void()> job;
  };

  // The starts of one task set. Taskflow cannot take a task back, so this object lives until a worker has
  // taken the last one; after close() such a task does nothing.
  class Starts {
   public:
    Starts(State& state, std::function<void(std::size_t)> body) : state_(state), body_(std::move(body)) {}

    void start(std::size_t task) {
      if (!state_.process.is_of_this_process()) return;
      users_.fetch_add(1, std::memory_order_relaxed);
      state_.tasks.fetch_add(kOneTask, std::memory_order_relaxed);
      state_.waiting.fetch_add(1, std::memory_order_relaxed);
      counts_.fetch_add(kOneWaiting, std::memory_order_relaxed);
      try {
        internal::start_task(state_.executor, [this, task] { run(task); });
      } catch (...) {
        counts_.fetch_sub(kOneWaiting, std::memory_order_relaxed);
        forget(1);
        users_.fetch_sub(1, std::memory_order_relaxed);
        throw;
      }
    }

    // The state may be destroyed after this.
    void close() {
      const std::uint64_t counts = counts_.fetch_or(kClosed, std::memory_order_acq_rel);
      forget(counts / kOneWaiting);
      if (state_.process.is_of_this_process()) {
        for (int i = 0; counts_.load(std::memory_order_acquire) % kOneWaiting != 0; ++i) {
          if (i < 100) {
            std::this_thread::yield();
          } else {
            std::this_thread::sleep_for(std::chrono::microseconds(50));
          }
        }
        body_ = nullptr;
      }
      leave();
    }

   private:
    static constexpr std::uint64_t kOneRunning = 1;
    static constexpr std::uint64_t kOneWaiting = std::uint64_t{1} << 32U;
    static constexpr std::uint64_t kClosed = std::uint64_t{1} << 63U;

    void run(std::size_t task) {
      if (begin()) {
        state_.waiting.fetch_sub(1, std::memory_order_relaxed);
        state_.run_task([this, task] { body_(task); });
        counts_.fetch_sub(kOneRunning, std::memory_order_release);
      }
      leave();
    }

    bool begin() {
      std::uint64_t counts = counts_.load(std::memory_order_relaxed);
      while (counts < kClosed) {
        if (counts_.compare_exchange_weak(counts, counts - kOneWaiting + kOneRunning,
                                          std::memory_order_acquire, std::memory_order_relaxed)) {
          return true;
        }
      }
      return false;
    }

    void forget(std::uint64_t starts) {
      state_.waiting.fetch_sub(starts, std::memory_order_relaxed);
      state_.tasks.fetch_sub(starts * kOneTask, std::memory_order_release);
    }

    void leave() {
      if (users_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
    }

    State& state_;  // valid until close()
    std::function<void(std::size_t)> body_;
    std::atomic<std::uint64_t> counts_{0};  // closed; starts that wait for a worker; tasks that run
    std::atomic<std::uint64_t> users_{1};   // the set, and the tasks that Taskflow has
  };

  class Tasks final : public TaskSet {
   public:
    explicit Tasks(std::unique_ptr<Starts> starts) : starts_(starts.release()) {}
    ~Tasks() override { starts_->close(); }
    void start(std::size_t task) override { starts_->start(task); }

   private:
    Starts* starts_;
  };

  std::shared_ptr<State> state_;
};

// A Scheduler over the application's executor.
inline std::shared_ptr<Scheduler> borrow(tf::Executor& executor) {
  return std::make_shared<TaskflowScheduler>(executor);
}

}  // namespace lockstep
