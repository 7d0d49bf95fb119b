// strategies/passes/replicate.h - every replicated region becomes its nodes, once per replica.
//
//   x0 --+                                          x0 --> square --+
//        replicated { square -> all_reduce } --> y               all_reduce --> y0, y1
//   x1 --+                                          x1 --> square --+
//                                                          (replica_1/square)
//
// What becomes of a node of the region:
//   ordinary                   one per replica; replica r > 0 gets the scope "replica_r/", and its copies of variables
//   gives_replica              a constant
//   collective                 one node for all, which takes the values of all replicas
//   sum_over_replicas          one per replica and an all-reduce of them
//   merge_call                 its region, once, over the values of all replicas
//   cond, while_loop           one per replica; but one node for all, with all replicas inside, where it holds a collective or
//                              writes a variable that replicas keep equal. Its predicates go through `agree`, which prove-sync
//                              checks
// What stands outside of replicated regions stays single. Variables that have no copies yet get them
// (mirror-variables). Lambdas are copied with what they captured, and told their replica.
//
// Order: replica by replica between two collectives, each node as late as its readers allow, so that one
// thread runs one replica's step through before the next and needs the memory of one.
//
// A graph without replicated regions is taken as the step of one replica where the option `replicas` says how
// many there shall be: each placeholder then becomes one per replica (x, x/replica_1, ...), those listed in
// `shared` stay single, and results come as one per replica, result by result. Linear in what comes out.
// Thread safety: as any Pass.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

struct ReplicateOptions {
  std::int64_t replicas = 0;             // for a graph without replicated regions
  std::vector<std::string> shared = {};  // its placeholders that all replicas see
};

LOCKSTEP_API std::unique_ptr<Pass> make_replicate(ReplicateOptions options = {});

}  // namespace lockstep
