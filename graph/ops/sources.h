// graph/ops/sources.h - values made from nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/graph/builder.h"
#include "lockstep/graph/value.h"

namespace lockstep {

// The number of the replica that runs it, i32 scalar: 0 where nothing is replicated.
LOCKSTEP_API Value replica_id(GraphBuilder& builder, SourceSite site = SourceSite::current());

}  // namespace lockstep
