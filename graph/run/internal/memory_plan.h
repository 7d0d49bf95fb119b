// graph/run/internal/memory_plan.h - where intermediate values lie.
//
// Every value that needs memory of its own is an Interval: it is written by one phase and read by others. Two
// of them may share memory only if every phase that uses the first is done before the writer of the second
// starts, in every order that the clusters and the streams of devices allow, not only in the order that a
// single thread would take.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/core/base/small_vector.h"
#include "lockstep/graph/run/internal/clusters.h"
#include "lockstep/graph/run/internal/device_order.h"

namespace lockstep::internal {

struct Interval {
  std::int64_t bytes = 0;
  std::uint32_t writer = 0;               // phase
  SmallVector<std::uint32_t, 2> readers;  // phases; phases of the writer's own node may be among them
  std::uint32_t arena = 0;                // which device's memory
  // The interval that this one may take over in place, if that one ends here; -1: none. `writer` is among its
  // readers and waits for its writer.
  std::int64_t in_place_of = -1;
  std::int64_t offset = -1;  // out
};

struct MemoryPlan {
  std::vector<std::int64_t> arena_bytes;
  std::int64_t planned_bytes = 0;   // over all arenas
  std::int64_t live_set_bytes = 0;  // the most that is alive at one call, in the order of the calls
};

// Sets the offsets. `arenas` is how many devices there are, `phases` how many phases, those of devices with
// streams included: the order of their calls is that of `devices`.
LOCKSTEP_API MemoryPlan plan_memory(std::span<Interval> intervals, std::size_t phases,
                                    const Clusters& clusters, std::size_t arenas,
                                    const DeviceOrder& devices = {});

}  // namespace lockstep::internal
