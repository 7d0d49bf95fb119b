#include "lockstep/strategies/trace/replica_context.h"

#include "lockstep/graph/ops/sources.h"
#include "lockstep/strategies/trace/tracer.h"

namespace lockstep {

ReplicaContext replica_context() {
  internal::require_replica("replica_context()");
  const internal::ContextFrame* frame = internal::ContextFrame::current();
  return {*frame->tracer(), frame->serial()};
}

// Regions (branches, loop bodies) of the function are part of it; another function, or a merge function
// inside, is not.
void ReplicaContext::check(std::string_view method) const {
  internal::require_replica(method);
  if (internal::ContextFrame::current()->serial() == serial_) return;
  throw FailedPrecondition(
      str(method, ": this ReplicaContext belongs to another function; ask replica_context() for ",
          "the one of the function being traced"));
}

Strategy& ReplicaContext::strategy() const {
  check("strategy()");
  return tracer_->strategy();
}

std::int64_t ReplicaContext::num_replicas_in_sync() const {
  check("num_replicas_in_sync()");
  return tracer_->num_replicas_in_sync();
}

Value ReplicaContext::replica_id(SourceSite site) const {
  check("replica_id()");
  return lockstep::replica_id(*current_builder(), site);
}

Value ReplicaContext::all_reduce(ReduceOp op, const Operand& value) const {
  check("all_reduce()");
  return lockstep::all_reduce(op, value);
}

std::vector<Value> ReplicaContext::all_reduce_list(ReduceOp op, std::span<const Value> values,
                                                   SourceSite site) const {
  check("all_reduce()");
  // One node per dtype, each value in its place.
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
  check("all_gather()");
  // How much there will be is not known before `replicate`, which says how many replicas there are.
  const Value& v = value.value_for("all_gather");
  std::vector<Attribute> attributes;
  if (axis != 0) attributes.push_back({"axis", axis});
  attributes.push_back({"replicas", std::int64_t{0}});
  return v.builder().op1("all_gather", {v}, std::move(attributes), {}, value.site());
}

std::vector<Value> ReplicaContext::merge_call_list(const MergeListFn& merge, std::span<const Value> arguments,
                                                   SourceSite site) const {
  check("merge_call()");
  GraphBuilder& builder = *current_builder();
  std::vector<ReplicaKind> kinds;
  kinds.reserve(arguments.size());
  for (const Value& argument : arguments)
    kinds.push_back(internal::ContextFrame::current()->kind_of(argument));
  return lockstep::merge_call(
      builder, tracer_->num_replicas_in_sync(), arguments,
      [&](std::span<const std::vector<Value>> values) {
        const internal::ContextFrame frame(tracer_, ContextKind::kCrossReplica, &builder);
        std::vector<PerReplica<Value>> merged;
        for (std::size_t i = 0; i < values.size(); ++i) {
          const bool single = values[i].size() == 1 || kinds[i] == ReplicaKind::kSingle;
          merged.push_back(single ? PerReplica<Value>(values[i][0]) : PerReplica<Value>(values[i], kinds[i]));
        }
        std::vector<MergedResult> results;
        for (const PerReplica<Value>& result : merge(tracer_->strategy(), merged)) {
          // Of equal values one is enough.
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
