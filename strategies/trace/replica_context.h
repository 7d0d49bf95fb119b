// strategies/trace/replica_context.h - what the code of one replica can ask and do.
//
//   strategy.function({x}, [](Value x) {
//     ReplicaContext replica = replica_context();
//     Value id = replica.replica_id();                                   // i32: 0, 1, ...
//     Value everywhere = replica.all_reduce(ReduceOp::kSum, x);
//     Value range = replica.merge_call([](Strategy& s, PerReplica<Value> v) {      // once, for all replicas
//       return s.reduce(ReduceOp::kMax, v) - s.reduce(ReduceOp::kMin, v);
//     }, x);
//     ...
//   });
//
// A merge function is traced once, in cross-replica context, with the values of all replicas. What it gives
// as a Value (or a single PerReplica) every replica gets; of a PerReplica with a slot for each, each gets its
// own. It may use no value of the replica but its arguments. A ReplicaContext is good while its function is
// being traced. Thread safety: for the thread that traces the function; on another one its methods throw
// FailedPrecondition.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/graph/ops/collectives.h"
#include "lockstep/graph/ops/gradient_rule.h"
#include "lockstep/strategies/trace/context.h"
#include "lockstep/strategies/trace/nest.h"
#include "lockstep/strategies/trace/values.h"

namespace lockstep {

class LOCKSTEP_API ReplicaContext {
 public:
  Strategy& strategy(SourceSite site = SourceSite::current()) const;
  std::int64_t num_replicas_in_sync(SourceSite site = SourceSite::current()) const;
  // i32: 0, 1, ... over all workers; the local one counts those of this process, which here are all.
  Value replica_id(SourceSite site = SourceSite::current()) const;
  Value local_replica_id(SourceSite site = SourceSite::current()) const { return replica_id(site); }

  // The values of all replicas combined, the same on each; of a nest, leaf by leaf in one node per dtype. The
  // mean of integers is f64. Of slices the rows of all replicas, one behind the other: their sum, or the mean.
  Value all_reduce(ReduceOp op, const Operand& value) const;
  IndexedSlices all_reduce(ReduceOp op, const IndexedSlices& slices,
                           SourceSite site = SourceSite::current()) const;
  template <class N>
  requires(!std::is_convertible_v<const N&, Operand> && !std::is_same_v<N, IndexedSlices>) N
      all_reduce(ReduceOp op, const N& nest_of_values, SourceSite site = SourceSite::current())
  const {
    return nest::refill<Value>(nest_of_values,
                               all_reduce_list(op, nest::leaves<Value>(nest_of_values), site));
  }
  // The values of all replicas one behind the other.
  Value all_gather(const Operand& value, std::int64_t axis = 0) const;
  // The values of all replicas combined, of which this replica gets its piece: the axis is cut into as many as
  // there are replicas, evenly.
  Value reduce_scatter(ReduceOp op, const Operand& value, std::int64_t axis = 0) const;

  // merge(Strategy&, PerReplica<Value>...) with the arguments of all replicas. An argument that is known to
  // be the same on all of them comes as a single or mirrored value, whose sum over replicas is refused as it
  // is everywhere.
  template <class F>
  auto merge_call(const F& merge, SourceSite site = SourceSite::current()) const {
    return merge_values(merge, {}, site, std::index_sequence<>());
  }
  template <class F>
  auto merge_call(const F& merge, const Operand& a, SourceSite site = SourceSite::current()) const {
    return merge_values(merge, {value_of(a)}, site, std::make_index_sequence<1>());
  }
  template <class F>
  auto merge_call(const F& merge, const Operand& a, const Operand& b,
                  SourceSite site = SourceSite::current()) const {
    return merge_values(merge, {value_of(a), value_of(b)}, site, std::make_index_sequence<2>());
  }
  template <class F>
  auto merge_call(const F& merge, const Operand& a, const Operand& b, const Operand& c,
                  SourceSite site = SourceSite::current()) const {
    return merge_values(merge, {value_of(a), value_of(b), value_of(c)}, site, std::make_index_sequence<3>());
  }
  // Any number of them: merge(Strategy&, std::span<const PerReplica<Value>>) gives one value for each result.
  using MergeListFn =
      std::function<std::vector<PerReplica<Value>>(Strategy&, std::span<const PerReplica<Value>>)>;
  std::vector<Value> merge_call_list(const MergeListFn& merge, std::span<const Value> arguments,
                                     SourceSite site = SourceSite::current()) const;

 private:
  friend LOCKSTEP_API ReplicaContext replica_context(SourceSite site);
  ReplicaContext(internal::Tracer& tracer, std::uint64_t serial) : tracer_(&tracer), serial_(serial) {}
  void check(std::string_view method, const SourceSite& site) const;
  static Value value_of(const Operand& argument) { return argument.value_for("merge_call"); }
  std::vector<Value> all_reduce_list(ReduceOp op, std::span<const Value> values, SourceSite site) const;
  template <class F, std::size_t... kIndex>
  auto merge_values(const F& merge, const std::vector<Value>& arguments, SourceSite site,
                    std::index_sequence<kIndex...>) const {
    using R = std::invoke_result_t<const F&, Strategy&,
                                   decltype((void(kIndex), std::declval<const PerReplica<Value>&>()))...>;
    if constexpr (std::is_void_v<R>) {
      merge_call_list(
          [&](Strategy& strategy, [[maybe_unused]] std::span<const PerReplica<Value>> values) {
            merge(strategy, values[kIndex]...);
            return std::vector<PerReplica<Value>>();
          },
          arguments, site);
    } else {
      std::shared_ptr<const R> structure;
      const auto results = merge_call_list(
          [&](Strategy& strategy, [[maybe_unused]] std::span<const PerReplica<Value>> values) {
            structure = std::make_shared<const R>(merge(strategy, values[kIndex]...));
            return nest::leaves<PerReplica<Value>>(*structure);
          },
          arguments, site);
      return nest::refill<Value>(*structure, results);
    }
  }

  internal::Tracer* tracer_;
  std::uint64_t serial_;  // of the context it was asked for in
};

// The context of the replica being traced; throws FailedPrecondition outside of one.
LOCKSTEP_API ReplicaContext replica_context(SourceSite site = SourceSite::current());

}  // namespace lockstep
