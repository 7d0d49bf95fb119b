// strategies/passes/replicator.cpp - what the pass replicate does to replicated regions.
#include "lockstep/strategies/passes/internal/replicator.h"

#include <algorithm>
#include <utility>

#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/graph/transform/pass.h"
#include "lockstep/strategies/passes/internal/replica_clones.h"
#include "lockstep/strategies/passes/internal/variable_order.h"

namespace lockstep::internal {

void Replicator::run() {
  Target target{to_};
  std::vector<ValueId> parameters;
  for (const NodeId id : from_.parameters()) {
    const NodeId made = keep(target, from_.node(id), {}, {});
    to_.add_parameter(made);
    parameters.push_back({made, 0});
  }
  to_.set_results(cross(target, from_, parameters, {}));
  order(target);
}

void Replicator::order(const Target& target) {
  if (target.has_groups) order_variable_uses(target.graph);
}

// --- single nodes

NodeInit Replicator::copied(const Node& node) {
  NodeInit init;
  init.op = &node.op();
  init.outputs = SmallVector<TensorSpec, 1>(node.outputs());
  init.attributes_of = &node;
  init.device = node.device();
  init.site = node.site();
  return init;
}

// The same node, in another graph.
NodeId Replicator::keep(Target& target, const Node& node, std::span<const ValueId> inputs,
                        std::span<const NodeId> controls, std::vector<Graph> regions) {
  NodeInit init = copied(node);
  init.name = target.graph.find(node.name()).valid() ? target.graph.unique_name(node.name()) : node.name();
  init.inputs = SmallVector<ValueId, 2>(inputs);
  init.controls = SmallVector<NodeId, 2>(controls);
  init.regions = std::move(regions);
  Provenance provenance = node.provenance();
  if (provenance.made_by.valid()) provenance.made_by = target.graph.intern(text(node, provenance.made_by));
  if (provenance.why.valid()) provenance.why = target.graph.intern(text(node, provenance.why));
  init.provenance = provenance;
  return add(target, std::move(init), node);
}

Provenance Replicator::made_from(const Target& target, const Node& node, std::int64_t replica) {
  Provenance made;
  made.identity = Graph::new_identity();
  made.origin = node.provenance().origin;
  made.made_by = target.made_by;
  made.replica = static_cast<std::int32_t>(replica);
  return made;
}

// Specs are inferred again if inputs are now better known, or different, and always for collectives, which
// now have all their replicas.
NodeId Replicator::add(Target& target, NodeInit&& init, const Node& origin, bool same_regions) {
  bool same = init.op == &origin.op() && init.inputs.size() == origin.inputs().size() &&
              (init.regions.empty() || same_regions) && (init.op->shape_operands.empty() || knows_as_much_) &&
              !init.op->traits.is(ReplicaRole::kCollective);
  for (std::size_t i = 0; same && i < init.inputs.size(); ++i)
    same = target.graph.spec(init.inputs[i]) == origin.graph().spec(origin.inputs()[i]);
  const NodeId id = target.graph.add(std::move(init));
  if (same || origin.op().region_kind == RegionKind::kReplicated) return id;
  const Node& made = target.graph.node(id);
  infer(target, made, origin);
  bool as_before = &made.op() == &origin.op() && !origin.outputs().empty();
  for (std::size_t i = 0; as_before && i < made.outputs().size(); ++i)
    as_before = made.outputs()[i] == origin.outputs()[i % origin.outputs().size()];
  knows_as_much_ = knows_as_much_ && as_before;
  return id;
}

void Replicator::infer(Target& target, const Node& made, const Node& origin) {
  if (made.op().traits.gives_attribute || made.inputs().empty()) return;
  try {
    const SmallVector<TensorSpec, 1> specs =
        infer_outputs(made, input_specs(target.graph, made), variable_specs(to_));
    target.graph.set_outputs(made.id(), specs);
  } catch (const Error& error) {
    std::throw_with_nested(
        PassError(kReplicate, str("cannot replicate: ", error.message()), place_of(origin), error.code()));
  }
}

// The contents of a parameter are not known, but those of its argument may be; then the shapes that follow
// from them are known too.
void Replicator::take_arguments(const Target& target, std::span<const ValueId> arguments) {
  static const OpDef& placeholder = OpRegistry::global().get("placeholder");
  for (const ValueId value : arguments)
    knows_as_much_ = knows_as_much_ && &target.graph.node(value.node).op() == &placeholder;
}

// --- outside of replicated regions

// Makes the nodes of a graph that belongs to no replica; returns the values of its results. `enter` run
// before nodes with effects.
std::vector<ValueId> Replicator::cross(Target& target, const Graph& body, std::span<const ValueId> arguments,
                                       std::string_view scope) {
  take_arguments(target, arguments);
  std::vector<std::vector<ValueId>> values(body.id_bound());
  std::vector<NodeId> last(body.id_bound());  // nodes that run after a node run after this one
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    values[body.parameters()[i].index()] = {arguments[i]};
    last[body.parameters()[i].index()] = arguments[i].node;
  }
  std::vector<bool> followed(body.id_bound());  // some node runs after it
  for (const Node& node : body.nodes()) {
    for (const NodeId before : node.controls()) followed[before.index()] = true;
  }
  for (const NodeId id : body.topological_order()) {
    if (last[id.index()].valid()) continue;
    const Node& node = body.node(id);
    std::vector<ValueId> inputs;
    for (const ValueId input : node.inputs()) inputs.push_back(values[input.node.index()][input.output]);
    std::vector<NodeId> controls;
    for (const NodeId before : node.controls()) controls.push_back(last[before.index()]);
    if (node.op().region_kind == RegionKind::kReplicated) {
      std::vector<NodeId> effects;
      values[id.index()] = expand(target, node, inputs, controls, effects);
      if (followed[id.index()]) last[id.index()] = group(target, node, effects, "leave");
      continue;
    }
    if (node.op().traits.is(ReplicaRole::kCollective) && !node.regions().empty()) {
      throw PassError(kReplicate, "stands outside of a replicated region", place_of(node));
    }
    std::vector<Graph> regions;
    for (const Graph& region : node.regions()) regions.push_back(cross_region(region));
    const NodeId made = scope.empty() ? keep(target, node, inputs, controls, std::move(regions))
                                      : merged(target, node, inputs, controls, std::move(regions), scope);
    last[id.index()] = made;
    for (std::uint32_t i = 0; i < node.outputs().size(); ++i) values[id.index()].push_back({made, i});
  }
  std::vector<ValueId> results;
  for (const ValueId result : body.results()) results.push_back(values[result.node.index()][result.output]);
  return results;
}

NodeId Replicator::merged(Target& target, const Node& node, std::span<const ValueId> inputs,
                          std::span<const NodeId> controls, std::vector<Graph> regions,
                          std::string_view scope) {
  NodeInit init = copied(node);
  init.name = target.graph.unique_name(str(scope, "/", node.name()));
  init.inputs = SmallVector<ValueId, 2>(inputs);
  init.controls = SmallVector<NodeId, 2>(controls);
  init.regions = std::move(regions);
  init.provenance = made_from(target, node, -1);
  return add(target, std::move(init), node);
}

// A region that belongs to no replica, with its replicated regions flattened.
Graph Replicator::cross_region(const Graph& region) {
  Graph made;
  Target target{made};
  std::vector<ValueId> parameters;
  for (const NodeId id : region.parameters()) {
    const NodeId parameter = keep(target, region.node(id), {}, {});
    made.add_parameter(parameter);
    parameters.push_back({parameter, 0});
  }
  made.set_results(cross(target, region, parameters, {}));
  order(target);
  return made;
}

// --- replicated regions

// The values of a replicated node's outputs. `effects` receives those of its nodes that have effects.
std::vector<ValueId> Replicator::expand(Target& target, const Node& node, std::span<const ValueId> inputs,
                                        std::span<const NodeId> controls, std::vector<NodeId>& effects) {
  const ReplicatedNode replicated(node);
  const std::size_t replicas = replicated.replicas();
  std::vector<std::vector<ValueId>> arguments;
  for (std::size_t r = 0; r < replicas; ++r) arguments.push_back(replicated.arguments(inputs, r));
  ReplicaRange range = replicated.range();
  range.first += first_;
  Clones clones(*this, target, replicated.region(), range);
  if (!controls.empty()) clones.enter = group(target, node, controls, "enter");
  const std::vector<std::vector<ValueId>> results = clones.make(arguments);
  effects = std::move(clones.effects);
  std::vector<ValueId> outputs;
  for (std::size_t i = 0; i < node.regions()[0].results().size(); ++i) {
    for (std::size_t r = 0; r < replicas; ++r) outputs.push_back(results[r][i]);
  }
  return outputs;
}

NodeId Replicator::group(Target& target, const Node& node, std::span<const NodeId> controls,
                         std::string_view what) {
  target.has_groups = true;
  if (controls.size() == 1) return controls[0];
  static const OpDef& op = OpRegistry::global().get("group");
  NodeInit init;
  init.op = &op;
  init.name = target.graph.unique_name(str(node.name(), "/", what));
  init.controls = SmallVector<NodeId, 2>(controls);
  init.site = node.site();
  init.provenance = made_from(target, node, -1);
  return target.graph.add(std::move(init));
}

// One value for all of them; prove-sync proves that they are equal.
ValueId Replicator::agreement(Target& target, const Node& node, std::span<const ValueId> values,
                              const ReplicaRange& range) const {
  if (!range.is_part() && std::ranges::all_of(values, [&](ValueId value) { return value == values[0]; }))
    return values[0];
  static const OpDef& op = OpRegistry::global().get("agree");
  NodeInit init;
  init.op = &op;
  init.name = target.graph.unique_name(node.name() + "/agree");
  init.inputs = SmallVector<ValueId, 2>(values);
  init.outputs.push_back(target.graph.spec(values[0]));
  init.site = node.site();
  init.provenance = made_from(target, node, -1);
  if (const Node* joining = joining_node(node, copies_))
    init.attributes = {{"because", str(joining->op().name, " '", joining->name(), "'")}};
  return {target.graph.add(std::move(init)), 0};
}

void flatten_replicas(Graph& graph, std::int64_t first) {
  const Graph from = std::exchange(graph, Graph());
  for (const VariableDecl& decl : from.variables()) graph.declare_variable(decl);
  Replicator(from, graph, first).run();
}

}  // namespace lockstep::internal
