// graph/run/internal/segments.h - which calls of devices are put on streams together, and what orders them.
//
// A phase of a device with streams does nothing but put calls there. All of them between the same two phases
// of the host form one segment: its number is how often a path to it comes back to the host. A segment is one
// call of the host. Each value of it that the host needs is awaited by itself, as the end of a deferred call
// is.
//
//   host     read ----------- segment 0 ----------------- await --- print
//   copy-in                   copy(x) |e0
//   compute                           |wait e0  matmul  relu |e1
//   copy-out                                                 |wait e1 copy(y) |e2    (e2 is what is awaited)
//
// Calls on one stream run in the order in which they are put there. Between streams there is an event for
// each edge that no other order implies. The commit stage has segments of its own.
//
// Thread safety: one thread, while a plan is made.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/graph/run/internal/clusters.h"
#include "lockstep/graph/run/internal/device_order.h"
#include "lockstep/graph/run/internal/plan.h"

namespace lockstep::internal {

// What the clusterer sees of a plan with streams.
struct HostPhases {
  std::vector<Phase> phases;
  std::vector<std::uint32_t> origin;  // the phase of the plan
};

// Puts the segments, device calls and events into the plan, and its phases that put segments and await
// events. `phases`, with what they come after, are those of the plan so far.
HostPhases make_segments(std::span<const Phase> phases, Plan& plan, DeviceOrder& order);

}  // namespace lockstep::internal
