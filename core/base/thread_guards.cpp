// core/base/thread_guards.cpp - settings of the thread that makes them, for as long as they live.
#include "lockstep/core/base/thread_guards.h"

#include <ctime>

namespace lockstep::internal {

SignalsBlocked::SignalsBlocked() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before_);
}

SignalsBlocked::~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

SigPipeBlocked::SigPipeBlocked() {
  sigemptyset(&pipe_);
  sigaddset(&pipe_, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
}

SigPipeBlocked::~SigPipeBlocked() {
  if (sigismember(&before_, SIGPIPE) != 0) return;
  const timespec now{};
  while (sigtimedwait(&pipe_, nullptr, &now) == SIGPIPE) {
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace lockstep::internal
