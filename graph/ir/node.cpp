// graph/ir/node.cpp - queries about single nodes.
#include <algorithm>

#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/ir/internal/shape_values.h"

namespace lockstep {

const std::string& Node::device() const {
  static const std::string kNone;
  return device_.valid() ? graph_->parts_.strings[device_] : kNone;
}

const std::vector<Attribute>& Node::no_attributes() {
  static const std::vector<Attribute> kNone;
  return kNone;
}

SourceSite Node::site() const { return graph_->parts_.sites.get(site_, graph_->parts_.strings); }

Effect effects_of(const Node& node) {
  Effect effects = node.op().effects;
  if (node.op().traits.declares_effects) {
    if (const auto* declared = node.find<std::int64_t>("effects")) effects = static_cast<Effect>(*declared);
  }
  // An op that may do without a key draws by it alone.
  if (has(effects, Effect::kRandom) && node.find<std::int64_t>("key") == nullptr) {
    const bool may = std::ranges::any_of(
        node.op().attributes, [](const AttributeSpec& a) { return a.name == "key" && !a.required; });
    if (may)
      effects = static_cast<Effect>(static_cast<std::uint8_t>(effects) &
                                    ~static_cast<std::uint8_t>(Effect::kRandom));
  }
  for (const Graph& region : node.regions()) {
    for (const Node& inner : region.nodes()) effects = effects | effects_of(inner);
  }
  return effects;
}

namespace {

// In the order of the nodes; a name may come several times.
void collect_uses(const Node& node, std::vector<VariableUse>& uses) {
  const auto use = [&](const std::string& attribute, bool reads, bool writes) {
    if (const auto* variable = node.find<VariableRef>(attribute))
      uses.push_back({variable->name, reads, writes});
  };
  const OpTraits& traits = node.op().traits;
  if (traits.reads_variable) use(*traits.reads_variable, true, false);
  if (traits.updates_variable) {
    use(traits.updates_variable->attribute, traits.updates_variable->uses_old_value, true);
    for (const std::string& slot : traits.updates_variable->slots) use(slot, true, true);
  }
  for (const Graph& region : node.regions()) {
    for (const Node& inner : region.nodes()) collect_uses(inner, uses);
  }
}

}  // namespace

std::vector<VariableUse> variable_uses(const Node& node) {
  std::vector<VariableUse> uses;
  collect_uses(node, uses);
  std::ranges::sort(uses, {}, &VariableUse::name);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (kept > 0 && uses[kept - 1].name == uses[i].name) {
      uses[kept - 1].reads = uses[kept - 1].reads || uses[i].reads;
      uses[kept - 1].writes = uses[kept - 1].writes || uses[i].writes;
    } else if (kept++ != i) {
      uses[kept - 1] = std::move(uses[i]);
    }
  }
  uses.resize(kept);
  return uses;
}

namespace {

void collect_updated(const Node& node, SmallVector<std::string, 1>& names) {
  const OpTraits& traits = node.op().traits;
  if (const auto& update = traits.updates_variable) {
    const auto add = [&](const std::string& attribute) {
      if (const auto* variable = node.find<VariableRef>(attribute)) names.push_back(variable->name);
    };
    add(update->attribute);
    for (const std::string& slot : update->slots) add(slot);
  }
  if (!traits.merges_updates) return;
  for (const Graph& region : node.regions()) {
    for (const ValueId result : region.results()) {
      if (result.output == 0) collect_updated(region.node(result.node), names);
    }
  }
}

}  // namespace

SmallVector<std::string, 1> updated_variables(const Node& node) {
  SmallVector<std::string, 1> names;
  collect_updated(node, names);
  return names;
}

ErrorPlace place_of(const Node& node) {
  const SourceSite site = node.site();
  return {node.name(), node.op().name, node.device(), site.file, site.line, node.provenance().replica};
}

std::vector<TensorSpec> input_specs(const Graph& graph, const Node& node) {
  std::vector<TensorSpec> specs;
  specs.reserve(node.inputs().size());
  for (const ValueId input : node.inputs()) specs.push_back(graph.spec(input));
  return specs;
}

NodeView view_of(const Node& node, std::span<const TensorSpec> inputs,
                 const NodeView::VariableSpecs& variables, const NodeView::ShapeValues* shape_values) {
  NodeView view{node.name(), inputs,         node.attributes(), node.regions(),
                &variables,  node.outputs(), shape_values};
  view.site_ = node.site();
  return view;
}

SmallVector<TensorSpec, 1> infer_outputs(const Node& node, std::span<const TensorSpec> inputs,
                                         const NodeView::VariableSpecs& variables,
                                         const NodeView::ShapeValues* shape_values) {
  NodeView::ShapeValues from_graph;
  if (shape_values == nullptr && !node.op().shape_operands.empty()) {
    from_graph = [&node](std::size_t i) { return internal::static_elements(node.graph(), node.inputs()[i]); };
    shape_values = &from_graph;
  }
  InferContext context(node.name(), inputs, node.attributes(), node.regions(), &variables, node.outputs(),
                       shape_values);
  // A loop that keeps its trips gives more outputs than it states; a node read from a file may give any
  // number.
  context.limit_outputs(4 * node.outputs().size() + 256);
  try {
    node.op().infer(context);
  } catch (const Error& error) {
    throw InvalidArgument(str(node.op().name, ": ", error.message()), place_of(node));
  }
  return std::move(context.outputs());
}

NodeView::VariableSpecs variable_specs(const Graph& outermost) {
  return [&outermost](std::string_view name) -> const TensorSpec* {
    const VariableDecl* decl = outermost.find_variable(name);
    return decl == nullptr ? nullptr : &decl->spec;
  };
}

}  // namespace lockstep
