// graph/run/internal/start_order.h - an order of phases for one lane, in which what goes on by itself is started as early as can be.
//
//   layer 1, layer 2, pack, start, layer 3, layer 4, pack, start, ...
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/run/internal/clusters.h"

namespace lockstep::internal {

// The phases before the commit stage, in an order that keeps their predecessors: of those that could be next, the one that leads to a
// start soonest; awaits last. n log n.
LOCKSTEP_API std::vector<std::uint32_t> start_order(std::span<const Phase> phases);

}  // namespace lockstep::internal
