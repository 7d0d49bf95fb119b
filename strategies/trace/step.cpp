// strategies/trace/step.cpp - a traced function of a strategy, distributed and compiled.
#include "lockstep/strategies/trace/step.h"

#include "lockstep/strategies/trace/context.h"

namespace lockstep {

Step::Step(Parts parts) : parts_(std::make_shared<const Parts>(std::move(parts))) {}

const Step::Parts& Step::parts() const {
  if (parts_ == nullptr)
    throw FailedPrecondition("this function is empty: make it with Strategy::function()");
  return *parts_;
}

std::vector<PerReplica<Tensor>> Step::run(std::span<const PerReplica<Tensor>> arguments,
                                          const RunOptions& options, SourceSite site) const {
  return run_n(1, arguments, options, site);
}

std::vector<PerReplica<Tensor>> Step::run_n(std::uint64_t steps,
                                            std::span<const PerReplica<Tensor>> arguments,
                                            const RunOptions& options, SourceSite site) const {
  std::vector<PerReplica<Tensor>> results;
  run_n(
      steps, arguments, options,
      [&](std::span<const PerReplica<Tensor>> made) { results.assign(made.begin(), made.end()); }, site);
  return results;
}

void Step::run_n(std::uint64_t steps, std::span<const PerReplica<Tensor>> arguments,
                 const RunOptions& options, const PrepareResults& prepare, SourceSite site) const {
  const Parts& parts = this->parts();
  const auto ended = [&](const std::exception& exception) {
    if (!parts.after) return;
    const auto* const of_run = dynamic_cast<const RunError*>(&exception);
    const std::uint64_t committed = of_run == nullptr ? 0 : of_run->committed_steps();
    if (const auto* const error = dynamic_cast<const Error*>(&exception))
      return parts.after(committed, error);
    const Error error(code_of(exception, ErrorCode::kInternal), message_of(exception));
    parts.after(committed, &error);
  };
  std::vector<Tensor> feeds;
  try {
    feeds = feeds_of(arguments, site);
  } catch (const std::exception& error) {
    parts.program.give_up(error);
    ended(error);
    throw;
  }
  try {
    parts.program.run_n(
        steps, feeds, options, [&](const std::vector<Tensor>& values) { prepare(results_of(values)); }, site);
  } catch (const std::exception& error) {
    ended(error);
    throw;
  }
  if (parts.after) parts.after(steps, nullptr);
}

std::vector<Tensor> Step::feeds_of(std::span<const PerReplica<Tensor>> arguments,
                                   const SourceSite& site) const {
  const Parts& parts = this->parts();
  if (arguments.size() != parts.inputs.size()) {
    throw InvalidArgument(
        str("the function takes ", counted(parts.inputs.size(), "value"), ", got ", arguments.size()),
        place_of_call("the function", site));
  }
  std::vector<Tensor> feeds;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const PerReplica<Tensor>& argument = arguments[i];
    const InputSpec& input = parts.inputs[i];
    if (input.shared) {
      if (!argument.is_single()) {
        throw InvalidArgument(str("input '", input.name, "' is shared by all replicas, got a ",
                                  to_string(argument.kind()), " value; give one tensor"),
                              place_of_call("the function", site));
      }
      feeds.push_back(argument[0]);
      continue;
    }
    if (!argument.is_single() && argument.size() != parts.replicas) {
      throw InvalidArgument(str("input '", input.name, "' has ", counted(argument.size(), "slot"), " for ",
                                counted(parts.replicas, "replica")),
                            place_of_call("the function", site));
    }
    for (std::size_t r = 0; r < parts.replicas; ++r) feeds.push_back(argument[r]);
  }
  return feeds;
}

std::vector<PerReplica<Tensor>> Step::results_of(const std::vector<Tensor>& values) const {
  const Parts& parts = this->parts();
  std::vector<PerReplica<Tensor>> results;
  for (const Slots& result : parts.results) {
    if (result.kind == ReplicaKind::kSingle) {
      results.emplace_back(values[result.first]);
    } else if (result.kind == ReplicaKind::kMirrored) {
      results.push_back(mirrored(std::vector<Tensor>(parts.replicas, values[result.first])));
    } else {
      const auto first = values.begin() + static_cast<std::ptrdiff_t>(result.first);
      results.emplace_back(std::vector<Tensor>(first, first + static_cast<std::ptrdiff_t>(parts.replicas)));
    }
  }
  return results;
}

}  // namespace lockstep
