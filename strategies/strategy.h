// strategies/strategy.h - distributing one step over replicas: a recipe of passes, and the API around it.
//
//   MirroredStrategy strategy({.devices = {"cpu:0", "cpu:1"}});
//   auto scope = strategy.scope();                              // variables made here belong to it
//   Variable w("w", Tensor::zeros({2, 1}));
//   auto step = strategy.function({{DType::kF32, {kUnknown, 2}, "x"}}, [=](Value x) { return matmul(x, w); });
//   PerReplica<Tensor> y = step(PerReplica<Tensor>({x0, x1}));
//   Tensor total = strategy.reduce(ReduceOp::kSum, y, 0);       // over replicas and rows
//
// A function is traced once, when it is made; side effects outside of the graph (printing, counting) happen
// then and never again. The traced step goes through pipeline(), which your own strategy overrides, and is
// compiled for the strategy's runtime:
//
//   class Compressed : public Strategy { ... PassPipeline pipeline() const override { ... } };
//
// Cross-replica methods (reduce, run, update, ...) work in a scope, outside of all scopes, and inside merge
// and cross-replica functions, where they make nodes; in the code of a replica they are errors. See
// strategies/trace/context.h.
//
// A Strategy does not move (handles point at it) and must outlive everything made with it. Thread safety:
// methods may be called from any thread; scopes and tracing belong to their thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/runtime.h"
#include "lockstep/graph/ops/collectives.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/transform/pipeline.h"
#include "lockstep/strategies/passes/workers_exchange.h"
#include "lockstep/strategies/trace/context.h"
#include "lockstep/strategies/trace/function.h"
#include "lockstep/strategies/trace/nest.h"
#include "lockstep/strategies/trace/removed_spellings.h"
#include "lockstep/strategies/trace/replica_context.h"
#include "lockstep/strategies/trace/step.h"
#include "lockstep/strategies/trace/tracer.h"
#include "lockstep/strategies/trace/values.h"
#include "lockstep/strategies/trace/variable.h"

namespace lockstep {

class GroupRound;
class Membership;

// The options that every strategy takes besides its devices.
struct StrategyOptions {
  // Absent: the strategy makes its own, with as many logical CPUs as it needs.
  std::optional<Runtime> runtime = std::nullopt;
  CompileOptions compile = {};  // `variables` absent: a store of the strategy's own
  // Which of several workers this process is. They run the same program, each with replicas of its own, as many as the others; the
  // runtime of each has the group "world", whose ranks are the workers'.
  WorkerSpec worker = {};
  // Compares what workers are about to run, before they do: absent, nothing is compared. Kept alive.
  std::shared_ptr<Membership> membership = nullptr;
  WorkersExchange exchange = {};  // how they exchange values
  // How passes are checked: see graph/transform/pipeline.h; bench/README.md (pipeline_scale) has the cost.
  PipelineChecks checks = default_checks();
};

class LOCKSTEP_API Strategy : public internal::Tracer, public internal::RemovedSpellings {
 public:
  ~Strategy() override;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  // From Tracer: name(), which your own strategy defines; num_replicas_in_sync(), num_local_replicas(), first_replica(), worker(),
  // worker_devices(), variables(), may_drift().
  // The passes that turn a traced step into the graph that runs.
  virtual PassPipeline pipeline() const = 0;

  // --- properties
  virtual const std::vector<std::string>& parameter_devices() const { return worker_devices(); }
  const Runtime& runtime() const { return runtime_; }
  VariableHome variable_home(std::int64_t replica) const override;  // on the parameter device

  // Makes this strategy the active one of the thread, in cross-replica context, while the guard lives.
  // Entering the same strategy again changes nothing (an update stays one); entering another one is an error,
  // and so is entering it inside a replica.
  class [[nodiscard]] Scope {
   public:
    explicit Scope(Strategy& strategy) : frame_(&strategy, internal::kind_of_scope(), current_builder()) {}

   private:
    internal::ContextFrame frame_;
  };
  Scope scope(SourceSite site = SourceSite::current());

  // --- functions
  // Traces `fn`, a function of Values (one per input, those of one replica), once, and clones it per replica.
  // A parameter may be a nest, which takes one input for each of its leaves: strategies/trace/nest.h. Calling
  // the returned function gives the same structure as `fn` (nothing, a Value, a Variable, which is read, or
  // any nest of them), with PerReplica<Tensor> in place of Value.
  template <class F>
  auto function(std::vector<InputSpec> inputs, F fn, SourceSite site = SourceSite::current()) {
    return named_function(std::move(inputs), std::move(fn), "function()", site);
  }
  // Traces a function in cross-replica context: its inputs are PerReplica<Value>, and it calls run(),
  // reduce() and other cross-replica methods of this strategy. A whole epoch can be one graph.
  template <class F>
  auto cross_function(std::vector<InputSpec> inputs, F fn, SourceSite site = SourceSite::current()) {
    return internal::make_function<PerReplica<Value>>(
        std::move(inputs), fn, site,
        [this](std::vector<InputSpec> specs, const CrossTraceFn& trace, SourceSite where) {
          return finish_step(trace_cross(std::move(specs), trace, "cross_function()", where),
                             "cross_function()", where);
        });
  }

  // Distributes a step that comes as a graph, from a file or a builder. If it is the plain step of one
  // replica, every replica gets its own placeholders, except for those in `shared` (they come first among the
  // inputs). If it already has replicated regions, for as many replicas as this strategy has, it is taken as
  // it is: each placeholder is an input of its own, each result single. Throws PassError.
  Step distribute(Graph step, const std::vector<std::string>& shared = {},
                  SourceSite site = SourceSite::current());

  // Runs `fn` once per replica on its slots of the arguments, which may be nests: run(fn, std::pair(x, y))
  // calls fn(std::pair<Value, Value>). Inside a cross-replica function or a merge function this makes nodes;
  // it takes PerReplica<Value> and returns nests of them. Elsewhere it takes PerReplica<Tensor>, and traces,
  // compiles and runs `fn` at once, on every call: make a function() of code that runs often. Without
  // arguments the context decides between the two, and the result is a nest of RunResults
  // (strategies/trace/values.h).
  template <class F>
  auto run(const F& fn, SourceSite site = SourceSite::current()) {
    using R = typename decltype(internal::signature_of<F>())::Result;
    const bool traced = current_builder() != nullptr && current_strategy() == this;
    if constexpr (std::is_void_v<R>) {
      traced ? run_traced(fn, {}, site) : run_list(fn, {}, {}, site);
    } else {
      const auto result = [&](const auto& leaf) { return RunResult(leaf, site); };
      return traced ? nest::rebuild<RunResult>(run_traced(fn, {}, site), result)
                    : nest::rebuild<RunResult>(run_list(fn, {}, {}, site), result);
    }
  }
  template <class F, class A>
  auto run(const F& fn, const A& a, SourceSite site = SourceSite::current()) {
    return run_at(site, fn, a);
  }
  template <class F, class A, class B>
  auto run(const F& fn, const A& a, const B& b, SourceSite site = SourceSite::current()) {
    return run_at(site, fn, a, b);
  }
  template <class F, class A, class B, class C>
  auto run(const F& fn, const A& a, const B& b, const C& c, SourceSite site = SourceSite::current()) {
    return run_at(site, fn, a, b, c);
  }
  template <class F, class A, class B, class C, class D>
  auto run(const F& fn, const A& a, const B& b, const C& c, const D& d,
           SourceSite site = SourceSite::current()) {
    return run_at(site, fn, a, b, c, d);
  }
  template <class F, class A1, class A2, class A3, class A4, class A5>
  auto run(const F& fn, const A1& a1, const A2& a2, const A3& a3, const A4& a4, const A5& a5,
           SourceSite site = SourceSite::current()) {
    return run_at(site, fn, a1, a2, a3, a4, a5);
  }
  template <class F, class A1, class A2, class A3, class A4, class A5, class A6>
  auto run(const F& fn, const A1& a1, const A2& a2, const A3& a3, const A4& a4, const A5& a5, const A6& a6,
           SourceSite site = SourceSite::current()) {
    return run_at(site, fn, a1, a2, a3, a4, a5, a6);
  }
  template <class F, class A1, class A2, class A3, class A4, class A5, class A6, class... More>
  requires(sizeof...(More) > 0) void run(const F&, const A1&, const A2&, const A3&, const A4&, const A5&,
                                         const A6&, const More&...) {
    static_assert(sizeof...(More) == 0,
                  "run() takes up to 6 arguments: use run_at(SourceSite::current(), fn, ...), or a nest");
  }
  // Any number of arguments, after the line that run() is called from.
  template <class F, class... Arguments>
  auto run_at(SourceSite site, const F& fn, const Arguments&... arguments) {
    constexpr bool kTraced = (nest::kLeavesAre<Arguments, PerReplica<Value>> && ...);
    constexpr bool kComputed = (nest::kLeavesAre<Arguments, PerReplica<Tensor>> && ...);
    static_assert(kTraced || kComputed,
                  "run() takes tensors, or Values where a function is traced, or nests of them, one argument "
                  "for each parameter: write Tensor::scalar(5.F) for a number");
    if constexpr (kTraced || kComputed) {
      using Slots = std::conditional_t<kTraced, PerReplica<Value>, PerReplica<Tensor>>;
      std::vector<Slots> list;
      const auto add = [&](const auto& leaf) { list.push_back(Slots(leaf)); };
      (nest::flatten(arguments, add), ...);
      if constexpr ((std::is_convertible_v<const Arguments&, Slots> && ...)) {
        return run_leaves(fn, list, site);
      } else {
        constexpr bool kFits = std::is_invocable_v<const F&, nest::Rebound<Arguments, Value>...>;
        static_assert(kFits, "the parameters of run()'s function are the nests of its arguments, of Values");
        if constexpr (kFits)
          return run_leaves(internal::function_of_leaves<Value>(fn, arguments...), list, site);
      }
    }
  }

  // Runs at once, with a list of arguments; fn takes one Value for each, or a std::span<const Value>. The
  // options apply to this one run: its deadline, cancellation and observer.
  template <class F>
  auto run_list(const F& fn, std::span<const PerReplica<Tensor>> arguments, const RunOptions& options = {},
                SourceSite site = SourceSite::current()) {
    return named_function(internal::specs_of(arguments, site), fn, "run()", site)
        .call(arguments, options, site);
  }

  // --- across replicas
  // Combines the slots. With an axis, each replica's value is reduced over that axis first, and a mean is the
  // total sum over the total count, however unevenly rows are spread. The sum or product of a value that is
  // the same on all replicas is an error if there are several replicas (divide first); its mean is the value.
  // The mean of integers is f64 (except for one value without an axis). Of several workers: over the replicas of all of them, which
  // all have to call it; a single value is each worker's contribution.
  Tensor reduce(ReduceOp op, const PerReplica<Tensor>& value, std::optional<std::int64_t> axis = std::nullopt,
                SourceSite site = SourceSite::current());
  Value reduce(ReduceOp op, const PerReplica<Value>& value, std::optional<std::int64_t> axis = std::nullopt,
               SourceSite site = SourceSite::current());
  ReduceResult reduce(ReduceOp op, const RunResult& value, std::optional<std::int64_t> axis = std::nullopt,
                      SourceSite site = SourceSite::current());
  // The operation as text: "sum", "mean", "min", "max" or "prod".
  template <class Slots>
  auto reduce(std::string_view op, const Slots& value, std::optional<std::int64_t> axis = std::nullopt,
              SourceSite site = SourceSite::current()) {
    return reduce(internal::parse_op(op, "reduce()", site), value, axis, site);
  }
  // Concatenates the slots of all replicas along an axis, the only one in which they may differ. A value that
  // is the same on all replicas is repeated once per replica. Of several workers: of all of them, whose slots have one shape.
  Tensor gather(const PerReplica<Tensor>& value, std::int64_t axis, SourceSite site = SourceSite::current());
  Value gather(const PerReplica<Value>& value, std::int64_t axis, SourceSite site = SourceSite::current());
  ReduceResult gather(const RunResult& value, std::int64_t axis, SourceSite site = SourceSite::current());
  // The slots of this process's replicas; for a single value, its only slot.
  template <class T>
  static std::vector<T> local_results(const PerReplica<T>& value) {
    return value.values();
  }
  static PlaceResult<std::vector<Value>, std::vector<Tensor>> local_results(
      const RunResult& value, SourceSite site = SourceSite::current());
  static std::vector<Tensor> local_results(const Tensor& value) { return {value}; }
  static std::vector<Value> local_results(const Value& value) { return {value}; }
  // A value for every replica: one copy of the caller's tensor, shared by all slots; of several workers that of the first.
  PerReplica<Tensor> broadcast(const Tensor& value, SourceSite site = SourceSite::current());
  // f(replica id, number of replicas) for each replica of this worker; never single. An empty tensor is an error.
  PerReplica<Tensor> distribute_values_from_function(
      const std::function<Tensor(std::int64_t replica, std::int64_t replicas)>& f,
      SourceSite site = SourceSite::current());
  // Calls fn(the copy, this copy's slots of the arguments) for each copy of the variable, in update context.
  // Arguments are single or mirrored. Only inside cross-replica and merge functions. Returns fn's value:
  // mirrored, or single if it depends on no replica.
  PerReplica<Value> update(const Variable& variable,
                           const std::function<Value(const Variable&, std::span<const Value>)>& fn,
                           std::span<const PerReplica<Value>> arguments,
                           SourceSite site = SourceSite::current());
  // The same with the arguments one by one: fn(the copy, a Value for each). If fn returns nothing, the result
  // is the variable's new value.
  //
  //   strategy.update(w, [](const Variable& copy, Value by) { copy.assign_add(by); }, by);
  template <class F>
  requires(!std::is_invocable_v<const F&, const Variable&, std::span<const Value>>) PerReplica<Value> update(
      const Variable& variable, const F& fn, SourceSite site = SourceSite::current()) {
    return update_at(site, variable, fn);
  }
  template <class F, class A>
  requires std::is_convertible_v<const A&, PerReplica<Value>> PerReplica<Value> update(
      const Variable& variable, const F& fn, const A& a, SourceSite site = SourceSite::current()) {
    return update_at(site, variable, fn, a);
  }
  template <class F, class A, class B>
  requires std::is_convertible_v<const A&, PerReplica<Value>> PerReplica<Value> update(
      const Variable& variable, const F& fn, const A& a, const B& b,
      SourceSite site = SourceSite::current()) {
    return update_at(site, variable, fn, a, b);
  }
  template <class F, class... More>
  PerReplica<Value> update(const Variable& variable, const F& fn, const internal::SlotArgument& a,
                           const internal::SlotArgument& b, const internal::SlotArgument& c,
                           const More&... more) {
    return update_at(a.site, variable, fn, a.slots, b.slots, c.slots, more...);
  }
  // Any number of arguments, after the line that update() is called from.
  template <class F, class... Arguments>
  PerReplica<Value> update_at(SourceSite site, const Variable& variable, const F& fn,
                              const Arguments&... arguments) {
    const std::vector<PerReplica<Value>> list{PerReplica<Value>(arguments)...};
    return update(
        variable,
        [&](const Variable& copy, [[maybe_unused]] std::span<const Value> values) {
          return internal::call_update(copy, fn, values, site, std::index_sequence_for<Arguments...>());
        },
        std::span<const PerReplica<Value>>(list), site);
  }

  // The same without a variable: calls fn once per replica's device, in update context.
  PerReplica<Value> update_each(const std::function<Value(std::span<const Value>)>& fn,
                                std::span<const PerReplica<Value>> arguments, std::string_view method,
                                SourceSite site = SourceSite::current());

  // Of several workers: what all do together outside of functions, at the same point of the program
  // (core/communicators/group_round.h). Errors name a worker that is lost, as those of functions do.
  void run_round(const std::function<void(GroupRound&)>& body) const;

 protected:
  // Devices: one per replica, in their order; any spelling. Throws InvalidArgument for an empty list, a
  // device that is listed twice, and one that the runtime does not have.
  explicit Strategy(const std::vector<std::string>& devices, StrategyOptions options = {},
                    SourceSite site = SourceSite::current());
  // Throws if a traced step does not suit the strategy; called before its passes run.
  virtual void check_step(const Graph& step) const;
  const WorkersExchange& workers_exchange() const { return exchange_; }
  // Called after each run of a function: with the steps that were committed, and null where it has succeeded. May throw what the
  // caller is to see instead of the failure.
  virtual void after_run(std::uint64_t steps, const Error* failure) const;

 private:
  // Runs the strategy's passes on the step graph and compiles the result. An error that knows no line gets
  // that of the method's call.
  Step finish_step(Step::Parts parts, std::string_view method, const SourceSite& site);
  void name_losses(const std::function<void()>& exchanges) const;
  template <class F>
  auto named_function(std::vector<InputSpec> inputs, F fn, std::string_view method, SourceSite site) {
    return internal::make_function<Value>(
        std::move(inputs), fn, site,
        [this, method](std::vector<InputSpec> specs, const TraceFn& trace, SourceSite where) {
          return finish_step(trace_replicas(std::move(specs), trace, method, where), method, where);
        });
  }
  template <class F, class Slots>
  auto run_leaves(const F& fn, const std::vector<Slots>& arguments, SourceSite site) {
    if constexpr (std::is_same_v<Slots, PerReplica<Value>>) {
      return run_traced(fn, arguments, site);
    } else {
      return run_list(fn, arguments, {}, site);
    }
  }
  template <class F>
  auto run_traced(const F& fn, const std::vector<PerReplica<Value>>& arguments, SourceSite site) {
    using R = typename decltype(internal::signature_of<F>())::Result;
    std::shared_ptr<const void> structure;
    const std::vector<PerReplica<Value>> results = replicate(
        arguments,
        [&](std::span<const Value> values) {
          auto [flat, shape] = internal::flat_call<Value>(fn, values, site);
          structure = std::move(shape);
          return std::move(flat);
        },
        ContextKind::kReplica, "run()", site);
    return internal::rebuilt<PerReplica<Value>, R>(structure, results);
  }

  Tensor compute(Graph graph, const std::vector<Tensor>& feeds, SourceSite site) const override;
  // Throws on all workers unless they are about to run the same.
  void agree(const Graph& step, std::string_view passes, std::string_view method) const;

  Runtime runtime_;
  CompileOptions compile_;
  PipelineChecks checks_;
  std::shared_ptr<Membership> membership_;
  WorkersExchange exchange_;
  mutable std::atomic<std::uint64_t> agreed_{0};  // subjects so far
};

// The active strategy if no scope was entered: one replica on the CPU.
LOCKSTEP_API Strategy& default_strategy();

}  // namespace lockstep
