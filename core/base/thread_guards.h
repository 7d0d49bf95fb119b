// core/base/thread_guards.h - settings of the thread that makes them, for as long as they live.
//
// Thread safety: of the thread alone.
#pragma once

#include <cfenv>
#include <csignal>

#include "lockstep/core/base/export.h"

namespace lockstep::internal {

// Threads that this thread starts meanwhile get no signals.
class LOCKSTEP_API SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Writing to a connection that has ended raises no SIGPIPE here.
class LOCKSTEP_API SigPipeBlocked {
 public:
  SigPipeBlocked();
  ~SigPipeBlocked();
  SigPipeBlocked(const SigPipeBlocked&) = delete;
  SigPipeBlocked& operator=(const SigPipeBlocked&) = delete;

 private:
  sigset_t pipe_, before_;
};

// Floating-point numbers are rounded to nearest, and small ones are not flushed to zero, whatever the application has set.
class DefaultFloats {
 public:
  DefaultFloats() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloats() { std::fesetenv(&before_); }
  DefaultFloats(const DefaultFloats&) = delete;
  DefaultFloats& operator=(const DefaultFloats&) = delete;

 private:
  std::fenv_t before_;
};

}  // namespace lockstep::internal
