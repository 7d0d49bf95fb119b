// strategies/internal/result_kinds.h - how the results of a replicated region differ between replicas.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/graph/graph.h"
#include "lockstep/strategies/values.h"

namespace lockstep::internal {

// One per result of the region, given one per parameter. kSingle: depends on no replica, not even through a collective.
// `outermost` declares the variables.
std::vector<ReplicaKind> result_kinds(const Graph& region, const std::vector<ReplicaKind>& parameters,
                                      const Graph& outermost);

}  // namespace lockstep::internal
