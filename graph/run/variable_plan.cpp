// graph/run/variable_plan.cpp - where the values of variables are in the course of a step, while its plan is made.
#include "lockstep/graph/run/internal/variable_plan.h"

#include <memory>

#include "lockstep/graph/run/internal/variable_stages.h"

namespace lockstep::internal {

VariablePlan::VariablePlan(const ResolvedGraph& resolved, const PlanRequest& request, Plan& plan,
                           StoragePlan& storages)
    : plan_(plan), storages_(storages) {
  const VariableStages stages = find_variable_stages(resolved);
  plan_.draws_random = stages.draws_random;
  plan_.commits = stages.commits;
  for (const auto& [name, stage] : stages.variables) {
    PlannedState& state = states_[name];
    const auto index = static_cast<std::uint32_t>(plan_.variables.size());
    plan_.variables.push_back({name, stage.written, request.variable_memory(name)});
    plan_.specs.push_back(std::make_unique<TensorSpec[]>(1));
    plan_.specs.back()[0] = *request.variable_specs(name);
    state.spec = plan_.specs.back().get();
    state.in_commit = stage.in_commit;
    state.live = storages.add({.location = {Location::Kind::kVariable, index, 0},
                               .bytes = num_bytes(*state.spec),
                               .memory = request.variable_memory(name)});
    state.current = state.live;
  }
}

void VariablePlan::set_shadow(const std::string& name, std::uint32_t storage, std::uint32_t writer) {
  PlannedState& state = at(name);
  state.current = storage;
  state.writers = {writer};
}

void VariablePlan::commit(const Graph& graph, PhasePlan& phases) {
  for (const auto& [name, state] : states_) {
    if (!state.is_shadowed()) continue;
    const Node& node = graph.node(plan_.phases[state.writers[0]].node);
    const MemoryId home = storages_[state.live].memory;
    std::uint32_t made = state.current;
    std::vector<std::uint32_t> after = state.writers;
    // A copy that depends on a decision (Stream::copy_unless) stays within one memory.
    if (storages_[made].memory != home && phases.stream_in(home, StreamRole::kCompute) >= 0) {
      made = storages_.add_room(num_bytes(*state.spec), storages_.arena_in(home), phases.next());
      after = {phases.add_copy(node, state.current, made, state.spec, state.writers)};
    }
    phases.add_copy(node, made, state.live, state.spec, after, true);
  }
}

}  // namespace lockstep::internal
