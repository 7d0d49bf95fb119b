// core/completion.h - the end of work that goes on after the call that began it has returned.
//
// Whoever is given a Completion signals it exactly once, with done() or failed(), from any thread, also before
// the call that began the work has returned. What the work wrote before the signal is seen by everything that
// waits for it. The signal may be the last use of the work's memory: afterwards neither that memory nor the
// Completion may be touched.
//
// A Completion is made by whoever waits. Signalling one never blocks for long and never throws.
#pragma once

#include <exception>
#include <utility>

#include "lockstep/core/base/export.h"

namespace lockstep {

class LOCKSTEP_API Completion {
 public:
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  void done() noexcept { end(nullptr); }
  // The work failed for this reason; must not be null.
  void failed(std::exception_ptr why) noexcept { end(std::move(why)); }

 protected:
  Completion() = default;
  ~Completion() = default;

 private:
  // Null: it succeeded.
  virtual void end(std::exception_ptr why) noexcept = 0;
};

}  // namespace lockstep
