// graph/passes/dead_node_elimination.cpp - erases nodes that nothing needs.
#include "lockstep/graph/passes/dead_node_elimination.h"

#include <vector>

#include "lockstep/graph/passes/internal/registrations.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/rewriter.h"

namespace lockstep {
namespace {

class DeadNodeElimination final : public Pass {
 public:
  std::string_view name() const override { return "dead-node-elimination"; }

 private:
  PassOutcome run_on(Graph& graph, PassContext& /*context*/) override {
    bool changed = false;
    for_each_level(graph, [&](Graph& level) { changed = clean(level) || changed; });
    return outcome_of(changed);
  }

  bool clean(Graph& graph) const {
    std::vector<bool> needed(graph.id_bound(), false);
    std::vector<NodeId> work;
    const auto need = [&](NodeId id) {
      if (needed[id.index()]) return;
      needed[id.index()] = true;
      work.push_back(id);
    };
    for (const ValueId result : graph.results()) need(result.node);
    for (const NodeId parameter : graph.parameters()) need(parameter);
    for (const Node& node : graph.nodes()) {
      if (must_run(effects_of(node))) need(node.id());
    }
    while (!work.empty()) {
      const NodeId id = work.back();
      work.pop_back();
      for (const ValueId input : graph.node(id).inputs()) need(input.node);
    }

    std::vector<Rewriter::Replacement> dead;
    for (const Node& node : graph.nodes()) {
      if (!needed[node.id().index()]) dead.push_back({node.id()});
    }
    if (dead.empty()) return false;
    Rewriter(graph, name()).replace_and_erase(dead);
    return true;
  }
};

}  // namespace

std::unique_ptr<Pass> make_dead_node_elimination() { return std::make_unique<DeadNodeElimination>(); }

void internal::register_dead_node_elimination(PassRegistry& registry) {
  add_pass(registry, "dead-node-elimination", "erases what nobody needs", make_dead_node_elimination);
}

}  // namespace lockstep
