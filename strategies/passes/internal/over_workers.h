// strategies/passes/internal/over_workers.h - collectives over the replicas of all workers become calls of the workers' group.
//
//   x of replica 2, 3 --> all_reduce[first=2, replicas=2, world=4]     -->
//
//     one replica a worker:   packed --> group_all_reduce --> split
//     several:                packed, one behind the other --> group_all_reduce[parts=2] --> split
//     joined first:           packed --> reduce_replicas --> group_all_reduce --> split
//
// So values are combined in the order of the replicas' numbers, however they are spread over workers: the bits are those of one
// worker with all of them, unless each worker joins those of its own first. The tensors of one all-reduce travel as one array if
// their shapes are known.
#pragma once

#include <vector>

#include "lockstep/graph/transform/rewriter.h"
#include "lockstep/strategies/passes/workers_exchange.h"

namespace lockstep::internal {

inline constexpr const char* kWorkersGroup = "world";  // the group that the runtime of each worker has

// The replacement of each output. `is_read`: by output. `heir` becomes the node that has the collective's place among the others.
std::vector<ValueId> lower_over_workers(Rewriter& edit, NodeId collective, const std::vector<bool>& is_read,
                                        NodeId& heir, const WorkersExchange& exchange);

}  // namespace lockstep::internal
