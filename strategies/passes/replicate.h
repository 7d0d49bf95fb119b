// strategies/passes/replicate.h - every replicated region becomes its nodes, once per replica.
//
//   x0 --+                                          x0 --> square --+
//        replicated { square -> all_reduce } --> y               all_reduce --> y0, y1
//   x1 --+                                          x1 --> square --+
//                                                          (replica_1/square)
//
// What becomes of a node of the region:
//   ordinary                   one per replica; replica r > 0 gets the scope "replica_r/", and its copies of variables
//   ReplicaRole kReplicaNumber a constant
//   kCollective                one node for all, which takes the values of all replicas
//   kSumOverReplicas           one per replica and an all-reduce of them
//   merge_call                 its region, once, over the values of all replicas
//   cond, while_loop           one per replica; but one node for all, with all replicas inside, if it holds a collective or
//                              writes a variable that replicas keep equal. Its predicates go through `agree`, which prove-sync
//                              checks
// Nodes outside of replicated regions stay single. Variables that have no copies yet get them
// (mirror-variables). Lambdas are copied with their captures, and told their replica.
//
// Order: replica by replica between two collectives, each node as late as its readers allow, so that one
// thread completes one replica's step before the next and needs the memory of only one.
//
// Of one of several workers only its own replicas are made, with their numbers among those of all (PassContext::first_replica); a
// collective then says how many there are besides (`world`), and the number of a replica is asked for when the step runs.
//
// A graph without replicated regions stays as it is; enter-replicas makes such regions. Linear in the size
// of the result. Thread safety: as any Pass.
#pragma once

#include <memory>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

LOCKSTEP_API std::unique_ptr<Pass> make_replicate();

}  // namespace lockstep
