// core/work_in_flight.h - work of devices that goes on after the run which began it has returned.
//
// A run on devices returns when everything is on streams. What it left there is one piece of WorkInFlight, and
// each piece of device memory that it reads or writes knows it (MemoryUses, which every tensor in such memory
// has). Whoever uses the memory next goes by that: the host waits, a stream is told to wait.
//
// Thread safety: any thread; record() and close() one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/base/small_vector.h"
#include "lockstep/core/compute_device.h"

namespace lockstep {

// The runs of one run context, one after the other: each begins when the one before it is over.
class LOCKSTEP_API WorkInFlight {
 public:
  struct End {
    Stream* stream;
    std::unique_ptr<Event> event;
  };
  // One for each stream that the work uses.
  explicit WorkInFlight(std::vector<End> ends);

  // A run has put its work on the streams: sets their events, and gives the run's number. The run before must
  // be over. Throws if a device is lost, after the events of the others were set.
  std::uint64_t record();
  // Nothing is in flight, and nothing will be: the streams may go.
  void close() noexcept;

  // Sleeps until the run is over; false: the deadline passed first. Throws what went wrong in it, when it is over
  // on all devices.
  bool wait(std::uint64_t number, std::optional<SteadyTime> deadline = std::nullopt) const;
  bool is_over(std::uint64_t number) const;
  std::uint64_t last() const;  // the number of the last run; 0: none yet
  // What is put on the stream from now on starts after the run.
  void precede(Stream& stream, std::uint64_t number) const;
  std::vector<End>& ends() { return ends_; }

 private:
  mutable std::shared_mutex mutex_;  // exclusive: the events are set
  std::vector<End> ends_;
  std::uint64_t last_ = 0;
};

// The runs in flight that use one piece of memory.
class LOCKSTEP_API MemoryUses {
 public:
  // A run that writes comes after all that were there.
  void add(const std::shared_ptr<WorkInFlight>& work, std::uint64_t number, bool writes);
  // Sleeps until nothing writes it any more, or, for someone who writes, until nothing uses it. Throws what
  // went wrong.
  void wait(bool to_write) const;
  bool is_free(bool to_write) const;
  // The same for what is put on a stream from now on.
  void precede(Stream& stream, bool to_write) const;

 private:
  struct Use {
    std::shared_ptr<WorkInFlight> work;
    std::uint64_t number = 0;
    bool writes = false;
  };
  using Uses = SmallVector<Use, 2>;
  Uses in_the_way(bool to_write) const;

  mutable std::mutex mutex_;
  Uses uses_;
};

}  // namespace lockstep
