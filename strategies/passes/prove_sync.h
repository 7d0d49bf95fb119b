// strategies/passes/prove_sync.h - proves that replicas stay in lockstep, or says where they drift apart.
//
//   x0 -> grad -> assign @w                    prove-sync: variable 'w' would not stay equal on all replicas
//   x1 -> grad -> assign @"w/replica_1"  -->     'u' and 'replica_1/u' (assign, model.cpp:12)
//                                                from 'grad' and 'replica_1/grad' (mul, model.cpp:11)
//                                                from 'x0' and 'x1' (placeholder, model.cpp:3): fed to each replica by itself
//                                              all_reduce the value, ...
//
// Every variable with copies that are not synchronized on read must end the step with the same bits on all
// replicas, given that it began so. Slots of optimizers are ordinary variables, and updates inside branches
// and loops count. The inputs of nodes that state that their inputs agree (predicates of branches and loops
// that all replicas enter together) must be equal as well. See strategies/proof/congruence.h for what is
// proven equal. Runs on a flat graph, after `replicate`; run it again after lower-collectives if cross-device
// ops of your own are not to be trusted.
//
// Variables that may drift apart are synchronized on read: allow-drift declares them so. Changes nothing. Linear.
// Thread safety: as any Pass.
#pragma once

#include <memory>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

struct ProveSyncOptions {
  // Other workers run the same step, with replicas of their own: what is to be equal on all replicas is so on theirs too.
  bool workers = false;
};

LOCKSTEP_API std::unique_ptr<Pass> make_prove_sync(ProveSyncOptions options = {});

}  // namespace lockstep
