// core/process_mark.cpp - tells whether an object is a copy that fork() made.
#include "lockstep/core/process_mark.h"

#include <atomic>

#include <pthread.h>

namespace lockstep {
namespace {

// Forks between the process that made the first mark and this one. A process number would do as well, but
// asking for that is a system call.
std::atomic<std::uint32_t> forks_so_far{0};

}  // namespace

ProcessMark::ProcessMark() {
  static const int watching =
      pthread_atfork(nullptr, nullptr, [] { forks_so_far.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(watching);  // if there is no memory for the handler, forks go unnoticed
  forks_ = forks_so_far.load(std::memory_order_relaxed);
}

bool ProcessMark::is_of_this_process() const {
  return forks_ == forks_so_far.load(std::memory_order_relaxed);
}

}  // namespace lockstep
