// graph/run/earlier_runs.cpp - what a run has to do with runs that have returned, and are under way.
#include "lockstep/graph/run/internal/earlier_runs.h"

#include <utility>

namespace lockstep::internal {

void follow_runs_in_flight(const PlannedProgram& planned, RunContext& context, std::span<const Tensor> feeds,
                           std::span<const Tensor> results) {
  if (context.has_streams()) {
    for (std::size_t i = 0; i < feeds.size(); ++i) context.feed_uses()[i] = feeds[i].uses();
    for (std::size_t i = 0; i < results.size(); ++i) context.result_uses()[i] = results[i].uses();
    for (std::size_t i = 0; i < planned.variables().size(); ++i)
      context.variable_uses()[i] = planned.variables()[i]->storage().uses();
    const void* const group = context.work()->group();
    for (const MemoryUses* uses : context.feed_uses())
      if (uses != nullptr) uses->wait_for_others(group, false);
    for (std::size_t i = 0; i < planned.variables().size(); ++i) {
      if (const MemoryUses* uses = context.variable_uses()[i]; uses != nullptr)
        uses->wait_for_others(group, planned.plan().variables[i].written);
    }
    if (!planned.plan().regions_on_streams) return;
  }
  const auto wait = [](const Tensor& tensor, bool writes) {
    if (const MemoryUses* uses = tensor.uses(); uses != nullptr) uses->wait(writes);
  };
  for (const Tensor& feed : feeds) wait(feed, false);
  for (const Tensor& result : results) wait(result, true);
  for (std::size_t i = 0; i < planned.variables().size(); ++i)
    wait(planned.variables()[i]->storage(), planned.plan().variables[i].written);
}

Refusals take_refusals(std::span<const std::shared_ptr<WorkInFlight>> all) {
  Refusals found;
  bool told = false;
  for (const std::shared_ptr<WorkInFlight>& work : all) {
    const std::exception_ptr why = work->take_refusal();
    if (why == nullptr) continue;
    told = told || work->is_seen();
    found.why = why;
    ++found.runs;
  }
  if (told) found.why = nullptr;
  return found;
}

void did_not_happen(const Refusals& found, std::uint64_t committed) {
  try {
    std::rethrow_exception(found.why);
  } catch (const Error& error) {
    std::throw_with_nested(
        RunError(error.code(),
                 str("a run that had returned did not happen",
                     found.runs > 1 ? str(", nor ", counted(found.runs - 1, "run"), " after it") : "", ": ",
                     error.message(), after_steps(committed)),
                 error.place(), committed));
  }
}

void earlier_run_failed(std::uint64_t committed) {
  ErrorCode code = ErrorCode::kInternal;
  std::string message = "an exception that is not a std::exception";
  ErrorPlace place;
  try {
    throw;
  } catch (const Error& error) {
    code = error.code();
    message = error.message();
    place = error.place();
  } catch (const std::exception& error) {
    message = message_of(error);
  } catch (...) {
  }
  std::throw_with_nested(RunError(code,
                                  str("a run that had returned failed on its device: ", message,
                                      "; its variables may be changed: restore them", after_steps(committed)),
                                  std::move(place), committed));
}

std::string after_steps(std::uint64_t committed) {
  return committed == 0 ? std::string() : str(" (after ", committed, " committed steps)");
}

}  // namespace lockstep::internal
