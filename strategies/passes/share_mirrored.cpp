#include "lockstep/strategies/passes/share_mirrored.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/graph/rewriter.h"
#include "lockstep/strategies/congruence.h"
#include "lockstep/strategies/internal/memories.h"

namespace lockstep {

namespace {

// What is to be done to one level.
struct LevelPlan {
  std::vector<Rewriter::Replacement> erased;
  std::vector<std::pair<ValueId, ValueId>> moved;  // readers of the first go to the second
  std::vector<NodeId> common;                      // now for all replicas
  std::vector<std::pair<NodeId, NodeId>> order;    // the first runs after the second
  bool risky = false;                              // `order` may close a cycle
  std::map<NodeId, std::vector<LevelPlan>> regions;
};

class Planner {
 public:
  Planner(const Congruence& proof, const std::set<std::size_t>& copies)
      : proof_(proof), copies_(copies), members_(proof.num_classes()) {}

  LevelPlan run() { return plan(proof_.graph(), proof_.top()); }
  const std::set<std::size_t>& refused() const { return refused_; }  // copies that cannot be shared

 private:
  using Targets = std::unordered_map<NodeId, NodeId>;

  // For nodes that update copies: the node that updates the variable at the same point.
  Targets pair_updates(const LevelClasses& classes) {
    std::map<std::size_t, std::vector<LevelClasses::Update>> histories;
    for (const LevelClasses::Update& update : classes.updates()) histories[update.variable].push_back(update);
    Targets targets;
    std::map<NodeId, std::vector<std::size_t>> written;  // by those nodes
    std::set<NodeId> unpaired;
    for (const auto& [variable, history] : histories) {
      const std::size_t original = proof_.original(variable);
      if (original == variable) continue;
      const auto& first = histories[original];
      const bool pairs =
          copies_.contains(variable) &&
          std::ranges::equal(history, first, {}, &LevelClasses::Update::after, &LevelClasses::Update::after);
      for (std::size_t p = 0; p < history.size(); ++p) {
        const NodeId node = history[p].node;
        written[node].push_back(variable);
        if (pairs && first[p].node == node) continue;  // one node for both
        if (!pairs || !targets.emplace(node, first[p].node).second) {
          if (!pairs || targets.at(node) != first[p].node) unpaired.insert(node);
        }
      }
      if (!pairs) refused_.insert(variable);
    }
    for (const NodeId node : unpaired) {
      targets.erase(node);
      refused_.insert(written[node].begin(), written[node].end());
    }
    // A node that also updates what is no copy stays.
    for (const auto& [variable, history] : histories) {
      if (proof_.original(variable) != variable) continue;
      for (const LevelClasses::Update& update : history) {
        if (targets.erase(update.node) > 0)
          refused_.insert(written[update.node].begin(), written[update.node].end());
      }
    }
    return targets;
  }

  const std::string& memory(const std::string& device) {
    const auto [found, added] = memories_.emplace(device, std::string());
    if (added) found->second = internal::memory_of(device);
    return found->second;
  }

  static bool may_merge(const Node& node) {
    const Effect effects = effects_of(node);
    return effects == Effect::kPure || effects == Effect::kReadsVariable;
  }

  LevelPlan plan(const Graph& graph, const LevelClasses& classes) {
    LevelPlan made;
    const Targets targets = pair_updates(classes);
    std::vector<NodeId> merged(graph.id_bound());  // into which node
    std::vector<std::uint32_t> position(graph.id_bound());
    std::vector<bool> is_common(graph.id_bound()), is_parameter(graph.id_bound());
    for (const NodeId id : graph.parameters()) is_parameter[id.index()] = true;
    std::vector<bool> is_read(classes.size());
    for (const Node& node : graph.nodes()) {
      for (const ValueId input : node.inputs()) is_read[classes.index(input)] = true;
    }
    for (const ValueId result : graph.results()) is_read[classes.index(result)] = true;
    ++level_;
    for (const Node& node : graph.nodes()) {
      for (std::uint32_t i = 0; i < node.outputs().size(); ++i) {
        Members& mine = members_[classes.of({node.id(), i})];
        if (mine.level != level_)
          mine = {.standing = {}, .level = level_, .replica = node.provenance().replica};
        mine.mixed = mine.mixed || mine.replica != node.provenance().replica;
      }
    }
    const auto follow = [&](NodeId id) { return merged[id.index()].valid() ? merged[id.index()] : id; };
    const auto controls_of = [&](const Node& node) {
      std::vector<NodeId> controls;
      for (const NodeId before : node.controls()) controls.push_back(follow(before));
      std::ranges::sort(controls);
      controls.erase(std::unique(controls.begin(), controls.end()), controls.end());
      return controls;
    };
    const auto make_common = [&](NodeId id) {
      if (!is_common[id.index()]) made.common.push_back(id);
      is_common[id.index()] = true;
    };
    const auto stands_for = [&](ValueId value) -> std::optional<ValueId> {
      const Node& node = graph.node(value.node);
      SmallVector<ValueId, 1>& candidates = members_[classes.of(value)].standing;
      for (const ValueId other : candidates) {
        if (&graph.node(other.node).op() == &node.op() && graph.spec(other) == graph.spec(value) &&
            memory(internal::device_of(graph, other)) == memory(internal::device_of(graph, value)))
          return other;
      }
      candidates.push_back(value);
      return std::nullopt;
    };
    const auto erase_for = [&](const Node& node, NodeId target) {
      Rewriter::Replacement replacement{node.id()};
      for (std::uint32_t i = 0; i < node.outputs().size(); ++i) replacement.to.push_back({target, i});
      made.erased.push_back(std::move(replacement));
      merged[node.id().index()] = target;
      make_common(target);
    };
    std::uint32_t at = 0;
    std::vector<NodeId> owners;  // of regions, which come last: members_ is this level's
    for (const NodeId id : graph.topological_order()) {
      const Node& node = graph.node(id);
      position[id.index()] = ++at;
      if (const auto target = targets.find(id); target != targets.end()) {
        if (!merge_update(graph, node, graph.node(target->second), position, made, follow)) {
          for (const VariableUse& use : variable_uses(node)) {
            if (use.writes) refuse(use.name);
          }
        } else {
          erase_for(node, target->second);
          continue;
        }
      }
      const std::int32_t replica = node.provenance().replica;
      bool merges = replica >= 0 && !is_parameter[id.index()] && !node.outputs().empty() && may_merge(node);
      SmallVector<ValueId, 1> to;
      for (std::uint32_t i = 0; i < node.outputs().size(); ++i) {
        const std::optional<ValueId> other = stands_for({id, i});
        to.push_back(other.value_or(ValueId{id, i}));
        merges = merges && other && other->node == to[0].node && other->output == i;
      }
      if (merges && members_[classes.of({id, 0})].mixed &&
          controls_of(node) == controls_of(graph.node(to[0].node))) {
        erase_for(node, to[0].node);
        continue;
      }
      // Nodes that stay: what they give to other replicas, where they are one for all; parameters of regions.
      const bool joined = replica < 0 && (node.op().traits.collective || classes.has_regions(id));
      if (joined || is_parameter[id.index()]) {
        for (std::uint32_t i = 0; i < to.size(); ++i) {
          const ValueId value{id, i};
          if (to[i] == value || !is_read[classes.index(value)] ||
              replica_of(graph, value) == replica_of(graph, to[i]))
            continue;
          if (joined && to[i].node != id) continue;
          made.moved.emplace_back(value, to[i]);
        }
      }
      if (classes.has_regions(id)) owners.push_back(id);
    }
    for (const NodeId id : owners) {
      std::vector<LevelPlan> inner;
      const Node& node = graph.node(id);
      for (std::size_t i = 0; i < node.regions().size(); ++i)
        inner.push_back(plan(node.regions()[i], classes.region(id, i)));
      made.regions.emplace(id, std::move(inner));
    }
    return made;
  }

  void refuse(const std::string& name) {
    const std::vector<VariableDecl>& variables = proof_.graph().variables();
    for (std::size_t i = 0; i < variables.size(); ++i) {
      if (variables[i].name == name) refused_.insert(i);
    }
  }

  // Whoever had to run before the copy's update now has to run before the variable's.
  template <class Follow>
  bool merge_update(const Graph& graph, const Node& node, const Node& target,
                    std::span<const std::uint32_t> position, LevelPlan& made, const Follow& follow) {
    const std::uint32_t placed = position[target.id().index()];
    if (placed == 0 || &node.op() != &target.op() || !std::ranges::equal(node.outputs(), target.outputs()) ||
        memory(node.device()) != memory(target.device()) || node.provenance().replica < 0)
      return false;
    const auto before = [&](NodeId id) {
      const NodeId kept = follow(id);
      if (kept == target.id() || std::ranges::find(target.controls(), kept) != target.controls().end())
        return;
      made.order.emplace_back(target.id(), kept);
      made.risky = made.risky || position[kept.index()] > placed;
    };
    for (const NodeId control : node.controls()) before(control);
    for (const ValueId input : node.inputs()) {
      const bool reads = has(graph.node(input.node).op().effects, Effect::kReadsVariable);
      if (reads && follow(input.node) == input.node) before(input.node);
    }
    return true;
  }

  const Congruence& proof_;
  const std::set<std::size_t>& copies_;
  struct Members {
    SmallVector<ValueId, 1> standing;  // that others may be merged into: one for each op, memory and spec
    std::uint32_t level = 0;           // for which this holds
    std::int32_t replica = -1;         // of the first
    bool mixed = false;                // of several replicas
  };
  std::vector<Members> members_;  // by class
  std::uint32_t level_ = 0;
  std::set<std::size_t> refused_;
  std::unordered_map<std::string, std::string> memories_;
};

bool is_empty(const LevelPlan& plan) {
  return plan.erased.empty() && plan.moved.empty() &&
         std::ranges::all_of(plan.regions,
                             [](const auto& entry) { return std::ranges::all_of(entry.second, is_empty); });
}
bool is_risky(const LevelPlan& plan) {
  return plan.risky || std::ranges::any_of(plan.regions, [](const auto& entry) {
           return std::ranges::any_of(entry.second, is_risky);
         });
}

class ShareMirrored final : public Pass {
 public:
  explicit ShareMirrored(ShareMirroredOptions options) : options_(options) {}
  std::string_view name() const override { return "share-mirrored"; }

 private:
  PassOutcome run_on(Graph& graph, PassContext&) override {
    std::set<std::size_t> copies;
    LevelPlan plan;
    {
      const Congruence proof = consistent_congruence(graph);
      if (options_.variables) copies = candidates(proof);
      plan = fitting_plan(proof, copies);
    }
    if (copies.empty() && is_empty(plan)) return PassOutcome::kUnchanged;
    if (!is_risky(plan)) {
      apply(graph, plan, copies);
      return PassOutcome::kChanged;
    }
    // Updates of copies wait for nodes that come later than the variable's own: see whether that can be.
    Graph tried = graph;
    apply(tried, plan, copies);
    std::vector<NodeId> cycle;
    tried.topological_order(&cycle);
    if (cycle.empty()) {
      graph = std::move(tried);
      return PassOutcome::kChanged;
    }
    copies.clear();
    const Congruence proof = consistent_congruence(graph);
    plan = fitting_plan(proof, copies);
    if (is_empty(plan)) return PassOutcome::kUnchanged;
    apply(graph, plan, copies);
    return PassOutcome::kChanged;
  }

  // Copies that stay equal to their variable, in one memory with it.
  static std::set<std::size_t> candidates(const Congruence& proof) {
    std::set<std::size_t> copies;
    const std::vector<VariableDecl>& variables = proof.graph().variables();
    for (std::size_t i = 0; i < variables.size(); ++i) {
      const std::size_t original = proof.original(i);
      if (original == i || variables[i].shares || proof.initial(i) != proof.initial(original) ||
          proof.final(i) != proof.final(original))
        continue;
      if (internal::memory_of(variables[i].device) == internal::memory_of(variables[original].device))
        copies.insert(i);
    }
    return copies;
  }

  static LevelPlan fitting_plan(const Congruence& proof, std::set<std::size_t>& copies) {
    for (;;) {
      Planner planner(proof, copies);
      LevelPlan plan = planner.run();
      const std::size_t before = copies.size();
      for (const std::size_t refused : planner.refused()) copies.erase(refused);
      if (copies.size() == before) return plan;
    }
  }

  void apply(Graph& graph, const LevelPlan& plan, const std::set<std::size_t>& copies) const {
    std::unordered_map<std::string, std::string> names;  // of copies: the variable's
    for (const std::size_t copy : copies) {
      VariableDecl decl = graph.variables()[copy];
      names.emplace(decl.name, decl.copy_of);
      decl.shares = true;
      graph.redeclare_variable(std::move(decl));
    }
    if (!names.empty()) rename(graph, names);
    edit(graph, plan, graph);
  }

  static void rename(Graph& level, const std::unordered_map<std::string, std::string>& names) {
    std::vector<std::tuple<NodeId, std::string, std::string>> changes;
    std::vector<NodeId> owners;
    for (const Node& node : level.nodes()) {
      for (const Attribute& attribute : node.attributes()) {
        const auto* variable = std::get_if<VariableRef>(&attribute.value);
        if (variable == nullptr) continue;
        if (const auto found = names.find(variable->name); found != names.end())
          changes.emplace_back(node.id(), attribute.name, found->second);
      }
      if (!node.regions().empty()) owners.push_back(node.id());
    }
    for (const auto& [id, attribute, name] : changes) level.set_attribute(id, attribute, VariableRef{name});
    for (const NodeId id : owners) {
      for (std::size_t i = 0; i < level.node(id).regions().size(); ++i) rename(level.region(id, i), names);
    }
  }

  static void make_common(Graph& level, NodeId id) {
    Provenance provenance = level.node(id).provenance();
    if (!has(level.node(id).op().effects, Effect::kRandom)) provenance.replica = -1;  // which draws depend on
    level.set_provenance(id, provenance);
    for (std::size_t i = 0; i < level.node(id).regions().size(); ++i) {
      Graph& region = level.region(id, i);
      std::vector<NodeId> inside;
      for (const Node& node : region.nodes()) inside.push_back(node.id());
      for (const NodeId inner : inside) make_common(region, inner);
    }
  }

  void edit(Graph& level, const LevelPlan& plan, const Graph& outermost) const {
    for (const auto& [id, regions] : plan.regions) {
      for (std::size_t i = 0; i < regions.size(); ++i) edit(level.region(id, i), regions[i], outermost);
    }
    for (const NodeId id : plan.common) make_common(level, id);
    if (plan.erased.empty() && plan.moved.empty()) return;
    Rewriter rewriter(level, name(), &outermost);
    for (const auto& [from, to] : plan.moved) rewriter.replace_uses(from, to);
    for (const auto& [node, before] : plan.order) rewriter.add_control(node, before);
    rewriter.replace_and_erase(plan.erased);
  }

  ShareMirroredOptions options_;
};

}  // namespace

std::unique_ptr<Pass> make_share_mirrored(ShareMirroredOptions options) {
  return std::make_unique<ShareMirrored>(options);
}

}  // namespace lockstep
