// strategies/trace/replica_context.cpp - what the code of one replica can ask and do.
#include "lockstep/strategies/trace/replica_context.h"

#include "lockstep/graph/build/builder_access.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/sources.h"
#include "lockstep/strategies/trace/tracer.h"

namespace lockstep {

ReduceOp internal::parse_op(std::string_view text, std::string_view method, const SourceSite& site) {
  try {
    return parse_reduce_op(text);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(error.message(), place_of_call(method, site));
  }
}

ReplicaContext replica_context(SourceSite site) {
  internal::require_replica("replica_context()", site);
  const internal::ContextFrame* frame = internal::ContextFrame::current();
  return {*frame->tracer(), frame->serial()};
}

// Regions of the function (branches, loop bodies) are part of it; another function, or a merge function
// inside it, is not.
void ReplicaContext::check(std::string_view method, const SourceSite& site) const {
  internal::require_replica(method, site);
  if (internal::ContextFrame::current()->serial() == serial_) return;
  throw FailedPrecondition(
      str(method, ": this ReplicaContext belongs to another function; ask replica_context() for ",
          "the one of the function being traced"),
      place_of_call(method, site));
}

Strategy& ReplicaContext::strategy(SourceSite site) const {
  check("strategy()", site);
  return tracer_->strategy();
}

std::int64_t ReplicaContext::num_replicas_in_sync(SourceSite site) const {
  check("num_replicas_in_sync()", site);
  return tracer_->num_replicas_in_sync();
}

Value ReplicaContext::replica_id(SourceSite site) const {
  check("replica_id()", site);
  return lockstep::replica_id(*current_builder(), site);
}

Value ReplicaContext::all_reduce(ReduceOp op, const Operand& value) const {
  check("all_reduce()", value.site());
  return lockstep::all_reduce(op, value);
}

IndexedSlices ReplicaContext::all_reduce(ReduceOp op, const IndexedSlices& slices, SourceSite site) const {
  check("all_reduce()", site);
  if (op != ReduceOp::kMean) return lockstep::all_reduce(op, slices, site);
  // Here the number of replicas is known.
  const auto here = internal::BuilderAccess(*current_builder()).made_at(site);
  IndexedSlices shares = slices;
  if (is_integer(shares.values.dtype())) shares.values = cast(shares.values, DType::kF64);
  IndexedSlices all = lockstep::all_reduce(ReduceOp::kSum, shares, site);
  all.values = all.values / static_cast<double>(tracer_->num_replicas_in_sync());
  return all;
}

std::vector<Value> ReplicaContext::all_reduce_list(ReduceOp op, std::span<const Value> given,
                                                   SourceSite site) const {
  check("all_reduce()", site);
  // One node per dtype, each value in its place.
  const auto here = internal::BuilderAccess(*current_builder()).made_at(site);
  const std::vector<Value> values(given.begin(), given.end());
  std::vector<Value> results(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (results[i].valid()) continue;
    std::vector<Value> alike;
    for (std::size_t j = i; j < values.size(); ++j) {
      if (values[j].dtype() == values[i].dtype()) alike.push_back(values[j]);
    }
    const std::vector<Value> reduced = lockstep::all_reduce(op, alike, site);
    std::size_t next = 0;
    for (std::size_t j = i; j < values.size(); ++j) {
      if (values[j].dtype() == values[i].dtype()) results[j] = reduced[next++];
    }
  }
  return results;
}

Value ReplicaContext::all_gather(const Operand& value, std::int64_t axis) const {
  check("all_gather()", value.site());
  return internal::gather_replicas(value, axis);
}

Value ReplicaContext::reduce_scatter(ReduceOp op, const Operand& value, std::int64_t axis) const {
  check("reduce_scatter()", value.site());
  if (tracer_->num_local_replicas() != tracer_->num_replicas_in_sync())
    throw Error(ErrorCode::kUnimplemented,
                "reduce_scatter() has no form for several workers yet: use all_reduce(), and slice() it",
                place_of_call("reduce_scatter()", value.site()));
  return lockstep::reduce_scatter(op, value, tracer_->num_replicas_in_sync(), axis);
}

std::vector<Value> ReplicaContext::merge_call_list(const MergeListFn& merge, std::span<const Value> arguments,
                                                   SourceSite site) const {
  check("merge_call()", site);
  GraphBuilder& builder = *current_builder();
  std::vector<ReplicaKind> kinds;
  kinds.reserve(arguments.size());
  for (const Value& argument : arguments)
    kinds.push_back(internal::ContextFrame::current()->kind_of(argument));
  return lockstep::merge_call(
      builder, tracer_->num_local_replicas(), arguments,
      [&](std::span<const std::vector<Value>> values) {
        const internal::ContextFrame frame(tracer_, ContextKind::kCrossReplica, &builder);
        std::vector<PerReplica<Value>> merged;
        for (std::size_t i = 0; i < values.size(); ++i) {
          const bool single = tracer_->num_replicas_in_sync() == 1 || kinds[i] == ReplicaKind::kSingle;
          merged.push_back(single ? PerReplica<Value>(values[i][0]) : PerReplica<Value>(values[i], kinds[i]));
        }
        std::vector<MergedResult> results;
        for (const PerReplica<Value>& result : merge(tracer_->strategy(), merged)) {
          // One of several equal values is enough.
          if (result.kind() == ReplicaKind::kMirrored) {
            results.push_back({result[0]});
          } else {
            results.push_back(result.values());
          }
        }
        return results;
      },
      site);
}

}  // namespace lockstep
