// graph/run/internal/earlier_runs.h - what a run has to do with runs that have returned, and are under way.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>

#include "lockstep/core/tensor.h"
#include "lockstep/core/work_in_flight.h"
#include "lockstep/graph/run/internal/plan_cache.h"

namespace lockstep::internal {

// Memory of devices that other runs still use: streams of this run go on after those, the host waits for them. With
// the locks of the variables held.
void follow_runs_in_flight(const PlannedProgram& planned, RunContext& context, std::span<const Tensor> feeds,
                           std::span<const Tensor> results);

// What devices have refused of the last runs of these works, for the one who deals with it.
struct Refusals {
  std::exception_ptr why;  // null: there are none, or someone was told already
  std::uint64_t runs = 0;
};
Refusals take_refusals(std::span<const std::shared_ptr<WorkInFlight>> all);

// Both throw RunError; `committed`: the steps of this call that were. The second while what an earlier run left on
// streams has failed, and is being caught.
[[noreturn]] void did_not_happen(const Refusals& found, std::uint64_t committed);
[[noreturn]] void earlier_run_failed(std::uint64_t committed);

// " (after 3 committed steps)", or nothing.
std::string after_steps(std::uint64_t committed);

}  // namespace lockstep::internal
