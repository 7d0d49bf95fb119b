// strategies/run_steps.cpp - many steps in one call.
#include "lockstep/strategies/run_steps.h"

namespace lockstep {

void MultiStepContext::set_last_step_output(const std::string& name, const PerReplica<Value>& value,
                                            std::optional<ReduceOp> reduce, SourceSite site) {
  if (!in_replica_context()) {
    outputs_[name] =
        reduce ? PerReplica<Value>(strategy_->reduce(*reduce, value, std::nullopt, site)) : value;
    return;
  }
  if (!reduce) {
    throw InvalidArgument(
        str("output '", name, "' is set in replica context: say how the replicas' values become one"),
        place_of_call("set_last_step_output()", site));
  }
  const Value combined = replica_context().merge_call(
      [&](Strategy& strategy, const PerReplica<Value>& all) {
        return strategy.reduce(*reduce, all, std::nullopt, site);
      },
      value[0], site);
  internal::ContextFrame::current()->leave(combined, [this, name](const PerReplica<Value>& outside) {
    outputs_[name] = PerReplica<Value>(outside[0]);
  });
}

// Traces the function, and runs it.
class MultiStepRunner {
 public:
  MultiStepRunner(Strategy& strategy, std::int64_t iterations, StepOutputs initial, SourceSite site)
      : strategy_(strategy), iterations_(iterations), initial_(std::move(initial)), site_(site) {
    internal::require_cross_replica(&strategy, "run_steps()", site);
    if (iterations < 0)
      throw InvalidArgument(str("run_steps(): ", iterations, " iterations cannot be run"), place());
    context_.strategy_ = &strategy;
  }

  MultiStepContext nothing() {
    context_.last_ = std::move(initial_);
    return std::move(context_);
  }

  MultiStepContext loop(const std::function<void(MultiStepContext&)>& fn) {
    const auto step = strategy_.cross_function(
        {},
        [&] {
          fn(context_);
          return outputs();
        },
        site_);
    begin();
    if (iterations_ > 0) context_.last_ = step.call_n(static_cast<std::uint64_t>(iterations_), {});
    context_.iterations_ = iterations_;
    return std::move(context_);
  }

  MultiStepContext feed(const BatchSource& source, std::vector<InputSpec> inputs,
                        const MultiStepContext::Fn& fn) {
    const auto step = strategy_.cross_function(
        std::move(inputs),
        [&](std::span<const PerReplica<Value>> batch) {
          fn(context_, batch);
          return outputs();
        },
        site_);
    begin();
    for (; context_.iterations_ < iterations_; ++context_.iterations_) {
      const std::optional<std::vector<PerReplica<Tensor>>> batch = source();
      if (!batch) internal::source_ended(context_.iterations_, iterations_, site_);
      try {
        context_.last_ = step.call(*batch, {}, site_);
      } catch (const Error& error) {
        std::throw_with_nested(RunError(error.code(),
                                        str("iteration ", context_.iterations_, ": ", error.message()),
                                        error.place(), static_cast<std::uint64_t>(context_.iterations_)));
      }
    }
    return std::move(context_);
  }

 private:
  ErrorPlace place() const { return place_of_call("run_steps()", site_); }

  // The outputs that the traced function has set, checked against the initial values while the graph exists.
  const std::map<std::string, PerReplica<Value>>& outputs() const {
    for (const auto& [name, value] : initial_) {
      const auto found = context_.outputs_.find(name);
      if (found == context_.outputs_.end())
        throw InvalidArgument(
            str("run_steps(): there is an initial value for '", name, "', which is no output"), place());
      check_initial(name, value, found->second);
    }
    if (!initial_.empty() && initial_.size() != context_.outputs_.size())
      throw InvalidArgument("run_steps(): give initial values for all outputs, or for none", place());
    return context_.outputs_;
  }

  void check_initial(const std::string& name, const PerReplica<Tensor>& value,
                     const PerReplica<Value>& output) const {
    const std::string subject = str("run_steps(): the initial value for '", name, "' is ");
    if (value.empty()) throw InvalidArgument(subject + "empty", place());
    const auto replicas = static_cast<std::size_t>(strategy_.num_local_replicas());
    const bool several = strategy_.num_replicas_in_sync() > 1;
    const bool own = several && output.kind() == ReplicaKind::kPerReplica;
    const bool fits = own ? value.size() == replicas : !several || value.kind() != ReplicaKind::kPerReplica;
    if (!fits) {
      throw InvalidArgument(
          str(subject, to_string(value.kind()), ", the output ", to_string(output.kind()),
              own ? "; give a slot for each replica, as broadcast() does" : "; give the one value"),
          place());
    }
    const TensorSpec& wanted = output[0].spec();
    for (const Tensor& slot : value) {
      if (slot.dtype() == wanted.dtype && wanted.shape.admits(slot.shape())) continue;
      throw InvalidArgument(str(subject, slot.spec(), ", the output ", wanted), place());
    }
  }

  void begin() {
    context_.outputs_.clear();
    context_.last_ = std::move(initial_);
  }

  Strategy& strategy_;
  std::int64_t iterations_;
  StepOutputs initial_;
  SourceSite site_;
  MultiStepContext context_;
};

MultiStepContext run_steps(Strategy& strategy, std::int64_t iterations,
                           const std::function<void(MultiStepContext&)>& fn, StepOutputs initial,
                           SourceSite site) {
  return MultiStepRunner(strategy, iterations, std::move(initial), site).loop(fn);
}

MultiStepContext run_steps(Strategy& strategy, const BatchSource& source, std::int64_t iterations,
                           std::vector<InputSpec> inputs, const MultiStepContext::Fn& fn, StepOutputs initial,
                           SourceSite site) {
  return MultiStepRunner(strategy, iterations, std::move(initial), site).feed(source, std::move(inputs), fn);
}

void MultiStepContext::set_non_tensor_output(const std::string& name, std::any value) {
  non_tensor_outputs_[name] = std::move(value);
}

namespace internal {

MultiStepContext no_steps(Strategy& strategy, StepOutputs initial, SourceSite site) {
  return MultiStepRunner(strategy, 0, std::move(initial), site).nothing();
}

void source_ended(std::int64_t committed, std::int64_t iterations, SourceSite site) {
  throw RunError(ErrorCode::kFailedPrecondition,
                 str("the source of batches has ended after ", committed, " of ", iterations,
                     iterations == 1 ? " iteration" : " iterations"),
                 place_of_call("run_steps()", site), static_cast<std::uint64_t>(committed));
}

void source_is_empty(SourceSite site) {
  throw RunError(ErrorCode::kFailedPrecondition,
                 "experimental_run(): the source of batches has ended: there is none left",
                 place_of_call("experimental_run()", site), 0);
}

}  // namespace internal

}  // namespace lockstep
