// strategies/replica_context.h - what the code of one replica can ask and do.
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
// A merge function is traced once, in cross-replica context, with the values of all replicas. What it gives as a Value (or a
// single PerReplica) every replica gets; of a PerReplica with a slot for each, each gets its own. It may use no value of the
// replica but its arguments. A ReplicaContext is good while its function is being traced.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/graph/ops/collectives.h"
#include "lockstep/strategies/context.h"
#include "lockstep/strategies/nest.h"
#include "lockstep/strategies/values.h"

namespace lockstep {

class LOCKSTEP_API ReplicaContext {
 public:
  Strategy& strategy() const;
  std::int64_t num_replicas_in_sync() const;
  Value replica_id(SourceSite site = SourceSite::current()) const;

  // The values of all replicas combined, the same on each; of a nest, leaf by leaf in one node per dtype.
  Value all_reduce(ReduceOp op, const Operand& value) const;
  template <class N>
  requires(!std::is_convertible_v<const N&, Operand>) N all_reduce(ReduceOp op, const N& nest_of_values)
  const {
    std::vector<Value> flat;
    nest::flatten(nest_of_values, [&](const Value& leaf) { flat.push_back(leaf); });
    const std::vector<Value> reduced = all_reduce_list(op, flat);
    std::size_t next = 0;
    return nest::rebuild<Value>(nest_of_values, [&](const Value&) { return reduced[next++]; });
  }
  // The values of all replicas one behind the other.
  Value all_gather(const Operand& value, std::int64_t axis = 0) const;

  // merge(Strategy&, PerReplica<Value>...) with the arguments of all replicas.
  template <class F, class... Arguments>
  auto merge_call(const F& merge, const Arguments&... arguments) const {
    using R = std::invoke_result_t<const F&, Strategy&, decltype((void(arguments), PerReplica<Value>()))...>;
    const std::vector<Value> list{Operand(arguments).value_for("merge_call")...};
    if constexpr (std::is_void_v<R>) {
      merge_list(list, [&](std::span<const PerReplica<Value>> values) {
        spread(merge, values, std::index_sequence_for<Arguments...>());
        return std::vector<PerReplica<Value>>();
      });
    } else {
      std::shared_ptr<const R> structure;
      const std::vector<Value> results = merge_list(list, [&](std::span<const PerReplica<Value>> values) {
        structure = std::make_shared<const R>(spread(merge, values, std::index_sequence_for<Arguments...>()));
        std::vector<PerReplica<Value>> flat;
        nest::flatten(*structure, [&](const auto& leaf) { flat.push_back(PerReplica<Value>(leaf)); });
        return flat;
      });
      std::size_t next = 0;
      return nest::rebuild<Value>(*structure, [&](const auto&) { return results[next++]; });
    }
  }

 private:
  friend LOCKSTEP_API ReplicaContext replica_context();
  ReplicaContext(Strategy& strategy, std::uint64_t serial) : strategy_(&strategy), serial_(serial) {}
  void check(std::string_view method) const;
  using MergeListFn = std::function<std::vector<PerReplica<Value>>(std::span<const PerReplica<Value>>)>;
  std::vector<Value> merge_list(std::span<const Value> arguments, const MergeListFn& merge) const;
  std::vector<Value> all_reduce_list(ReduceOp op, std::span<const Value> values) const;
  template <class F, std::size_t... kIndex>
  auto spread(const F& merge, std::span<const PerReplica<Value>> values,
              std::index_sequence<kIndex...>) const {
    return merge(*strategy_, values[kIndex]...);
  }

  Strategy* strategy_;
  std::uint64_t serial_;  // of the context it was asked for in
};

// The context of the replica being traced; throws FailedPrecondition outside of one.
LOCKSTEP_API ReplicaContext replica_context();

}  // namespace lockstep
