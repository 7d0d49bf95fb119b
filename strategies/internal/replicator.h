// strategies/internal/replicator.h - what the pass replicate does to replicated regions.
#pragma once

#include "lockstep/graph/graph.h"

namespace lockstep::internal {

// The graph with the nodes of every replicated region once per replica; see strategies/passes/replicate.h. All variables that
// replicas write have their copies declared. Throws PassError.
Graph flat_replicas(const Graph& graph);

}  // namespace lockstep::internal
