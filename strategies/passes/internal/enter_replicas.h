// strategies/passes/internal/enter_replicas.h - a plain graph as the region of one replicated node.
#pragma once

#include <string_view>

#include "lockstep/graph/ir/graph.h"
#include "lockstep/strategies/passes/enter_replicas.h"

namespace lockstep::internal {

// Throws PassError, in the name of `pass`, for a shared placeholder that does not exist.
Graph enter_replicas(const Graph& graph, const EnterReplicasOptions& options, std::string_view pass);

}  // namespace lockstep::internal
