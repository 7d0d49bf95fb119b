// graph/ops/global.h - reductions over the batches of all replicas, written once for any number of them.
//
//   Value loss = global_mean(softmax_cross_entropy(logits, labels));
//
// With one replica these are the mean, the sum and the number of elements of v. With several, v is the part
// of one replica, and
//   global_count(v)   is the number of elements over all replicas: the same on each;
//   global_sum(v)     is this replica's share of the sum: the sum of its own part;
//   global_mean(v)    is this replica's share of the mean: the sum of its part / the count over all replicas.
// Shares add up to the whole. So gradients of shares, summed over the replicas as gradients of mirrored
// variables are, give the gradient of the whole, however unevenly the batch was cut; and the only
// communication between the forward and the backward pass is that of the count, which depends on shapes
// alone. Nothing flows back through the count.
//
// How a strategy knows them, without their names:
//   ReplicaRole::kSumOverReplicas (global_count)   its kernel's result for one replica must be summed over
//                                                  all replicas before anything reads it;
//   ReplicaRole::kShare (global_sum, global_mean)  the node is right as it stands; if its value leaves the
//                                                  step, the shares are to be added up.
// None of them has Effect::kCollective: until a strategy completes it, a node does not communicate. It may be
// erased if nothing reads it, and merged with an equal one. The all-reduce that completes it brings the
// effect, and with it a place in the communicator's order. Before that, it would be wrong to fold one into a
// constant, which no strategy would complete, or to derive a shape from a count; constant-folding and shape
// operands therefore leave them alone. Thread safety: as the builder.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/value.h"

namespace lockstep {

// Of all elements of v, floating. No elements give 0, never NaN. With one replica: mean(v), to the bit.
LOCKSTEP_API Value global_mean(const Operand& v);
// Of all elements of v.
LOCKSTEP_API Value global_sum(const Operand& v);
// How many elements v has over all replicas, a scalar; only the shape of v matters.
LOCKSTEP_API Value global_count(const Operand& v, DType dtype = DType::kI64);

}  // namespace lockstep
