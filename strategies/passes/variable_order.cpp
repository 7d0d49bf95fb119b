// strategies/passes/variable_order.cpp - direct edges between the nodes that use a variable.
#include "lockstep/strategies/passes/internal/variable_order.h"

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/core/base/name_hash.h"

namespace lockstep::internal {

void order_variable_uses(Graph& level) {
  struct State {
    NodeId last_write;
    std::vector<NodeId> reads;  // since
  };
  NameMap<State> states;
  for (const NodeId id : level.topological_order()) {
    if (!has(effects_of(level.node(id)), Effect::kReadsVariable | Effect::kWritesVariable)) continue;
    const auto uses = variable_uses(level.node(id));
    const auto after = [&](NodeId before) {
      if (!before.valid() || before == id) return;
      const Node& node = level.node(id);
      const bool there =
          std::ranges::find(node.controls(), before) != node.controls().end() ||
          std::ranges::any_of(node.inputs(), [&](ValueId input) { return input.node == before; });
      if (!there) level.add_control(id, before);
    };
    for (const VariableUse& use : uses) {
      const State& state = states[use.name];
      after(state.last_write);
      if (use.writes) std::ranges::for_each(state.reads, after);
    }
    for (const VariableUse& use : uses) {
      State& state = states[use.name];
      if (use.writes) {
        state.last_write = id;
        state.reads.clear();
      } else if (state.last_write != id) {
        state.reads.push_back(id);
      }
    }
  }
}

}  // namespace lockstep::internal
