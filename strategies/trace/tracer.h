// strategies/trace/tracer.h - the part of a strategy that tracing needs: its replicas, its variables, and
// regions.
//
// Strategy derives from it. Contexts, variables and replica contexts know a strategy only by this class, so
// that nothing in this folder depends on the layers above it. Thread safety: as Strategy.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/cluster/worker_spec.h"
#include "lockstep/core/variable_store.h"
#include "lockstep/graph/build/value.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/graph/ops/collectives.h"
#include "lockstep/strategies/trace/context.h"
#include "lockstep/strategies/trace/step.h"
#include "lockstep/strategies/trace/values.h"

namespace lockstep {

class Strategy;
class Variable;

namespace internal {

struct VariableState;

class LOCKSTEP_API Tracer {
 public:
  using TraceFn = std::function<std::vector<Value>(std::span<const Value>)>;
  using CrossTraceFn = std::function<std::vector<PerReplica<Value>>(std::span<const PerReplica<Value>>)>;

  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  virtual std::string_view name() const = 0;
  // Of all workers; those of this worker, which have devices, slots of a PerReplica and copies of variables here; and the number of
  // the first of them among all.
  std::int64_t num_replicas_in_sync() const { return num_local_replicas() * worker_.count; }
  std::int64_t num_local_replicas() const { return static_cast<std::int64_t>(devices_.size()); }
  std::int64_t first_replica() const { return num_local_replicas() * worker_.rank; }
  const WorkerSpec& worker() const { return worker_; }  // one of one, unless the options name another
  const std::vector<std::string>& worker_devices() const { return devices_; }  // canonical, by local replica
  VariableStore& variables() const { return *variables_; }
  // May the copies of this variable drift apart? Only if the user allows it (MirroredOptions::may_drift).
  virtual bool may_drift(std::string_view variable) const;
  // Where the copy of a variable for this replica lives.
  virtual VariableHome variable_home(std::int64_t replica) const;
  Strategy& strategy() const { return *strategy_; }

 protected:
  // `devices` are canonical names.
  Tracer(Strategy& strategy, std::vector<std::string> devices, std::shared_ptr<VariableStore> variables,
         WorkerSpec worker);
  virtual ~Tracer();

  // `method` is what the user called, for errors about the context. The program and its report are missing
  // from the returned parts.
  Step::Parts trace_replicas(std::vector<InputSpec> inputs, const TraceFn& trace, std::string_view method,
                             SourceSite site);
  Step::Parts trace_cross(std::vector<InputSpec> inputs, const CrossTraceFn& trace, std::string_view method,
                          SourceSite site);
  // A replicated region in the graph being traced.
  std::vector<PerReplica<Value>> replicate(std::span<const PerReplica<Value>> arguments, const TraceFn& trace,
                                           ContextKind kind, std::string_view method, SourceSite site);
  // Declares the variables that may drift as what they are for replicas: each replica's own.
  void allow_drift(Graph& step) const;
  bool is_part() const { return worker_.count > 1; }  // other workers have replicas, too
  ReplicaRange range() const { return {num_local_replicas(), 0, num_replicas_in_sync()}; }
  // What the slots of this worker's replicas, and of those of all other workers, are together; `whole`: the one value of each
  // worker.
  Value combined(ReduceOp op, std::span<const Value> slots, bool whole, SourceSite site) const;
  // The first worker's value, on all.
  Value from_chief(const Value& value, SourceSite site) const;
  // What a graph gives, run at once. The graph of one of several workers may have collectives over all of them.
  virtual Tensor compute(Graph graph, const std::vector<Tensor>& feeds, SourceSite site) const;
  // See Strategy::reduce.
  Value reduce_values(ReduceOp op, const PerReplica<Value>& value, std::optional<std::int64_t> axis,
                      SourceSite site);
  Tensor reduce_tensors(ReduceOp op, const PerReplica<Tensor>& value, std::optional<std::int64_t> axis,
                        SourceSite site);

 private:
  friend class lockstep::Variable;
  friend PerReplica<Value> slot_by_slot(SlotFunction function, const SlotOperand<Value>& a,
                                        const SlotOperand<Value>& b);

  Strategy* strategy_;
  std::vector<std::string> devices_;
  std::shared_ptr<VariableStore> variables_;
  WorkerSpec worker_;
  // The variables made in this strategy, by name.
  std::mutex made_mutex_;
  std::map<std::string, std::shared_ptr<const VariableState>, std::less<>> made_;
};

// The tracer of default_strategy(), which defines it.
Tracer& default_tracer();

}  // namespace internal

}  // namespace lockstep
