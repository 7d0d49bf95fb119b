// testing/null_device.h - a device that does nothing, at once: what remains is what the host does for it.
//
//   const Runtime runtime({.backends = {std::make_shared<testing::NullBackend>()}});   // gpu:0
//
// For measuring and counting. Its kernel set "null" has all ops that the CPU has; nothing is computed, copied or refused, so that
// results are whatever was there. NullBackend::calls() says what a run asks of a device. Thread safety: as ComputeDevice.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/compute_device.h"

namespace lockstep::testing {

// What was asked of a device: put on its streams by the host, or asked of its events.
struct NullCalls {
  std::uint64_t kernels = 0, copies = 0, fills = 0, latches = 0, replays = 0;  // not those of a recording
  std::uint64_t records = 0, waits = 0, queries = 0;                           // of events
  friend bool operator==(const NullCalls&, const NullCalls&) = default;
  friend NullCalls operator-(const NullCalls& a, const NullCalls& b) {
    return {a.kernels - b.kernels, a.copies - b.copies,   a.fills - b.fills, a.latches - b.latches,
            a.replays - b.replays, a.records - b.records, a.waits - b.waits, a.queries - b.queries};
  }
};
LOCKSTEP_API std::ostream& operator<<(std::ostream& out, const NullCalls& calls);

class LOCKSTEP_API NullBackend final : public DeviceBackend {
 public:
  NullBackend();
  ~NullBackend() override;
  std::vector<std::shared_ptr<ComputeDevice>> open() override;  // gpu:0
  // So far, by all who have this backend. What is recorded counts when it is replayed, as one.
  NullCalls calls() const;

 private:
  class Counts;
  class Event;
  class Recording;
  class Stream;
  class Device;
  std::shared_ptr<Counts> counts_;
};

}  // namespace lockstep::testing
