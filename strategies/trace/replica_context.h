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
// A merge function is traced once, in cross-replica context, with the values of all replicas. If it returns a
// Value (or a single PerReplica), every replica gets it; if it returns a PerReplica with a slot for each
// replica, each replica gets its own slot. It may use no value of the replica except its arguments. A
// ReplicaContext is valid while its function is being traced. Thread safety: for the thread that traces the
// function; on any other thread its methods throw FailedPrecondition.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/ops/collectives.h"
#include "lockstep/graph/ops/gradient_rule.h"
#include "lockstep/strategies/trace/context.h"
#include "lockstep/strategies/trace/nest.h"
#include "lockstep/strategies/trace/values.h"

namespace lockstep {

namespace internal {
// parse_reduce_op(), with the caller's line in its error.
LOCKSTEP_API ReduceOp parse_op(std::string_view text, std::string_view method, const SourceSite& site);
}  // namespace internal

class LOCKSTEP_API ReplicaContext {
  template <class A>
  static constexpr bool kIsNest = !std::is_convertible_v<const A&, Operand> && !std::is_same_v<A, SourceSite>;

 public:
  Strategy& strategy(SourceSite site = SourceSite::current()) const;
  std::int64_t num_replicas_in_sync(SourceSite site = SourceSite::current()) const;
  // i32: 0, 1, ... over all workers; the local id counts the replicas of this process, which here are all
  // replicas.
  Value replica_id(SourceSite site = SourceSite::current()) const;
  Value local_replica_id(SourceSite site = SourceSite::current()) const { return replica_id(site); }

  // Combines the values of all replicas; the result is the same on each. A nest is combined leaf by leaf, in
  // one node per dtype. The mean of integers is f64. For slices, the rows of all replicas concatenated: their
  // sum, or the mean.
  Value all_reduce(ReduceOp op, const Operand& value) const;
  IndexedSlices all_reduce(ReduceOp op, const IndexedSlices& slices,
                           SourceSite site = SourceSite::current()) const;
  template <class N>
  requires(!std::is_convertible_v<const N&, Operand> && !std::is_same_v<N, IndexedSlices>) N
      all_reduce(ReduceOp op, const N& nest_of_values, SourceSite site = SourceSite::current())
  const {
    static_assert(!nest::kHolds<N, IndexedSlices>,
                  "all_reduce() takes slices by themselves, not in a nest: their rows are put together, not "
                  "added up number by number");
    return nest::refill<Value>(nest_of_values,
                               all_reduce_list(op, nest::leaves<Value>(nest_of_values), site));
  }
  // The values of all replicas, concatenated.
  Value all_gather(const Operand& value, std::int64_t axis = 0) const;
  // Combines the values of all replicas and gives this replica its piece: the axis is cut evenly into as many
  // pieces as there are replicas.
  Value reduce_scatter(ReduceOp op, const Operand& value, std::int64_t axis = 0) const;

  // Calls merge(Strategy&, PerReplica<Value>...) with the arguments of all replicas. An argument that is
  // known to be the same on all of them arrives as a single or mirrored value, whose sum over replicas is
  // refused as everywhere. A nest of values arrives as a nest of PerReplica<Value>.
  template <class F>
  auto merge_call(const F& merge, SourceSite site = SourceSite::current()) const {
    return merge_nests(merge, site);
  }
  template <class F>
  auto merge_call(const F& merge, const Operand& a, SourceSite site = SourceSite::current()) const {
    return merge_nests(merge, site, value_of(a));
  }
  template <class F>
  auto merge_call(const F& merge, const Operand& a, const Operand& b,
                  SourceSite site = SourceSite::current()) const {
    return merge_nests(merge, site, value_of(a), value_of(b));
  }
  template <class F>
  auto merge_call(const F& merge, const Operand& a, const Operand& b, const Operand& c,
                  SourceSite site = SourceSite::current()) const {
    return merge_nests(merge, site, value_of(a), value_of(b), value_of(c));
  }
  template <class F, class... More>
  auto merge_call(const F& merge, const Operand& a, const Operand& b, const Operand& c, const Operand& d,
                  const More&... more) const {
    return merge_nests(merge, a.site(), value_of(a), value_of(b), value_of(c), value_of(d),
                       value_of(Operand(more, a.site()))...);
  }
  template <class F, class A>
  requires(kIsNest<A>) auto merge_call(const F& merge, const A& a,
                                       SourceSite site = SourceSite::current()) const {
    return merge_nests(merge, site, a);
  }
  template <class F, class A, class B>
  requires(kIsNest<A> || kIsNest<B>) auto merge_call(const F& merge, const A& a, const B& b,
                                                     SourceSite site = SourceSite::current()) const {
    return merge_nests(merge, site, a, b);
  }
  template <class F, class A, class B, class C>
  requires(kIsNest<A> || kIsNest<B> ||
           kIsNest<C>) auto merge_call(const F& merge, const A& a, const B& b, const C& c,
                                       SourceSite site = SourceSite::current()) const {
    return merge_nests(merge, site, a, b, c);
  }
  // Any number of arguments: merge(Strategy&, std::span<const PerReplica<Value>>) returns one value for each
  // result.
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
  template <class F, class... Nests>
  auto merge_nests(const F& merge, SourceSite site, const Nests&... nests) const {
    using Slots = PerReplica<Value>;
    constexpr bool kFits = std::is_invocable_v<const F&, Strategy&, nest::Rebound<Nests, Slots>...>;
    static_assert(kFits,
                  "a merge function takes Strategy& and, for each argument of merge_call(), a "
                  "PerReplica<Value>, or the nest of them that the argument is of Values");
    if constexpr (kFits) {
      using R = std::invoke_result_t<const F&, Strategy&, nest::Rebound<Nests, Slots>...>;
      std::vector<Value> arguments;
      for (const std::vector<Value>& leaves :
           {std::vector<Value>(), internal::given_leaves<Value>(nests, site)...})
        arguments.insert(arguments.end(), leaves.begin(), leaves.end());
      const auto call = [&](Strategy& strategy, [[maybe_unused]] std::span<const Slots> values) {
        [[maybe_unused]] std::size_t next = 0;
        [[maybe_unused]] const auto take = [&](const auto&) { return values[next++]; };
        // Braces guarantee the order of evaluation.
        const std::tuple<nest::Rebound<Nests, Slots>...> parts{nest::rebuild<Slots>(nests, take)...};
        return std::apply([&](const auto&... each) { return merge(strategy, each...); }, parts);
      };
      if constexpr (std::is_void_v<R>) {
        merge_call_list(
            [&](Strategy& strategy, std::span<const Slots> values) {
              call(strategy, values);
              return std::vector<Slots>();
            },
            arguments, site);
      } else {
        std::shared_ptr<const R> structure;
        const auto results = merge_call_list(
            [&](Strategy& strategy, std::span<const Slots> values) {
              structure = std::make_shared<const R>(call(strategy, values));
              return internal::given_leaves<Slots>(*structure, site);
            },
            arguments, site);
        return nest::refill<Value>(*structure, results);
      }
    }
  }

  internal::Tracer* tracer_;
  std::uint64_t serial_;  // of the context in which it was made
};

// The context of the replica being traced; throws FailedPrecondition outside of one.
LOCKSTEP_API ReplicaContext replica_context(SourceSite site = SourceSite::current());

}  // namespace lockstep
