// graph/ir/internal/deferral.h - the end of one kernel call that may go on after the kernel has returned.
#pragma once

#include <exception>

#include "lockstep/core/awaited_completion.h"
#include "lockstep/core/completion.h"

namespace lockstep::internal {

// What KernelContext::defer() gives.
class LOCKSTEP_API Deferral : public Completion {
 public:
  // The kernel defers the call. Throws FailedPrecondition if it did before.
  virtual void begin() = 0;

 protected:
  ~Deferral() = default;
  [[noreturn]] static void begun_twice();
};

// For one call on the calling thread, which waits for its end.
class WaitingDeferral final : public Deferral {
 public:
  void begin() override;
  // Call it after the kernel has returned: waits if the call was deferred. Throws what the call failed with.
  void wait();

 private:
  void end(std::exception_ptr why) noexcept override;

  bool begun_ = false;
  AwaitedCompletion ended_;
};

}  // namespace lockstep::internal
