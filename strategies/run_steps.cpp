#include "lockstep/strategies/run_steps.h"

namespace lockstep {

void MultiStepContext::set_last_step_output(const std::string& name, const PerReplica<Value>& value,
                                            std::optional<ReduceOp> reduce) {
  if (!in_replica_context()) {
    outputs_[name] = reduce ? PerReplica<Value>(strategy_->reduce(*reduce, value)) : value;
    return;
  }
  if (!reduce) {
    throw InvalidArgument(
        str("output '", name, "' is set in replica context: say how the replicas' values become one"));
  }
  throw FailedPrecondition(
      str("output '", name, "' is set in replica context, whose values cannot leave it by themselves: give ",
          "it back from run() and set it outside, with the reduction"));
}

MultiStepContext run_steps(
    Strategy& strategy, const BatchSource& source, std::int64_t iterations, std::vector<InputSpec> inputs,
    const std::function<void(MultiStepContext&, std::span<const PerReplica<Value>>)>& fn,
    std::map<std::string, PerReplica<Tensor>> initial) {
  internal::require_cross_replica(&strategy, "run_steps()");
  if (iterations < 0) throw InvalidArgument(str("run_steps(): ", iterations, " iterations cannot be run"));
  MultiStepContext context;
  context.strategy_ = &strategy;
  const auto step = strategy.cross_function(std::move(inputs), [&](std::span<const PerReplica<Value>> batch) {
    context.outputs_.clear();
    fn(context, batch);
    return context.outputs_;
  });
  for (const auto& [name, value] : initial) {
    if (!context.outputs_.contains(name))
      throw InvalidArgument(
          str("run_steps(): there is an initial value for '", name, "', which is no output"));
  }
  if (!initial.empty() && initial.size() != context.outputs_.size())
    throw InvalidArgument("run_steps(): give initial values for all outputs, or for none");
  context.outputs_.clear();
  context.last_ = std::move(initial);
  for (; context.iterations_ < iterations; ++context.iterations_) {
    const std::optional<std::vector<PerReplica<Tensor>>> batch = source();
    if (!batch) {
      throw RunError(
          ErrorCode::kFailedPrecondition,
          str("the source of batches ended after ", context.iterations_, " of ", iterations, " iterations"),
          {}, static_cast<std::uint64_t>(context.iterations_));
    }
    try {
      context.last_ = step.call(*batch);
    } catch (const Error& error) {
      std::throw_with_nested(RunError(error.code(),
                                      str("iteration ", context.iterations_, ": ", error.message()),
                                      error.place(), static_cast<std::uint64_t>(context.iterations_)));
    }
  }
  return context;
}

}  // namespace lockstep
