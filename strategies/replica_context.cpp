#include "lockstep/strategies/replica_context.h"

#include "lockstep/graph/ops/sources.h"
#include "lockstep/strategies/strategy.h"

namespace lockstep {

ReplicaContext replica_context() {
  internal::require_replica("replica_context()");
  return {*current_strategy(), internal::ContextFrame::current()->serial()};
}

// Regions (branches, loop bodies) of the function are part of it; another function, or a merge function inside, is not.
void ReplicaContext::check(std::string_view method) const {
  internal::require_replica(method);
  if (internal::ContextFrame::current()->serial() == serial_) return;
  throw FailedPrecondition(
      str(method, ": this ReplicaContext belongs to another function; ask replica_context() for ",
          "the one of the function being traced"));
}

Strategy& ReplicaContext::strategy() const {
  check("strategy()");
  return *strategy_;
}

std::int64_t ReplicaContext::num_replicas_in_sync() const {
  check("num_replicas_in_sync()");
  return strategy_->num_replicas_in_sync();
}

Value ReplicaContext::replica_id(SourceSite site) const {
  check("replica_id()");
  return lockstep::replica_id(*current_builder(), site);
}

Value ReplicaContext::all_reduce(ReduceOp op, const Operand& value) const {
  check("all_reduce()");
  return lockstep::all_reduce(op, value);
}

std::vector<Value> ReplicaContext::all_reduce_list(ReduceOp op, std::span<const Value> values) const {
  check("all_reduce()");
  // One node per dtype, each value in its place.
  std::vector<Value> results(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (results[i].valid()) continue;
    std::vector<Value> alike;
    for (std::size_t j = i; j < values.size(); ++j) {
      if (values[j].dtype() == values[i].dtype()) alike.push_back(values[j]);
    }
    const std::vector<Value> reduced = lockstep::all_reduce(op, alike);
    std::size_t next = 0;
    for (std::size_t j = i; j < values.size(); ++j) {
      if (values[j].dtype() == values[i].dtype()) results[j] = reduced[next++];
    }
  }
  return results;
}

Value ReplicaContext::all_gather(const Operand& value, std::int64_t axis) const {
  check("all_gather()");
  return lockstep::all_gather(value, axis);
}

std::vector<Value> ReplicaContext::merge_list(std::span<const Value> arguments,
                                              const MergeListFn& merge) const {
  check("merge_call()");
  GraphBuilder& builder = *current_builder();
  return lockstep::merge_call(
      builder, strategy_->num_replicas_in_sync(), arguments, [&](std::span<const std::vector<Value>> values) {
        const internal::ContextFrame frame(strategy_, ContextKind::kCrossReplica, &builder);
        std::vector<PerReplica<Value>> merged;
        for (const std::vector<Value>& slots : values)
          merged.push_back(slots.size() == 1 ? PerReplica<Value>(slots[0]) : PerReplica<Value>(slots));
        std::vector<MergedResult> results;
        for (const PerReplica<Value>& result : merge(merged)) results.push_back(result.values());
        return results;
      });
}

}  // namespace lockstep
