// graph/run/internal/variable_plan.h - where the values of variables are in the course of a step, while its plan
// is made.
//
// A variable's current value is its own memory until an update writes a shadow; from then on it is the shadow,
// which the commit stage copies to the variable. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/graph/run/internal/phase_plan.h"
#include "lockstep/graph/run/internal/resolved_graph.h"

namespace lockstep::internal {

struct PlannedState {
  std::uint32_t live = 0;              // the storage that is the variable
  std::uint32_t current = 0;           // the storage of its value at this point of the step
  std::vector<std::uint32_t> writers;  // of the shadow: the phases after which it is written
  const TensorSpec* spec = nullptr;
  NodeId in_commit;  // the update that may write the variable itself, in the commit stage
  bool is_shadowed() const { return current != live; }
};

class VariablePlan {
 public:
  // Lists the variables that the step uses in the plan.
  VariablePlan(const ResolvedGraph& resolved, const PlanRequest& request, Plan& plan, StoragePlan& storages);

  PlannedState& at(const std::string& name) { return states_.at(name); }
  // From now on the variable's value is this storage, after the phase `writer`.
  void set_shadow(const std::string& name, std::uint32_t storage, std::uint32_t writer);
  // Adds the copies from shadows to variables.
  void commit(const Graph& graph, PhasePlan& phases);

 private:
  Plan& plan_;
  StoragePlan& storages_;
  std::map<std::string, PlannedState> states_;
};

}  // namespace lockstep::internal
