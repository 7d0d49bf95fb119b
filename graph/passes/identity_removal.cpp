// graph/passes/identity_removal.cpp - removes nodes that only pass their input on.
#include "lockstep/graph/passes/identity_removal.h"

#include <optional>
#include <vector>

#include "lockstep/graph/ir/internal/gradient_nodes.h"
#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/graph/passes/internal/registrations.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/rewriter.h"

namespace lockstep {
namespace {

bool passes_its_input_on(const Graph& graph, const Node& node) {
  if (!node.op().traits.alias || node.inputs().size() != 1 || node.outputs().size() != 1) return false;
  if (!node.controls().empty() || effects_of(node) != Effect::kPure) return false;
  const Node& input = graph.node(node.inputs()[0].node);
  return node.outputs()[0] == graph.spec(node.inputs()[0]) &&
         (node.device().empty() || node.device() == input.device());
}

// In the code of a replica such a node says that the value has yet to be summed over all replicas.
bool begins_gradient(const Graph& graph, const Node& node) {
  return internal::is_gradient_share(node) && !internal::is_gradient_share(graph.node(node.inputs()[0].node));
}

class IdentityRemoval final : public Pass {
 public:
  std::string_view name() const override { return "identity-removal"; }

 private:
  PassOutcome run_on(Graph& graph, PassContext& /*context*/) override {
    bool changed = false;
    for_each_level(graph, [&](Graph& level) { changed = remove(level, graph) || changed; });
    return outcome_of(changed);
  }

  bool remove(Graph& graph, const Graph& outermost) const {
    std::vector<NodeId> found;
    std::optional<bool> replica_code;
    for (const Node& node : graph.nodes()) {
      if (!passes_its_input_on(graph, node)) continue;
      if (begins_gradient(graph, node)) {
        if (!replica_code) replica_code = is_replica_code(outermost, graph);
        if (*replica_code) continue;
      }
      found.push_back(node.id());
    }
    if (found.empty()) return false;

    // By removed node: the first value up its chain that stays.
    std::vector<ValueId> stands_for(graph.id_bound());
    for (const NodeId id : found) stands_for[id.index()] = graph.node(id).inputs()[0];
    std::vector<Rewriter::Replacement> removed;
    for (const NodeId id : found) {
      ValueId value = stands_for[id.index()];
      while (stands_for[value.node.index()].valid()) value = stands_for[value.node.index()];
      for (NodeId at = id; at != value.node;) {  // so that no chain is walked twice
        const NodeId next = stands_for[at.index()].node;
        stands_for[at.index()] = value;
        at = next;
      }
      removed.push_back({id, {value}});
    }
    Rewriter(graph, name()).replace_and_erase(removed);
    return true;
  }
};

}  // namespace

std::unique_ptr<Pass> make_identity_removal() { return std::make_unique<IdentityRemoval>(); }

void internal::register_identity_removal(PassRegistry& registry) {
  add_pass(registry, "identity-removal", "removes nodes that only pass their input on",
           make_identity_removal);
}

}  // namespace lockstep
