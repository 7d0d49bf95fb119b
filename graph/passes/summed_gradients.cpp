// graph/passes/summed_gradients.cpp - the gradients of a level, summed over replicas ahead of their updates.
#include "lockstep/graph/passes/internal/summed_gradients.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace lockstep::internal {

GradientUpdates gradient_updates(const SyncAnalysis& sync, const Graph& level) {
  GradientUpdates updates;
  updates.replicated = sync.covers(level) && sync.level_of(level).replicas > 1;
  for (const Node& node : level.nodes()) {
    const auto& update = node.op().traits.updates_variable;
    if (!update || !update->gradient) continue;
    const auto* variable = node.find<VariableRef>(update->attribute);
    const bool apart = updates.replicated && variable != nullptr && sync.has_own_copies(variable->name);
    (apart ? updates.own : updates.common).push_back(node.id());
  }
  return updates;
}

std::vector<NodeId> unsummed(const SyncAnalysis& sync, const Graph& level,
                             const std::vector<NodeId>& updates) {
  std::vector<NodeId> shares;
  for (const NodeId id : updates) {
    const Node& node = level.node(id);
    if (!sync.is_summed(level, node.inputs()[node.op().traits.updates_variable->operand]))
      shares.push_back(id);
  }
  return shares;
}

void sum_shares(Rewriter& edit, const std::vector<NodeId>& updates) {
  std::map<ValueId, ValueId> summed, gathered;
  const auto whole = [&](ValueId value, std::string_view op, std::map<ValueId, ValueId>& made) {
    const auto found = made.find(value);
    if (found != made.end()) return found->second;
    const std::string name = str(edit.graph().node(value.node).name(), "/", op);
    Rewriter::NewNode node{.op = op, .name = name, .inputs = {value}, .origin = value.node};
    if (&made == &summed) {
      node.attributes = {{"reduce", std::string("sum")}};
    } else {
      node.attributes = {{"replicas", std::int64_t{0}}};  // what other replicas add is not known yet
    }
    return made.emplace(value, ValueId{edit.insert(std::move(node)), 0}).first->second;
  };
  for (const NodeId id : updates) {
    const OpTraits::Update& update = *edit.graph().node(id).op().traits.updates_variable;
    const ValueId operand = edit.graph().node(id).inputs()[update.operand];
    if (update.indices) {
      const ValueId indices = edit.graph().node(id).inputs()[*update.indices];
      edit.set_input(id, *update.indices, whole(indices, "all_gather", gathered));
      edit.set_input(id, update.operand, whole(operand, "all_gather", gathered));
    } else {
      edit.set_input(id, update.operand, whole(operand, "all_reduce", summed));
    }
  }
}

}  // namespace lockstep::internal
