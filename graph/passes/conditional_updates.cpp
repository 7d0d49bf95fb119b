// graph/passes/conditional_updates.cpp - updates that are made in some steps only.
#include "lockstep/graph/passes/internal/conditional_updates.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "lockstep/core/base/name_set.h"

namespace lockstep::internal {
namespace {

const OpTraits::Update& update_of(const Node& node) { return *node.op().traits.updates_variable; }

// Variables that the updates' other inputs (neither gradient nor row numbers) depend on.
NameSet asked_variables(const Graph& level, const std::vector<NodeId>& order,
                        const std::vector<NodeId>& updates) {
  std::vector<bool> asked(level.id_bound());
  for (const NodeId id : updates) {
    const Node& node = level.node(id);
    const OpTraits::Update& update = update_of(node);
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      if (i != update.operand && (!update.indices || i != *update.indices))
        asked[node.inputs()[i].node.index()] = true;
    }
  }
  NameSet names;
  for (auto id = order.rbegin(); id != order.rend(); ++id) {
    const Node& node = level.node(*id);
    if (!asked[id->index()]) continue;
    for (const ValueId input : node.inputs()) asked[input.node.index()] = true;
    for (const VariableUse& use : variable_uses(node)) names.insert(use.name);
  }
  return names;
}

bool is_counter(const Node& node, const VariableDecl& decl, const NameSet& asked) {
  const OpTraits::Update& update = update_of(node);
  if (!update.uses_old_value || update.gradient || is_floating(decl.spec.dtype) ||
      decl.spec.shape.rank() != 0)
    return false;
  const bool constant = std::ranges::all_of(node.inputs(), [&](ValueId input) {
    return node.graph().node(input.node).op().traits.gives_attribute.has_value();
  });
  const bool as_iterations = !decl.trainable && decl.aggregation == Aggregation::kOnlyFirstReplica;
  return constant && (asked.contains(decl.name) || as_iterations);
}

// Values that a region takes from the graph around it.
class Branch {
 public:
  // The parameter that stands for a value; one parameter per value.
  ValueId take(const Graph& level, ValueId value) {
    const auto [found, is_new] = places_.emplace(value, taken_.size());
    if (is_new) {
      static const OpDef& op = OpRegistry::global().get("placeholder");
      NodeInit init;
      init.op = &op;
      init.name = str("in_", taken_.size());
      init.outputs.push_back(level.spec(value));
      init.site = level.node(value.node).site();
      graph.add_parameter(graph.add(std::move(init)));
      taken_.push_back(value);
    }
    return {graph.parameters()[found->second], 0};
  }
  const std::vector<ValueId>& taken() const { return taken_; }

  // The node itself, in the branch.
  NodeId move_in(const Node& node, SmallVector<ValueId, 2> inputs) {
    NodeInit init;
    init.op = &node.op();
    init.name = graph.unique_name(node.name());
    init.inputs = std::move(inputs);
    init.outputs = SmallVector<TensorSpec, 1>(node.outputs());
    init.attributes = node.attributes();
    init.device = node.device();
    init.site = node.site();
    Provenance provenance = node.provenance();
    const Graph& from = node.graph();
    if (provenance.made_by.valid()) provenance.made_by = graph.intern(from.text(provenance.made_by));
    if (provenance.why.valid()) provenance.why = graph.intern(from.text(provenance.why));
    init.provenance = provenance;
    return graph.add(std::move(init));
  }

  Graph graph;

 private:
  std::unordered_map<ValueId, std::size_t> places_;
  std::vector<ValueId> taken_;
};

}  // namespace

GradientInBranch::~GradientInBranch() = default;

const VariableDecl* updated_variable(const Node& update, const Graph& outermost) {
  const auto* variable = update.find<VariableRef>(update_of(update).attribute);
  return variable == nullptr ? nullptr : outermost.find_variable(variable->name);
}

std::vector<ConditionalNode> conditional_nodes(const Graph& level, const Graph& outermost) {
  const std::vector<NodeId> order = level.topological_order();
  std::vector<NodeId> updates, others;
  for (const NodeId id : order) {
    const auto& update = level.node(id).op().traits.updates_variable;
    if (update && updated_variable(level.node(id), outermost) != nullptr)
      (update->gradient ? updates : others).push_back(id);
  }
  std::vector<ConditionalNode> found;
  if (updates.empty()) return found;
  const NameSet asked = asked_variables(level, order, updates);
  std::vector<bool> moves(level.id_bound());
  for (const NodeId id : updates) moves[id.index()] = true;
  for (const NodeId id : others) {
    const Node& node = level.node(id);
    moves[id.index()] = is_counter(node, *updated_variable(node, outermost), asked);
  }
  std::vector<std::size_t> depth(level.id_bound());
  for (const NodeId id : order) {
    const auto comes_after = [&](NodeId before) {
      const std::size_t after = depth[before.index()] + (moves[before.index()] ? 1U : 0U);
      depth[id.index()] = std::max(depth[id.index()], after);
    };
    for (const ValueId input : level.node(id).inputs()) comes_after(input.node);
    for (const NodeId before : level.node(id).controls()) comes_after(before);
    if (moves[id.index()]) found.push_back({.node = id, .depth = depth[id.index()]});
  }
  std::ranges::stable_sort(found, {}, &ConditionalNode::depth);
  return found;
}

std::span<const ConditionalNode> take_depth(std::span<const ConditionalNode>& nodes) {
  std::size_t count = 0;
  while (count < nodes.size() && nodes[count].depth == nodes[0].depth) ++count;
  const std::span<const ConditionalNode> taken = nodes.first(count);
  nodes = nodes.subspan(count);
  return taken;
}

std::vector<std::string> trained_variables(std::span<const ConditionalNode> nodes, const Graph& level,
                                           const Graph& outermost) {
  std::vector<std::string> names;
  for (const ConditionalNode& each : nodes) {
    const Node& node = level.node(each.node);
    if (update_of(node).gradient) names.push_back(updated_variable(node, outermost)->name);
  }
  return names;
}

std::string tag_of(std::string text, std::vector<std::string> variables) {
  std::ranges::sort(variables);
  variables.insert(variables.begin(), std::move(text));
  std::uint64_t hash = 0xCBF29CE484222325U;  // FNV-1a
  for (const std::string& name : variables) {
    for (const char letter : name + '\n') hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001B3U;
  }
  std::string digits;
  for (int shift = 60; shift >= 0; shift -= 4) digits += "0123456789abcdef"[(hash >> shift) & 15U];
  return digits;
}

std::string declare_free(Graph& outermost, VariableDecl decl) {
  const std::string name = decl.name;
  for (int i = 1; outermost.find_variable(decl.name) != nullptr; ++i) decl.name = str(name, "_", i);
  std::string taken = decl.name;
  outermost.declare_variable(std::move(decl));
  return taken;
}

const Node* branch_of(const Graph& level, std::string_view pass) {
  for (const Node& node : level.nodes()) {
    const StringId maker = node.provenance().made_by;
    if (node.op().region_kind == RegionKind::kCond && maker.valid() && level.text(maker) == pass)
      return &node;
  }
  return nullptr;
}

void move_into_branch(Rewriter& edit, const Graph& outermost, std::string_view pass,
                      std::span<const ConditionalNode> nodes, ValueId due, std::string_view name,
                      GradientInBranch* gradients) {
  const Graph& level = edit.graph();
  Branch then_branch;
  struct Moved {
    std::vector<ValueId> taken;      // parameters of the branch that stand for the gradient
    SmallVector<ValueId, 2> inputs;  // of the node there
  };
  std::vector<Moved> moved(nodes.size());
  const auto changes_gradient = [&](const Node& node) {
    return gradients != nullptr && update_of(node).gradient;
  };
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const NodeId id = nodes[i].node;
    const bool changes = changes_gradient(level.node(id));
    if (changes) {
      for (const ValueId value : gradients->outside(id))
        moved[i].taken.push_back(then_branch.take(level, value));
    }
    const Node& node = level.node(id);
    const OpTraits::Update& update = update_of(node);
    for (std::size_t at = 0; at < node.inputs().size(); ++at) {
      const bool replaced = changes && (at == update.operand || (update.indices && at == *update.indices));
      moved[i].inputs.push_back(replaced ? ValueId() : then_branch.take(level, node.inputs()[at]));
    }
  }
  Branch else_branch;
  for (const ValueId value : then_branch.taken()) else_branch.take(level, value);
  {
    Rewriter inside(then_branch.graph, pass, &outermost);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const Node& node = level.node(nodes[i].node);
      if (!changes_gradient(node)) continue;
      const OpTraits::Update& update = update_of(node);
      const std::vector<ValueId> made = gradients->inside(inside, nodes[i].node, moved[i].taken);
      moved[i].inputs[update.operand] = made[0];
      if (update.indices) moved[i].inputs[*update.indices] = made[1];
    }
  }
  std::vector<Rewriter::Replacement> replaced;
  std::vector<NodeId> controls;
  std::vector<ValueId> kept;  // what the results are in the other steps
  {
    Rewriter inside(else_branch.graph, pass, &outermost);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const Node& node = level.node(nodes[i].node);
      const NodeId there = then_branch.move_in(node, moved[i].inputs);
      replaced.push_back({.node = nodes[i].node});
      controls.insert(controls.end(), node.controls().begin(), node.controls().end());
      if (!edit.is_read(nodes[i].node)) continue;
      const SmallVector<std::string, 1> names = updated_variables(node);
      for (std::uint32_t output = 0; output < node.outputs().size(); ++output) {
        then_branch.graph.add_result({there, output});
        replaced.back().to.push_back({NodeId(), static_cast<std::uint32_t>(kept.size())});
        const NodeId read = inside.insert(
            {.op = "read", .name = names[output], .attributes = {{"variable", VariableRef{names[output]}}}});
        kept.push_back({read, 0});
      }
    }
  }
  else_branch.graph.set_results(std::move(kept));
  std::ranges::sort(controls);
  controls.erase(std::unique(controls.begin(), controls.end()), controls.end());
  std::vector<ValueId> inputs = {due};
  inputs.insert(inputs.end(), then_branch.taken().begin(), then_branch.taken().end());
  std::vector<Graph> regions;
  regions.push_back(std::move(then_branch.graph));
  regions.push_back(std::move(else_branch.graph));
  const NodeId branch = edit.insert({.op = "cond",
                                     .name = name,
                                     .inputs = std::move(inputs),
                                     .controls = std::move(controls),
                                     .regions = std::move(regions),
                                     .origin = nodes[0].node});
  for (Rewriter::Replacement& one : replaced) {
    for (ValueId& value : one.to) value.node = branch;
    for (const NodeId user : edit.control_users(one.node)) edit.add_control(user, branch);
  }
  edit.replace_and_erase(replaced);
}

}  // namespace lockstep::internal
