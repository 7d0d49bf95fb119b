// strategies/run_steps.h - many steps in one call.
//
//   MultiStepContext last = run_steps(strategy, source, 100, [&](MultiStepContext& context, std::pair<PerReplica<Value>, PerReplica<Value>> batch) {
//     strategy.run([&](Value x, Value y) {
//       context.set_last_step_output("loss", train(x, y), ReduceOp::kSum);       // here, or outside of run()
//     }, batch.first, batch.second);
//   });
//   last.last_step_outputs().at("loss");
//
// The function is traced once, in cross-replica context. A source is any callable that returns the next batch
// (any nest of PerReplica<Tensor>: strategies/trace/nest.h), or nothing when it has ended; strategies do not
// know datasets. A source is C++ code of the caller that may block, throw or be tied to its thread; in a task
// of the executor it would hold a thread that the step needs. So with a source the loop is here, on the
// caller's thread: every iteration is a run of the one compiled program on the next batch. Without one the
// loop is the program's own (Program::run_n), and no code of the caller runs in between.
//
// Either way each iteration commits separately, the next begins when it has ended, and an error says how many
// committed. A while_loop in a cross-replica function differs: all its iterations commit together, with the
// step they belong to.
//
// Thread safety: run_steps as Strategy::run; source and fn are called on the caller's thread. A
// MultiStepContext is for one thread at a time.
#pragma once

#include <any>
#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/strategies/strategy.h"
#include "lockstep/strategies/trace/element_spec.h"

namespace lockstep {

// The next batch, one value per input.
using BatchSource = std::function<std::optional<std::vector<PerReplica<Tensor>>>()>;
// Values of outputs before the first iteration. If there are any, they must name exactly the outputs that the
// function sets, with their dtypes, shapes and kinds: a slot for each replica if the output differs between
// replicas (broadcast() gives such values), one value if it does not.
using StepOutputs = std::map<std::string, PerReplica<Tensor>>;

class LOCKSTEP_API MultiStepContext {
 public:
  using Fn = std::function<void(MultiStepContext&, std::span<const PerReplica<Value>>)>;

  // Called while the function is traced. The last call for a name counts. In cross-replica context: the value
  // as it is, or with `reduce` combined over replicas. In replica context it is combined, and `reduce` must
  // be given (InvalidArgument).
  void set_last_step_output(const std::string& name, const PerReplica<Value>& value,
                            std::optional<ReduceOp> reduce = std::nullopt,
                            SourceSite site = SourceSite::current());
  // Any object, kept as given while tracing: set once, since the function is traced once.
  void set_non_tensor_output(const std::string& name, std::any value);

  // After the run: the outputs of the last iteration; the initial values if there was none.
  const StepOutputs& last_step_outputs() const { return last_; }
  const std::map<std::string, std::any>& non_tensor_outputs() const { return non_tensor_outputs_; }
  std::int64_t iterations() const { return iterations_; }

 private:
  friend class MultiStepRunner;
  Strategy* strategy_ = nullptr;
  std::map<std::string, PerReplica<Value>> outputs_;  // while tracing
  StepOutputs last_;
  std::map<std::string, std::any> non_tensor_outputs_;
  std::int64_t iterations_ = 0;
};

// Without a source. Throws RunError saying how many iterations committed.
LOCKSTEP_API MultiStepContext run_steps(Strategy& strategy, std::int64_t iterations,
                                        const std::function<void(MultiStepContext&)>& fn,
                                        StepOutputs initial = {}, SourceSite site = SourceSite::current());

// The batches are lists of values with the given specs. Throws what a run throws, and RunError
// (kFailedPrecondition), saying how many iterations committed, if the source ends before `iterations`.
LOCKSTEP_API MultiStepContext run_steps(Strategy& strategy, const BatchSource& source,
                                        std::int64_t iterations, std::vector<InputSpec> inputs,
                                        const MultiStepContext::Fn& fn, StepOutputs initial = {},
                                        SourceSite site = SourceSite::current());

namespace internal {

// What run_steps returns if there is nothing to run.
LOCKSTEP_API MultiStepContext no_steps(Strategy& strategy, StepOutputs initial, SourceSite site);
[[noreturn]] LOCKSTEP_API void source_ended(std::int64_t committed, std::int64_t iterations, SourceSite site);
[[noreturn]] LOCKSTEP_API void source_is_empty(SourceSite site);  // for compat::experimental_run

}  // namespace internal

// The batches are nests: fn(MultiStepContext&, the nest with PerReplica<Value> in place of
// PerReplica<Tensor>). The first batch determines the inputs (element_spec); with 0 iterations nothing is
// taken from the source and fn is not called.
template <class Source, class F>
requires requires(Source& source) {
  { source().has_value() } -> std::convertible_to<bool>;
}
MultiStepContext run_steps(Strategy& strategy, Source&& source, std::int64_t iterations, const F& fn,
                           StepOutputs initial = {}, SourceSite site = SourceSite::current()) {
  if (iterations == 0) return internal::no_steps(strategy, std::move(initial), site);
  const auto first = source();
  if (!first.has_value()) internal::source_ended(0, iterations, site);
  bool is_first = true;
  const BatchSource batches = [&]() -> std::optional<std::vector<PerReplica<Tensor>>> {
    if (std::exchange(is_first, false)) return nest::leaves<PerReplica<Tensor>>(*first);
    const auto next = source();
    if (!next.has_value()) return std::nullopt;
    return nest::leaves<PerReplica<Tensor>>(*next);
  };
  return run_steps(
      strategy, batches, iterations, element_spec(*first),
      [&](MultiStepContext& context, std::span<const PerReplica<Value>> values) {
        fn(context, nest::refill<PerReplica<Value>>(*first, values));
      },
      std::move(initial), site);
}

}  // namespace lockstep
