// graph/run/internal/drain.h - what happens to a run that ended for its caller while deferred calls of it go on.
//
// A run that fails, is cancelled or passes its deadline does not wait for calls that are in flight. Its
// memory, its locks and its plan must stay until the last of them has come to its end; then a thread of the
// drain gives them back. That is not left to the thread which signals the end: it may be one that cannot wait
// for others, such as a worker of the very executor that goes with the program.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "lockstep/core/base/export.h"

namespace lockstep::internal {

// Counts the deferred calls of one run that are in flight, and the run itself.
class LOCKSTEP_API Flights {
 public:
  // Before a run. `outer`: the flights of the run that this one is a part of, or null.
  void reset(Flights* outer) {
    count_.store(1, std::memory_order_relaxed);
    outer_ = outer;
  }
  void add() noexcept { count_.fetch_add(1, std::memory_order_relaxed); }
  // The last use that a call makes of its run.
  void drop() noexcept;
  // Is anything in flight besides the run itself?
  bool any() const noexcept { return count_.load(std::memory_order_acquire) > 1; }
  bool over() const noexcept { return count_.load(std::memory_order_acquire) == 0; }
  // The run ends although calls are in flight: from now on they count for the run around it.
  void pass_on() noexcept {
    outer_->add();
    drop();
  }

 private:
  std::atomic<std::uint32_t> count_{1};
  Flights* outer_ = nullptr;
};

// Calls `end` on a thread of its own once the flights are over; the run's own share is dropped by this. False
// if there is no memory or no thread for that; then nothing was dropped.
bool drain(Flights& flights, std::function<void()> end) noexcept;

}  // namespace lockstep::internal
