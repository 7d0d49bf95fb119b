// strategies/passes/internal/replicator.h - what the pass replicate does to replicated regions.
#pragma once

#include "lockstep/graph/ir/graph.h"

namespace lockstep::internal {

// Makes the graph one with the nodes of every replicated region once per replica; see strategies/passes/replicate.h. All variables
// that replicas write have their copies declared. Throws PassError; the graph is then of no use.
void flatten_replicas(Graph& graph);

}  // namespace lockstep::internal
