// strategies/passes/enter_replicas.h - the plain step of one replica becomes a replicated region.
//
//   x --> square --> y          x, x/replica_1 --> replicated[replicas=2] { x --> square --> y } --> y of 0, y of 1
//
// For steps that come as a graph (from a file, from a builder) instead of being traced by a strategy, whose
// passes expect the form on the right. Each placeholder becomes one per replica: x, x/replica_1, ...; those
// listed in `shared` stay single and come first. Each result becomes one per replica; they are listed result
// by result. Variables stay declared outside.
//
// A graph that already has replicated regions for this number of replicas is left as it is. Refused: a graph
// with regions for another number, and one whose nodes belong to replicas (replicate has already run).
// Linear. Thread safety: as any Pass.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

struct EnterReplicasOptions {
  std::int64_t replicas = 1;             // of this worker, at least 1
  std::vector<std::string> shared = {};  // placeholders that all replicas see
  std::int64_t world = 0;                // replicas of all workers; 0: these are all
};

LOCKSTEP_API std::unique_ptr<Pass> make_enter_replicas(EnterReplicasOptions options);

}  // namespace lockstep
