// io/datasets/input_arena.cpp - the one source of datasets that knows oneTBB.
#include "lockstep/io/datasets/internal/input_arena.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include "lockstep/core/base/thread_guards.h"

namespace lockstep::internal {

namespace {

// Threads that all inputs of the process have together, and whatever else it does with oneTBB.
std::size_t most_threads() {
  return std::max<std::size_t>(64, 2 * std::size_t{std::thread::hardware_concurrency()});
}

// What all arenas need, made with the first one and never ended.
struct ThreadsForArenas {
  ThreadsForArenas() { keeper.initialize(); }
  // oneTBB starts one thread fewer than there are cores, whatever the arenas ask for, unless it is allowed more. How many
  // work is up to the arenas.
  tbb::global_control allowed{tbb::global_control::max_allowed_parallelism, most_threads()};
  // It ends its threads with the last arena, and would start them anew for each iterator.
  tbb::task_arena keeper{1, 0};
};

void keep_threads() {
  static const auto* const threads = new ThreadsForArenas;
  static_cast<void>(threads);
}

// Tasks go through a lock of ours, one for all arenas, so that tools that do not see into oneTBB's library know what came
// before what.
class WaitingTasks {
 public:
  void add(std::function<void()> task) {
    const std::lock_guard<std::mutex> lock(mutex());
    tasks_.push_back(std::move(task));
  }
  std::function<void()> take() {
    const std::lock_guard<std::mutex> lock(mutex());
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }

 private:
  static std::mutex& mutex() {
    static std::mutex of_all_arenas;
    return of_all_arenas;
  }
  std::deque<std::function<void()>> tasks_;
};

}  // namespace

struct InputArena::Arena {
  explicit Arena(unsigned threads) : arena(static_cast<int>(threads), 0) {}
  tbb::task_arena arena;
  std::shared_ptr<WaitingTasks> waiting = std::make_shared<WaitingTasks>();
};

InputArena::InputArena(unsigned threads) : threads_(threads) {
  keep_threads();
  arena_ = std::make_unique<Arena>(threads);
}

InputArena::~InputArena() = default;

void InputArena::enqueue(std::function<void()> task) {
  const SignalsBlocked no_signals;  // for the threads that it may start
  arena_->waiting->add(std::move(task));
  arena_->arena.enqueue([waiting = arena_->waiting] { waiting->take()(); });
}

}  // namespace lockstep::internal
