// strategies/passes/replica_clones.cpp - makes clones and joins in order, and single clones.
#include "lockstep/strategies/passes/internal/replica_clones.h"

#include <algorithm>
#include <utility>

#include "lockstep/graph/transform/pass.h"
#include "lockstep/strategies/passes/internal/replica_joins.h"

namespace lockstep::internal {

namespace {

bool runs_regions(const Node& node) {
  const RegionKind kind = node.op().region_kind;
  return kind == RegionKind::kCond || kind == RegionKind::kWhile;
}

const Node* joining_in(const Graph& region, const VariableCopies& copies) {
  for (const Node& node : region.nodes()) {
    if (combines_replicas(node.op())) return &node;
    for (const std::string& name : updated_variables(node)) {
      if (copies.is_mirrored(name)) return &node;
    }
    if (const Node* inside = joining_node(node, copies)) return inside;
  }
  return nullptr;
}

// Must it be one node for all replicas? Yes if it joins replicas itself, or if a node inside it does or
// writes a variable that they keep equal. Regions that do not run by themselves (a gradient rule, fused
// nodes) do not count.
bool joins(const Node& node, const VariableCopies& copies) {
  return combines_replicas(node.op()) || joining_node(node, copies) != nullptr;
}

}  // namespace

const Node* joining_node(const Node& node, const VariableCopies& copies) {
  if (!runs_regions(node)) return nullptr;
  for (const Graph& region : node.regions()) {
    if (const Node* inside = joining_in(region, copies)) return inside;
  }
  return nullptr;
}

Clones::Clones(Replicator& owner, Target& target, const Graph& body, const ReplicaRange& range)
    : owner_(owner),
      target_(target),
      body_(body),
      range_(range),
      replicas_(static_cast<std::size_t>(range.local)) {
  for (std::size_t r = 0; r < replicas_; ++r) prefixes_.push_back(str("replica_", r, "/"));
}

// The results of each replica.
std::vector<std::vector<ValueId>> Clones::make(std::span<const std::vector<ValueId>> arguments) {
  bases_.resize(replicas_ * body_.id_bound());
  target_.graph.reserve(target_.graph.id_bound() + replicas_ * body_.size());
  for (std::size_t r = 0; r < replicas_; ++r) {
    owner_.take_arguments(target_, arguments[r]);
    for (std::size_t i = 0; i < body_.parameters().size(); ++i)
      base(r, body_.parameters()[i]) = arguments[r][i];
  }
  arrange();
  find_variables();
  Joins one_for_all(*this);
  for (const std::vector<NodeId>& phase : phases_) {
    for (std::size_t r = 0; r < replicas_; ++r) {
      for (const NodeId id : phase) {
        if (!is_join_[id.index()]) clone(body_.node(id), r);
      }
    }
    for (const NodeId id : phase) {
      if (is_join_[id.index()]) one_for_all.join(body_.node(id));
    }
  }
  std::vector<std::vector<ValueId>> results(replicas_);
  for (std::size_t r = 0; r < replicas_; ++r) {
    for (const ValueId result : body_.results()) results[r].push_back(value(r, result));
  }
  return results;
}

// --- order: see the header of the pass

void Clones::arrange() {
  const std::vector<NodeId> order = body_.topological_order();
  is_join_.resize(body_.id_bound());
  std::vector<std::uint32_t> phase(body_.id_bound());
  std::vector<bool> fixed(body_.id_bound());
  const auto each_before = [&](const Node& node, auto&& visit) {
    for (const ValueId input : node.inputs()) visit(input.node);
    for (const NodeId before : node.controls()) visit(before);
  };
  std::uint32_t most = 0;
  for (const NodeId id : order) {
    const Node& node = body_.node(id);
    is_join_[id.index()] = joins(node, owner_.copies());
    fixed[id.index()] = is_join_[id.index()] || effects_of(node) != Effect::kPure;
    std::uint32_t earliest = 0;
    each_before(node, [&](NodeId before) {
      const std::uint32_t after = phase[before.index()] + (is_join_[before.index()] ? 1U : 0U);
      earliest = std::max(earliest, after);
    });
    phase[id.index()] = earliest;
    most = std::max(most, earliest);
  }
  // As late as the readers allow.
  constexpr std::uint32_t kFree = std::numeric_limits<std::uint32_t>::max();
  std::vector<std::uint32_t> latest(body_.id_bound(), kFree);
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    const std::size_t at = it->index();
    if (!fixed[at] && latest[at] != kFree) phase[at] = latest[at];
    each_before(body_.node(*it),
                [&](NodeId before) { latest[before.index()] = std::min(latest[before.index()], phase[at]); });
  }
  phases_.resize(most + 1);
  for (const NodeId id : order) {
    const bool parameter = base(0, id).valid();
    if (!parameter) phases_[phase[id.index()]].push_back(id);
  }
}

// Done once, not once per replica: in a large graph looking up a name takes longer than making a node.
void Clones::find_variables() {
  const std::vector<VariableDecl>& variables = owner_.made().variables();
  for (std::size_t at = 0; at < body_.id_bound(); ++at) {
    first_named_.push_back(static_cast<std::uint32_t>(named_.size()));
    if (!body_.contains(NodeId(at))) continue;
    const std::vector<Attribute>& attributes = body_.node(NodeId(at)).attributes();
    for (std::size_t i = 0; i < attributes.size(); ++i) {
      const auto* variable = std::get_if<VariableRef>(&attributes[i].value);
      const VariableDecl* decl = variable == nullptr ? nullptr : owner_.made().find_variable(variable->name);
      if (decl != nullptr)
        named_.push_back(
            {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(decl - variables.data())});
    }
  }
  first_named_.push_back(static_cast<std::uint32_t>(named_.size()));
}

// --- values

ValueId Clones::value(std::size_t replica, ValueId of) {
  const ValueId at = base(replica, of.node);
  if (at.output == kListed) return lists_[at.node.index() + of.output];
  return {at.node, at.output + of.output};
}

NodeId Clones::last(std::size_t replica, NodeId id) {
  const ValueId at = base(replica, id);
  return at.output == kListed ? lists_after_[at.node.index()] : at.node;
}

// For outputs that come from several nodes.
void Clones::list(std::size_t replica, NodeId id, std::span<const ValueId> values, NodeId after) {
  base(replica, id) = {NodeId(lists_.size()), kListed};
  lists_.insert(lists_.end(), values.begin(), values.end());
  if (values.empty()) lists_.emplace_back();
  lists_after_.resize(lists_.size(), after);
  for (std::size_t i = lists_.size() - std::max<std::size_t>(values.size(), 1); i < lists_.size(); ++i)
    lists_after_[i] = after;
}

SmallVector<ValueId, 2> Clones::inputs_of(const Node& node, std::size_t replica) {
  SmallVector<ValueId, 2> inputs;
  for (const ValueId input : node.inputs()) inputs.push_back(value(replica, input));
  return inputs;
}

void Clones::add_controls(const Node& node, std::size_t replica, SmallVector<NodeId, 2>& controls) {
  const auto add_once = [&](NodeId before) {
    if (before.valid() && std::ranges::find(controls, before) == controls.end()) controls.push_back(before);
  };
  for (const NodeId before : node.controls()) add_once(last(replica, before));
}

void Clones::note_effects(NodeId made) {
  const Effect effect = effects_of(target_.graph.node(made));
  if (effect == Effect::kPure || effect == Effect::kRandom) return;
  effects.push_back(made);
  if (enter.valid()) target_.graph.add_control(made, enter);
}

std::string Clones::name_for(const Node& node, std::size_t replica) const {
  return replica == 0 ? node.name() : prefixes_[replica] + node.name();
}

// --- one node per replica

void Clones::clone(const Node& node, std::size_t replica) {
  if (node.op().region_kind == RegionKind::kReplicated) {
    throw PassError(
        kReplicate,
        "a replicated region inside a replicated region has no meaning; leave it first (merge_call)",
        place_of(node));
  }
  const auto r = static_cast<std::int64_t>(replica);
  NodeInit init = Replicator::copied(node);
  init.name = name_for(node, replica);
  if (target_.graph.find(init.name).valid()) init.name = target_.graph.unique_name(init.name);
  init.provenance = Replicator::made_from(target_, node, number(replica));
  if (node.op().traits.is(ReplicaRole::kReplicaNumber)) {
    make_number(init, replica);
  } else {
    init.inputs = inputs_of(node, replica);
    const std::size_t id = node.id().index();
    for (std::size_t i = first_named_[id]; i < first_named_[id + 1]; ++i) {
      const VariableDecl* copy = owner_.copies().copy(named_[i].variable, r);
      if (copy != nullptr) init.own_attributes()[named_[i].attribute].value = VariableRef{copy->name};
    }
    init.regions.assign(node.regions().begin(), node.regions().end());
    for (Graph& region : init.regions) make_own(region, replica);
  }
  add_controls(node, replica, init.controls);
  const NodeId made = owner_.add(target_, std::move(init), node, true);
  base(replica, node.id()) = {made, 0};
  note_effects(made);
}

// A constant; but where there are other workers, whose graphs are to be the same, the node stays what it is: it asks for the number
// of the replica that it belongs to.
void Clones::make_number(NodeInit& init, std::size_t replica) const {
  if (range_.is_part()) return;
  static const OpDef& op = OpRegistry::global().get("constant");
  init.op = &op;
  init.own_attributes() = {{"value", Tensor::full(init.outputs[0].dtype, init.outputs[0].shape,
                                                  static_cast<double>(number(replica)))}};
}

// Turns a copy of a region into one that the replica runs on its own.
void Clones::make_own(Graph& region, std::size_t replica) {
  const StringId made_by = region.intern(kReplicate);
  for (std::size_t at = 0; at < region.id_bound(); ++at) {
    const NodeId id(at);
    if (!region.contains(id)) continue;
    const Node& node = region.node(id);
    Provenance provenance = node.provenance();
    provenance.identity = Graph::new_identity();
    provenance.made_by = made_by;
    provenance.replica = static_cast<std::int32_t>(number(replica));
    provenance.gradient = GradientMark::kNone;  // nothing is left to sum
    region.set_provenance(id, provenance);
    if (node.op().traits.is(ReplicaRole::kReplicaNumber) && !range_.is_part()) {
      NodeInit init;
      init.outputs = SmallVector<TensorSpec, 1>(node.outputs());
      make_number(init, replica);
      region.set_op(id, *init.op);
      region.set_attribute(id, "value", init.attributes[0].value);
    }
    for (std::size_t i = 0; i < node.attributes().size(); ++i) {
      const Attribute& attribute = node.attributes()[i];
      const auto* variable = std::get_if<VariableRef>(&attribute.value);
      if (variable == nullptr) continue;
      const std::string& name = owner_.copies().name(variable->name, static_cast<std::int64_t>(replica));
      if (name != variable->name) region.set_attribute(id, attribute.name, VariableRef{name});
    }
    for (std::size_t i = 0; i < node.regions().size(); ++i) make_own(region.region(id, i), replica);
  }
}

}  // namespace lockstep::internal
