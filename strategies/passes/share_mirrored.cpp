// strategies/passes/share_mirrored.cpp - values that are equal on all replicas are computed and kept once.
#include "lockstep/strategies/passes/share_mirrored.h"

#include <algorithm>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "lockstep/graph/ir/placement.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/rewriter.h"
#include "lockstep/strategies/passes/internal/registrations.h"
#include "lockstep/strategies/passes/internal/sharing.h"
#include "lockstep/strategies/proof/congruence.h"

namespace lockstep {

namespace {

using internal::SharingPlan;
using Copies = std::vector<bool>;  // by variable

bool is_empty(const SharingPlan& plan) {
  return plan.erased.empty() && plan.moved.empty() &&
         std::ranges::all_of(plan.regions,
                             [](const auto& entry) { return std::ranges::all_of(entry.second, is_empty); });
}
bool is_risky(const SharingPlan& plan) {
  return plan.risky || std::ranges::any_of(plan.regions, [](const auto& entry) {
           return std::ranges::any_of(entry.second, is_risky);
         });
}

const OptionTable<ShareMirroredOptions>& share_mirrored_options() {
  static const auto table =
      OptionTable<ShareMirroredOptions>(
          "share-mirrored", "what is equal on all replicas of one memory is computed and kept once")
          .option("variables", &ShareMirroredOptions::variables, "share copies of variables too");
  return table;
}

class ShareMirrored final : public Pass {
 public:
  explicit ShareMirrored(ShareMirroredOptions options) : options_(options) {}
  std::string_view name() const override { return "share-mirrored"; }
  std::string to_string() const override { return share_mirrored_options().print(options_); }

 private:
  PassOutcome run_on(Graph& graph, PassContext& context) override {
    Copies copies(graph.variables().size());
    SharingPlan plan;
    {
      std::shared_ptr<const Congruence> proof;
      if (context.analyses != nullptr) proof = context.analyses->find<Congruence>();
      if (proof == nullptr) proof = std::make_shared<const Congruence>(consistent_congruence(graph));
      if (options_.variables) copies = candidates(*proof, context.topology);
      plan = fitting_plan(*proof, copies, context.topology);
    }
    if (std::ranges::find(copies, true) == copies.end() && is_empty(plan)) return PassOutcome::kUnchanged;
    if (!is_risky(plan)) {
      apply(graph, plan, copies);
      return PassOutcome::kChanged;
    }
    // Updates of copies wait for nodes that come later than the variable's own update: check whether that
    // makes a cycle.
    Graph tried = graph;
    apply(tried, plan, copies);
    std::vector<NodeId> cycle;
    tried.topological_order(&cycle);
    if (cycle.empty()) {
      graph = std::move(tried);
      return PassOutcome::kChanged;
    }
    copies.assign(copies.size(), false);
    const Congruence proof = consistent_congruence(graph);
    plan = fitting_plan(proof, copies, context.topology);
    if (is_empty(plan)) return PassOutcome::kUnchanged;
    apply(graph, plan, copies);
    return PassOutcome::kChanged;
  }

  // Copies that stay equal to their variable and lie in the same memory.
  static Copies candidates(const Congruence& proof, const Topology* topology) {
    const std::vector<VariableDecl>& variables = proof.graph().variables();
    Copies copies(variables.size());
    Memories memories(topology);
    for (std::size_t i = 0; i < variables.size(); ++i) {
      const std::size_t original = proof.original(i);
      if (original == i || variables[i].shares || proof.initial(i) != proof.initial(original) ||
          proof.final(i) != proof.final(original))
        continue;
      copies[i] = memories.same(variables[i].device, variables[original].device);
    }
    return copies;
  }

  static SharingPlan fitting_plan(const Congruence& proof, Copies& copies, const Topology* topology) {
    for (;;) {
      std::set<std::size_t> refused;
      SharingPlan plan = internal::plan_sharing(proof, copies, topology, refused);
      bool fits = true;
      for (const std::size_t copy : refused) {
        fits = fits && !copies[copy];
        copies[copy] = false;
      }
      if (fits) return plan;
    }
  }

  void apply(Graph& graph, const SharingPlan& plan, const Copies& copies) const {
    edit(graph, plan, graph);
    bool any = false;
    for (std::size_t i = 0; i < copies.size(); ++i) {
      if (!copies[i]) continue;
      VariableDecl decl = graph.variables()[i];
      decl.shares = true;
      graph.redeclare_variable(std::move(decl));
      any = true;
    }
    if (any) rename(graph, graph);  // last: most nodes that used copies are gone by now
  }

  // Nodes that use a copy that now shares memory use the variable instead.
  static void rename(Graph& level, const Graph& outermost) {
    std::vector<std::tuple<NodeId, std::string, std::string>> changes;
    for (const Node& node : level.nodes()) {
      for (const Attribute& attribute : node.attributes()) {
        const auto* variable = std::get_if<VariableRef>(&attribute.value);
        if (variable == nullptr) continue;
        const VariableDecl* decl = outermost.find_variable(variable->name);
        if (decl != nullptr && decl->shares) changes.emplace_back(node.id(), attribute.name, decl->copy_of);
      }
    }
    for (const auto& [id, attribute, name] : changes) level.set_attribute(id, attribute, VariableRef{name});
    for (const NodeId id : level.region_owners()) {
      for (std::size_t i = 0; i < level.node(id).regions().size(); ++i)
        rename(level.region(id, i), outermost);
    }
  }

  static void make_common(Graph& level, NodeId id) {
    Provenance provenance = level.node(id).provenance();
    const Node& own = level.node(id);
    const bool draws = has(own.op().effects, Effect::kRandom) && has(effects_of(own), Effect::kRandom);
    if (!draws) provenance.replica = -1;  // draws need it
    level.set_provenance(id, provenance);
    for (std::size_t i = 0; i < level.node(id).regions().size(); ++i) {
      Graph& region = level.region(id, i);
      std::vector<NodeId> inside;
      for (const Node& node : region.nodes()) inside.push_back(node.id());
      for (const NodeId inner : inside) make_common(region, inner);
    }
  }

  void edit(Graph& level, const SharingPlan& plan, const Graph& outermost) const {
    for (const auto& [id, regions] : plan.regions) {
      for (std::size_t i = 0; i < regions.size(); ++i) edit(level.region(id, i), regions[i], outermost);
    }
    for (const NodeId id : plan.common) make_common(level, id);
    if (plan.erased.empty() && plan.moved.empty()) return;
    Rewriter rewriter(level, name(), &outermost);
    rewriter.replace_uses(plan.moved);
    for (const auto& [node, before] : plan.order) rewriter.add_control(node, before);
    rewriter.replace_and_erase(plan.erased);
  }

  ShareMirroredOptions options_;
};

}  // namespace

std::unique_ptr<Pass> make_share_mirrored(ShareMirroredOptions options) {
  return std::make_unique<ShareMirrored>(options);
}

void internal::register_share_mirrored(PassRegistry& registry) {
  add_pass(registry, share_mirrored_options(), make_share_mirrored);
}

}  // namespace lockstep
