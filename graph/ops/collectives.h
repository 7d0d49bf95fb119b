// graph/ops/collectives.h - collectives: values that replicas compute together.
//
//   Value total = all_reduce(ReduceOp::kSum, local);  // in a replicated region: the same on every replica
//
// Inside a replicated region these take and give the values of one replica. The pass `replicate` joins the
// copies of such a node into one, which takes the values of all replicas, replica by replica, and gives
// theirs: no replica ever waits for another, since the joined node simply runs when its inputs are there.
// With one replica, or outside of replicated regions, they act on a group of one and give the value itself.
// All except reductions by min, max and prod have gradients.
//
// Sums are taken in the order of the replicas, element by element, so that bits depend on nothing else: except with by="nccl".
//
// An all_reduce with the attribute by="nccl" leaves the values of each replica where they are: what connects their devices
// combines them (Runtime::device_group), in an order of its own and, for f16 and bf16, with a rounding at each step; bits are
// equal on all replicas and in every run. Where nothing does, it is computed in one place, as any other.
//
// The ops that lower-collectives makes of them (reduce_replicas, reduce_chunk, join_chunks, copy) have no
// function here. Thread safety: as the builder.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/kernels/reduce_replicas.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/value.h"
#include "lockstep/graph/ops/gradient_rule.h"

namespace lockstep {

using ReduceOp = ReplicaReduce;
LOCKSTEP_API ReduceOp parse_reduce_op(std::string_view text);  // any case; throws InvalidArgument

namespace internal {
LOCKSTEP_API IndexedSlices all_reduce_slices(ReduceOp op, const IndexedSlices& slices,
                                             const SourceSite& site);
}

// The values of all replicas combined, on every replica. The mean of integers is f64.
LOCKSTEP_API Value all_reduce(ReduceOp op, const Operand& value);
// Several at once: one node.
LOCKSTEP_API std::vector<Value> all_reduce(ReduceOp op, std::span<const Value> values,
                                           SourceSite site = SourceSite::current());
// The rows of all replicas together. They stand for the sum; for a mean the rows are divided by the number of
// replicas.
template <class Slices>
requires std::is_same_v<Slices, IndexedSlices>  // so that a list in braces never matches
    IndexedSlices all_reduce(ReduceOp op, const Slices& slices, SourceSite site = SourceSite::current()) {
  return internal::all_reduce_slices(op, slices, site);
}
// The values of all replicas one after the other along an axis, on every replica. Sizes along it may differ.
LOCKSTEP_API Value all_gather(const Operand& value, std::int64_t axis = 0);
// The values of all replicas combined and cut into `pieces` along an axis, as many as there are replicas:
// replica r gets piece r, with the same bits that all_reduce gives there. The extent must be a multiple of
// `pieces`: pad() it.
LOCKSTEP_API Value reduce_scatter(ReduceOp op, const Operand& value, std::int64_t pieces,
                                  std::int64_t axis = 0);
// The value of replica `root`, on every replica.
LOCKSTEP_API Value broadcast_replica(const Operand& value, std::int64_t root = 0);

namespace internal {
// all_gather while replicas are traced: the extent of the result along the axis is not known yet.
LOCKSTEP_API Value gather_replicas(const Operand& value, std::int64_t axis);
}  // namespace internal

// Outside of replicated regions: the values of all replicas (one per replica) combined into one.
LOCKSTEP_API Value reduce_replicas(ReduceOp op, std::span<const Value> values,
                                   SourceSite site = SourceSite::current());

// One result of a merge function: one value for all replicas, or one for each.
using MergedResult = std::vector<Value>;  // 1 or `replicas` values
using MergeFn = std::function<std::vector<MergedResult>(std::span<const std::vector<Value>> arguments)>;
// Inside a replicated region of `replicas` replicas: leaves it for the function, which is traced once and
// sees the values of all replicas ([argument][replica]), and hands each replica its part of the function's
// results. Of the region's values, the function may use only its arguments.
LOCKSTEP_API std::vector<Value> merge_call(GraphBuilder& builder, std::int64_t replicas,
                                           std::span<const Value> arguments, const MergeFn& function,
                                           SourceSite site = SourceSite::current());

}  // namespace lockstep
