// strategies/passes/insert_all_reduce.h - makes the values that replicas write into shared variables the same
// on all of them.
//
//   replicated {                                replicated {
//     g = ...             // per replica          g = ...
//     sgd[w](g, lr)                       -->     g/all_reduce = all_reduce[sum](g)
//   }                                             sgd[w](g/all_reduce, lr)
//                                               }
//
// Applies to every update of a variable that replicas keep equal (not one that is synchronized on read), in
// replicated regions and the regions inside them, if its operand is per replica (graph/transform/sync.h):
//
//   a gradient (OpTraits::Update::gradient)     all_reduce of sum
//   aggregation sum, mean                       all_reduce of sum, of mean
//   aggregation only_first_replica              broadcast_replica from 0
//   aggregation none                            PassError: with the node, its line, and the chain that makes replicas differ
//
// Rows and their numbers (Update::indices) are both gathered along axis 0 (mean: the rows are divided by the
// number of replicas), or taken from replica 0.
//
// A gradient is a share of the whole: replicas sum it even if it happens to be the same on each, as the
// gradient of a bias under a linear loss, or after an all_reduce of the forward pass. A gradient that
// replicas have already summed is left alone (SyncAnalysis::is_summed): the user's own all_reduce of a
// gradient, for example, and values computed from it. Other operands that are the same on all replicas are
// written as they are, and so is everything that the regions of Strategy::update() write.
//
// Values written by several updates are combined once. With one replica nothing is inserted. Linear.
//
// A variable whose copies may drift apart is synchronized on read (allow-drift): each replica changes its own
// copy, by its own gradient too. Thread safety: as any Pass.
#pragma once

#include <memory>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

LOCKSTEP_API std::unique_ptr<Pass> make_insert_all_reduce();

}  // namespace lockstep
