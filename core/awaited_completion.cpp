// core/awaited_completion.cpp - a Completion for a thread that has nothing else to do.
#include "lockstep/core/awaited_completion.h"

#include <utility>

namespace lockstep {

void AwaitedCompletion::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return ended_; });
  if (why_ != nullptr) std::rethrow_exception(why_);
}

void AwaitedCompletion::end(std::exception_ptr why) noexcept {
  // Signalled under the lock: the waiting thread, which owns this object, cannot go on before it is released.
  const std::lock_guard<std::mutex> lock(mutex_);
  ended_ = true;
  why_ = std::move(why);
  changed_.notify_one();
}

}  // namespace lockstep
