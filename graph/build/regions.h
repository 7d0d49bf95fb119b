// graph/build/regions.h - a replicated region that changes state rather than computing a replica's share.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/graph/build/builder.h"

namespace lockstep {

// As replicated(), but what goes in is final: the same update for every copy of a variable. Strategies combine nothing that such
// a region writes, gradients included. The node carries the attribute `update`.
LOCKSTEP_API std::vector<std::vector<Value>> replicated_update(
    GraphBuilder& builder, std::int64_t replicas, std::span<const Value> shared,
    std::span<const std::vector<Value>> per_replica, const LoopBodyFn& body,
    SourceSite site = SourceSite::current());

}  // namespace lockstep
