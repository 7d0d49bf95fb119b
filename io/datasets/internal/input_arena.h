// io/datasets/internal/input_arena.h - the threads of an input: an arena of oneTBB's, which enters Lockstep's datasets here.
//
// Thread safety: any thread.
#pragma once

#include <functional>
#include <memory>

namespace lockstep::internal {

class InputArena {
 public:
  explicit InputArena(unsigned threads);
  ~InputArena();
  InputArena(const InputArena&) = delete;
  InputArena& operator=(const InputArena&) = delete;

  unsigned threads() const { return threads_; }
  // Runs the task on one of the threads, some time. It must not throw, nor wait for another task to begin.
  void enqueue(std::function<void()> task);

 private:
  struct Arena;
  const unsigned threads_;
  std::unique_ptr<Arena> arena_;
};

}  // namespace lockstep::internal
