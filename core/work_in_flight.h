// core/work_in_flight.h - work of devices that goes on after the run which began it has returned.
//
// A run on devices returns when everything is on streams. What it left there is one piece of WorkInFlight, and
// each piece of device memory that it reads or writes knows it (MemoryUses, which every tensor in such memory
// has). Whoever uses the memory next goes by that: the host waits, a stream is told to wait.
//
// Thread safety: any thread; record() and close() one at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <shared_mutex>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/base/small_vector.h"
#include "lockstep/core/compute_device.h"

namespace lockstep {

namespace internal {

// Does what must not fail for want of memory, again and again until it does not. False: something else was thrown.
template <class F>
bool insist(F&& action) noexcept {
  for (;;) {
    try {
      action();
      return true;
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } catch (...) {
      return false;
    }
  }
}

}  // namespace internal

// The runs of one run context, one after the other: each begins when the one before it is over.
class LOCKSTEP_API WorkInFlight {
 public:
  struct End {
    Stream* stream;
    std::unique_ptr<Event> event;
  };
  // One for each stream that the work uses.
  explicit WorkInFlight(std::vector<End> ends);
  // Runs whose devices may refuse data (Stream::latch). `look` is called once for each run, when it is over: what
  // it was refused for, or null. Works of one group know each other's refusals on the device; it is not null.
  using Look = std::function<std::exception_ptr()>;
  void judge_by(Look look, const void* group);
  const void* group() const { return group_; }

  // A run has put its work on the streams: sets their events, and gives the run's number. The run before must
  // be over. Throws if a device is lost, after the events of the others were set.
  std::uint64_t record();
  // The same for a run that has failed, and that must be known to be over before anything of it is given back.
  void record_surely() noexcept;
  // Nothing is in flight, and nothing will be: the streams may go.
  void close() noexcept;

  // Sleeps until the run is over; false: the deadline passed first. Throws what went wrong in it, when it is over
  // on all devices.
  bool wait(std::uint64_t number, std::optional<SteadyTime> deadline = std::nullopt) const;
  bool is_over(std::uint64_t number) const;
  // Why the run did not happen, once it is over; null: it did. `seen`: someone is told about it.
  std::exception_ptr refusal(std::uint64_t number, bool seen) const;
  bool is_seen() const;  // was anyone, about the last run?
  // The refusal of the last run, for the one who deals with it: null from the second time on.
  std::exception_ptr take_refusal();
  std::uint64_t last() const;  // the number of the last run; 0: none yet
  // What is put on the stream from now on starts after the run.
  void precede(Stream& stream, std::uint64_t number) const;
  std::vector<End>& ends() { return ends_; }

 private:
  mutable std::shared_mutex mutex_;  // exclusive: the events are set
  std::vector<End> ends_;
  std::uint64_t last_ = 0;
  mutable std::atomic<std::uint64_t> over_{0};  // a run that is known to be: devices need not be asked again
  Look look_;
  const void* group_ = nullptr;
  mutable std::mutex judging_;
  mutable std::uint64_t judged_ = 0;  // the last run that was looked at
  mutable bool seen_ = false;
  std::uint64_t dealt_with_ = 0;  // the last run of which the refusal was taken
  mutable std::vector<std::pair<std::uint64_t, std::exception_ptr>> refused_;
};

// The runs in flight that use one piece of memory.
class LOCKSTEP_API MemoryUses {
 public:
  // A run that writes comes after all that were there. `judged`: what it wrote is nothing if it was refused.
  void add(const std::shared_ptr<WorkInFlight>& work, std::uint64_t number, bool writes, bool judged = false);
  // Sleeps until nothing writes it any more, or, for someone who writes, until nothing uses it. Throws what
  // went wrong, and why what was written is nothing.
  void wait(bool to_write) const;
  // The same, but only for runs of other groups that may be refused: then a stream must not simply follow them.
  void wait_for_others(const void* group, bool to_write) const;
  bool is_free(bool to_write) const;
  // The same for what is put on a stream from now on.
  void precede(Stream& stream, bool to_write) const;

 private:
  struct Use {
    std::shared_ptr<WorkInFlight> work;
    std::uint64_t number = 0;
    bool writes = false;
    bool judged = false;
    void wait() const;
  };
  using Uses = SmallVector<Use, 2>;
  Uses in_the_way(bool to_write) const;

  mutable std::mutex mutex_;
  Uses uses_;
};

}  // namespace lockstep
