// core/device.h - names of places to compute.
//
// Every TensorFlow spelling parses to one canonical form:
//   "cpu:0"  "/cpu:0"  "CPU:0"  "/device:CPU:0"  "cpu" (index 0)          -> "cpu:0"
//   "/gpu:1"  "/device:GPU:1"                                             -> "gpu:1"
//   "/job:worker/replica:0/task:1/device:GPU:0"  "/job:worker/task:1/gpu:0" -> "/job:worker/task:1/gpu:0"
// "replica" must be 0 if it is given (it has no meaning any more) and is dropped. A task needs a job.
// Anything else is refused (InvalidArgument) with the part that was not understood and what would have been
// accepted.
//
// Logical devices: "cpu:0" and "cpu:1" are two devices that share one physical CPU; a Runtime says how many
// there are. Thread safety: plain values; the functions may be called from any thread.
#pragma once

#include <compare>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

#include "lockstep/core/base/export.h"

namespace lockstep {

enum class DeviceKind : std::uint8_t { kCpu, kGpu };
LOCKSTEP_API std::string_view to_string(DeviceKind kind);  // "cpu", "gpu"

struct LOCKSTEP_API Device {
  std::string job;  // empty: this process
  int task = -1;    // -1: none
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;

  // Throws InvalidArgument; see above.
  static Device parse(std::string_view text);
  // The canonical form; parse(to_string()) is the identity.
  std::string to_string() const;

  friend auto operator<=>(const Device&, const Device&) = default;
};

LOCKSTEP_API std::ostream& operator<<(std::ostream& out, const Device& device);

}  // namespace lockstep
