// strategies/passes/sharing.cpp - which nodes share-mirrored merges.
#include "lockstep/strategies/passes/internal/sharing.h"

#include <algorithm>
#include <optional>
#include <span>

#include "lockstep/graph/ir/placement.h"

namespace lockstep::internal {

namespace {

class Planner {
 public:
  Planner(const Congruence& proof, const std::vector<bool>& copies, const Topology* topology)
      : proof_(proof), copies_(copies), members_(proof.num_classes()), memories_(topology) {}

  SharingPlan run() { return plan(proof_.graph(), proof_.top()); }
  const std::set<std::size_t>& refused() const { return refused_; }  // copies that cannot be shared

 private:
  using Updates = std::span<const LevelClasses::Update>;

  // By id, for nodes that update copies: the node that updates the variable at the same point.
  std::vector<NodeId> pair_updates(const Graph& graph, const LevelClasses& classes) {
    std::vector<NodeId> targets(graph.id_bound());
    std::vector<LevelClasses::Update> updates = classes.updates();
    std::ranges::stable_sort(updates, {}, &LevelClasses::Update::variable);
    const auto history_of = [&](std::size_t variable) {
      const auto from = std::ranges::lower_bound(updates, variable, {}, &LevelClasses::Update::variable);
      const auto to = std::ranges::upper_bound(updates, variable, {}, &LevelClasses::Update::variable);
      return Updates(updates).subspan(static_cast<std::size_t>(from - updates.begin()),
                                      static_cast<std::size_t>(to - from));
    };
    std::set<NodeId> unpaired;
    for (std::size_t at = 0; at < updates.size();) {
      const std::size_t variable = updates[at].variable;
      const Updates history = history_of(variable);
      at += history.size();
      const std::size_t original = proof_.original(variable);
      if (original == variable) continue;
      const Updates first = history_of(original);
      const bool pairs =
          copies_[variable] &&
          std::ranges::equal(history, first, {}, &LevelClasses::Update::after, &LevelClasses::Update::after);
      if (!pairs) refused_.insert(variable);
      for (std::size_t p = 0; p < history.size(); ++p) {
        const NodeId node = history[p].node;
        if (pairs && first[p].node == node) continue;  // one node updates both
        NodeId& target = targets[node.index()];
        if (!pairs || (target.valid() && target != first[p].node)) {
          unpaired.insert(node);
        } else {
          target = first[p].node;
        }
      }
    }
    // A node that also updates a variable that is not a copy stays.
    for (const LevelClasses::Update& update : updates) {
      if (proof_.original(update.variable) == update.variable && targets[update.node.index()].valid())
        unpaired.insert(update.node);
    }
    if (unpaired.empty()) return targets;
    for (const LevelClasses::Update& update : updates) {
      if (proof_.original(update.variable) != update.variable && unpaired.contains(update.node))
        refused_.insert(update.variable);
    }
    for (const NodeId node : unpaired) targets[node.index()] = NodeId();
    return targets;
  }

  static bool may_merge(const Node& node) {
    const Effect effects = effects_of(node);
    return effects == Effect::kPure || effects == Effect::kReadsVariable;
  }

  SharingPlan plan(const Graph& graph, const LevelClasses& classes) {
    SharingPlan made;
    const std::vector<NodeId> targets = pair_updates(graph, classes);
    std::vector<NodeId> merged(graph.id_bound());  // the node it is merged into
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
            memories_.same(device_of(graph, other), device_of(graph, value)))
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
    std::vector<NodeId> owners;  // of regions; visited last, because members_ holds this level's
    for (const NodeId id : graph.topological_order()) {
      const Node& node = graph.node(id);
      position[id.index()] = ++at;
      if (const NodeId target = targets[id.index()]; target.valid()) {
        if (!merge_update(graph, node, graph.node(target), position, made, follow)) {
          for (const VariableUse& use : variable_uses(node)) {
            if (use.writes) refuse(use.name);
          }
        } else {
          erase_for(node, target);
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
      // The node stays. If it is one for all replicas, readers of its outputs for other replicas move; so do
      // readers of parameters of regions.
      const bool joined =
          replica < 0 && (node.op().traits.is(ReplicaRole::kCollective) || classes.has_regions(id));
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
      std::vector<SharingPlan> inner;
      const Node& node = graph.node(id);
      for (std::size_t i = 0; i < node.regions().size(); ++i)
        inner.push_back(plan(node.regions()[i], classes.region(id, i)));
      made.regions.emplace(id, std::move(inner));
    }
    return made;
  }

  void refuse(const std::string& name) {
    const VariableDecl* decl = proof_.graph().find_variable(name);
    if (decl != nullptr) refused_.insert(static_cast<std::size_t>(decl - proof_.graph().variables().data()));
  }

  // Nodes that had to run before the copy's update must now run before the variable's.
  template <class Follow>
  bool merge_update(const Graph& graph, const Node& node, const Node& target,
                    std::span<const std::uint32_t> position, SharingPlan& made, const Follow& follow) {
    const std::uint32_t placed = position[target.id().index()];
    if (placed == 0 || &node.op() != &target.op() || !std::ranges::equal(node.outputs(), target.outputs()) ||
        !memories_.same(node.device(), target.device()) || node.provenance().replica < 0)
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
  const std::vector<bool>& copies_;
  struct Members {
    SmallVector<ValueId, 1> standing;  // others may be merged into these: one for each op, memory and spec
    std::uint32_t level = 0;           // the level that these entries belong to
    std::int32_t replica = -1;         // of the first
    bool mixed = false;                // the class has values of several replicas
  };
  std::vector<Members> members_;  // by class
  std::uint32_t level_ = 0;
  std::set<std::size_t> refused_;
  Memories memories_;
};

}  // namespace

SharingPlan plan_sharing(const Congruence& proof, const std::vector<bool>& copies, const Topology* topology,
                         std::set<std::size_t>& refused) {
  Planner planner(proof, copies, topology);
  SharingPlan plan = planner.run();
  refused = planner.refused();
  return plan;
}

}  // namespace lockstep::internal
