// io/datasets/input_arena.cpp - the one source of datasets that knows oneTBB.
#include "lockstep/io/datasets/internal/input_arena.h"

#include <utility>

#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include "lockstep/core/base/thread_guards.h"

namespace lockstep::internal {

namespace {

// oneTBB starts one thread fewer than there are cores, whatever the arenas ask for, unless it is allowed more. How many work
// is up to the arenas.
constexpr std::size_t kMostThreads = 256;

void allow_threads() {
  static const tbb::global_control allowed(tbb::global_control::max_allowed_parallelism, kMostThreads);
}

}  // namespace

struct InputArena::Arena {
  explicit Arena(unsigned threads) : arena(static_cast<int>(threads), 0) {}
  tbb::task_arena arena;
};

InputArena::InputArena(unsigned threads) : threads_(threads) {
  allow_threads();
  arena_ = std::make_unique<Arena>(threads);
}

InputArena::~InputArena() = default;

void InputArena::enqueue(std::function<void()> task) {
  const SignalsBlocked no_signals;  // for the threads that it may start
  arena_->arena.enqueue(std::move(task));
}

}  // namespace lockstep::internal
