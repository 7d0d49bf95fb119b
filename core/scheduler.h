// core/scheduler.h - the interface to the threads that run a Program.
//
// A Scheduler offers worker threads; everything else (what runs when) is up to the Program. Two
// implementations, one source: make_scheduler(n) owns a tf::Executor inside the library;
// "lockstep/core/taskflow.h", compiled in the application, borrows the application's own. Taskflow's types
// stay out of this header, since Taskflow is header-only and the application's version may differ from the
// library's.
//
// The destructor of a Scheduler waits for the jobs that were submitted to it.
//
// After fork() the child has no workers. A scheduler that was made before then refuses jobs
// (FailedPrecondition), forgets starts, and ends without waiting; an executor that it owns stays in memory.
//
// Thread safety: all methods may be called from any thread, workers included.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "lockstep/core/base/export.h"

namespace lockstep {

class LOCKSTEP_API Scheduler {
 public:
  // Independent tasks, made once and started many times.
  class LOCKSTEP_API TaskSet {
   public:
    // Withdraws the starts that no worker has taken up, and waits for the tasks that have begun, but never
    // for a worker to become free. Not to be called from inside one of these tasks; the scheduler must still
    // exist.
    virtual ~TaskSet();
    // The task will run once more, some time, on some worker. Starts may overlap; each is honoured while the
    // set lives. Throws std::bad_alloc, and then nothing was started.
    virtual void start(std::size_t task) = 0;
  };

  Scheduler();
  virtual ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  virtual std::size_t num_workers() const = 0;
  // The number of the worker that calls, in [0, num_workers()); -1 on any other thread.
  virtual int this_worker() const = 0;
  // Runs the job once on some worker. The job must not throw. Throws std::bad_alloc, and then it does not
  // run.
  virtual void submit(std::function<void()> job) = 0;
  // Task i is a call of `body(i)`, which must not throw.
  virtual std::unique_ptr<TaskSet> make_task_set(std::function<void(std::size_t)> body) = 0;
  // Starts of task sets that no worker has taken up: a task that holds a worker idle should poll this.
  virtual std::size_t waiting_starts() const = 0;
  // Returns when everything submitted or started has ended. Called by a worker, it helps with the work
  // meanwhile and does not wait for tasks that are themselves inside drain(), such as its own.
  virtual void drain() = 0;
};

// A Scheduler over its own tf::Executor with `threads` workers (0: one per hardware thread).
LOCKSTEP_API std::shared_ptr<Scheduler> make_scheduler(std::size_t threads = 0);

}  // namespace lockstep
