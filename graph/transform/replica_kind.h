// graph/transform/replica_kind.h - how a value differs between replicas, and where a difference begins.
//
//   kSingle      it depends on no replica: there is one, whatever the number of replicas
//   kMirrored    one per replica, proven equal
//   kPerReplica  one per replica, which may differ
//
// The kinds are ordered: what is computed from several values is at least the largest of their kinds.
//
// Every analysis calls difference_of() to find where a difference begins: SyncAnalysis
// (graph/transform/sync.h) for one copy of a step inside replicated nodes, Congruence
// (strategies/proof/congruence.h) for the nodes of all replicas, and strategies for values while a step is
// traced. They differ in which answers count: SyncAnalysis does not count a share, which may happen to be the
// same on all replicas and yet must be summed; Congruence compares flat nodes that draw random numbers by
// their replica.
//
// Thread safety: functions of their arguments.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep {

enum class ReplicaKind : std::uint8_t { kSingle, kMirrored, kPerReplica };
LOCKSTEP_API std::string_view to_string(ReplicaKind kind);  // "single", "mirrored", "per replica"

// Why the value of a node differs between replicas although its inputs do not.
enum class DifferenceSource : std::uint8_t {
  kNone,           // it follows its inputs
  kReplicaNumber,  // it is the number of the replica
  kOwnVariable,    // it uses a variable that is synchronized on read
  kRandom,         // it draws random numbers
  kOpaque,         // its value cannot be predicted: host or opaque code
  kOwnSource,      // its op says so
  kShare,          // a replica's share of a value, which may be the same on all of them
};
// Do nodes of this op differ between replicas, whatever their inputs and effects?
LOCKSTEP_API bool differs_by_itself(const OpTraits& traits);
// For the node itself, not its regions. `outermost` declares the variables.
LOCKSTEP_API DifferenceSource difference_of(const Node& node, const Graph& outermost);
// "random numbers, drawn by each replica"; empty for kNone.
LOCKSTEP_API std::string describe_difference(const Node& node, const Graph& outermost);

}  // namespace lockstep
