// graph/build/regions.h - control flow and replication: nodes whose regions are functions of the caller,
// traced once.
//
//   std::vector<Value> y = cond(x > 0.0F, [&] { return std::vector{x}; }, [&] { return std::vector{-x}; });
//
// The functions may use values of the enclosing graphs freely: they are captured. Thread safety: as the
// builder.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/source_site.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/value.h"
#include "lockstep/graph/ir/replica_nodes.h"

namespace lockstep {

using BranchFn = std::function<std::vector<Value>()>;
using LoopConditionFn = std::function<Value(std::span<const Value>)>;
using LoopBodyFn = std::function<std::vector<Value>(std::span<const Value>)>;

// One of two: both branches must give values of equal dtypes and ranks. Dimensions that differ become
// unknown; when the program is compiled for its feeds, both branches must come to one shape, since memory is
// planned for it.
LOCKSTEP_API std::vector<Value> cond(const Value& predicate, const BranchFn& then_branch,
                                     const BranchFn& else_branch, SourceSite site = SourceSite::current());
struct LoopOptions {
  // The loop ends after that many trips even if its condition still holds; -1: no bound. A loop with a bound
  // has gradients: the carried values of every trip are then kept for the way back.
  std::int64_t max_trips = -1;
};
// Repeats the body while the condition (a bool scalar) holds. The body's results have the specs of `initial`.
LOCKSTEP_API std::vector<Value> while_loop(std::span<const Value> initial, const LoopConditionFn& condition,
                                           const LoopBodyFn& body, const LoopOptions& options,
                                           SourceSite site = SourceSite::current());
LOCKSTEP_API std::vector<Value> while_loop(std::span<const Value> initial, const LoopConditionFn& condition,
                                           const LoopBodyFn& body, SourceSite site = SourceSite::current());
// The body once per replica, 0..n-1: a number, or those of one of several workers (ReplicaRange). `shared` inputs are the same for all; each of `per_replica` holds n
// values, one per replica. The body sees shared then per-replica ones. Result j of replica r is the returned
// [j][r].
LOCKSTEP_API std::vector<std::vector<Value>> replicated(GraphBuilder& builder, const ReplicaRange& replicas,
                                                        std::span<const Value> shared,
                                                        std::span<const std::vector<Value>> per_replica,
                                                        const LoopBodyFn& body,
                                                        SourceSite site = SourceSite::current());
// As replicated(), but its inputs are final: the same update for every copy of a variable. Strategies combine
// nothing that such a region writes, not even gradients. The node carries the attribute `update`.
LOCKSTEP_API std::vector<std::vector<Value>> replicated_update(
    GraphBuilder& builder, const ReplicaRange& replicas, std::span<const Value> shared,
    std::span<const std::vector<Value>> per_replica, const LoopBodyFn& body,
    SourceSite site = SourceSite::current());

}  // namespace lockstep
