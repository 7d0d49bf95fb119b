// strategies/passes/internal/sharing.h - which nodes share-mirrored merges.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/core/topology.h"
#include "lockstep/graph/transform/rewriter.h"
#include "lockstep/strategies/proof/congruence.h"

namespace lockstep::internal {

// The changes to one level.
struct SharingPlan {
  std::vector<Rewriter::Replacement> erased;
  std::vector<std::pair<ValueId, ValueId>> moved;  // readers of the first value move to the second
  std::vector<NodeId> common;                      // now belong to no replica in particular
  std::vector<std::pair<NodeId, NodeId>> order;    // the first runs after the second
  bool risky = false;                              // `order` may close a cycle
  std::map<NodeId, std::vector<SharingPlan>> regions;
};

// For a graph and all its regions. `copies` (by place of the variable) are meant to share the memory of the
// variable they copy. Copies whose updates cannot be merged are added to `refused`; make the plan again
// without them. `topology`: which devices compute in one memory; null: not known.
SharingPlan plan_sharing(const Congruence& proof, const std::vector<bool>& copies, const Topology* topology,
                         std::set<std::size_t>& refused);

}  // namespace lockstep::internal
