// graph/ir/deferral.cpp - the end of one kernel call that may go on after the kernel has returned.
#include "lockstep/graph/ir/internal/deferral.h"

#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::internal {

void Deferral::begun_twice() { throw FailedPrecondition("the kernel defers one call twice"); }

void WaitingDeferral::begin() {
  if (begun_) begun_twice();
  begun_ = true;
}

void WaitingDeferral::wait() {
  if (!begun_) return;
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return ended_; });
  if (why_ != nullptr) std::rethrow_exception(why_);
}

void WaitingDeferral::end(std::exception_ptr why) noexcept {
  // Signalled under the lock: the waiting thread, which owns this object, cannot go on before it is released.
  const std::lock_guard<std::mutex> lock(mutex_);
  ended_ = true;
  why_ = std::move(why);
  changed_.notify_one();
}

}  // namespace lockstep::internal
