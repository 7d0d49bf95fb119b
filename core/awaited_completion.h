// core/awaited_completion.h - a Completion for a thread that has nothing else to do.
//
//   AwaitedCompletion ended;
//   group.start(call, ended);
//   ended.wait();                // throws what the call failed with
//
// Thread safety: one thread waits, any signals.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>

#include "lockstep/core/base/export.h"
#include "lockstep/core/completion.h"

namespace lockstep {

class LOCKSTEP_API AwaitedCompletion : public Completion {
 public:
  AwaitedCompletion() = default;
  // Once it has been signalled; destroying it before that is an error of the caller's.
  ~AwaitedCompletion() = default;
  void wait();

 private:
  void end(std::exception_ptr why) noexcept override;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::exception_ptr why_;
};

}  // namespace lockstep
