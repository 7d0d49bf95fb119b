// graph/ir/region_shapes.cpp - inference through regions, node by node.
#include "lockstep/graph/ir/internal/region_shapes.h"

#include <vector>

#include "lockstep/graph/ir/internal/shape_values.h"
#include "lockstep/graph/ir/replica_nodes.h"

namespace lockstep::internal {

namespace {

// The purpose of inference: a graph that passes may still change, or one that runs as it is.
enum class Purpose : std::uint8_t { kPass, kRun };

SmallVector<TensorSpec, 1> infer_node(const Node& node, std::span<const TensorSpec> inputs,
                                      const NodeView::VariableSpecs& variables,
                                      const NodeView::ShapeValues& shape_values, Purpose purpose);

std::vector<TensorSpec> infer_graph(const Graph& graph, std::span<const TensorSpec> arguments,
                                    const NodeView::VariableSpecs& variables, Purpose purpose) {
  std::vector<SmallVector<TensorSpec, 1>> specs(graph.id_bound());
  for (std::size_t i = 0; i < arguments.size(); ++i) specs[graph.parameters()[i].index()] = {arguments[i]};
  HostValues host(
      graph, [&](ValueId value) -> const TensorSpec& { return specs[value.node.index()][value.output]; });
  std::vector<TensorSpec> inputs;
  for (const NodeId id : graph.topological_order()) {
    if (!specs[id.index()].empty()) continue;
    const Node& node = graph.node(id);
    inputs.clear();
    for (const ValueId input : node.inputs()) inputs.push_back(specs[input.node.index()][input.output]);
    const NodeView::ShapeValues shape_values = host.for_node(node);
    specs[id.index()] = infer_node(node, inputs, variables, shape_values, purpose);
  }
  std::vector<TensorSpec> results;
  for (const ValueId result : graph.results()) results.push_back(specs[result.node.index()][result.output]);
  return results;
}

SmallVector<TensorSpec, 1> infer_regions(const Node& node, std::span<const TensorSpec> inputs,
                                         const NodeView::VariableSpecs& variables, Purpose purpose) {
  const auto keep = [](const std::vector<TensorSpec>& specs) {
    return SmallVector<TensorSpec, 1>(std::span<const TensorSpec>(specs));
  };
  switch (node.op().region_kind) {
    case RegionKind::kCond: {
      std::vector<TensorSpec> specs = infer_graph(node.regions()[0], inputs.subspan(1), variables, purpose);
      const std::vector<TensorSpec> others =
          infer_graph(node.regions()[1], inputs.subspan(1), variables, purpose);
      for (std::size_t i = 0; i < specs.size(); ++i)
        specs[i].shape = join_shapes(specs[i].shape, others[i].shape);
      return keep(specs);
    }
    case RegionKind::kWhile: return infer_outputs(node, inputs, variables);
    case RegionKind::kReplicated: {
      const ReplicatedNode replicated(node);
      std::vector<TensorSpec> outputs(node.outputs().size());
      for (std::size_t r = 0; r < replicated.replicas(); ++r) {
        const std::vector<TensorSpec> arguments = replicated.arguments(inputs, r);
        const std::vector<TensorSpec> results = infer_graph(node.regions()[0], arguments, variables, purpose);
        for (std::size_t i = 0; i < results.size(); ++i) outputs[replicated.output(i, r)] = results[i];
      }
      return keep(outputs);
    }
    case RegionKind::kNone: break;
  }
  return infer_outputs(node, inputs, variables);
}

SmallVector<TensorSpec, 1> infer_node(const Node& node, std::span<const TensorSpec> inputs,
                                      const NodeView::VariableSpecs& variables,
                                      const NodeView::ShapeValues& shape_values, Purpose purpose) {
  if (node.op().region_kind != RegionKind::kNone) return infer_regions(node, inputs, variables, purpose);
  SmallVector<TensorSpec, 1> outputs = infer_outputs(node, inputs, variables, &shape_values);
  if (purpose == Purpose::kRun && awaits_joining(node) && outputs.size() == inputs.size())
    return SmallVector<TensorSpec, 1>(inputs);
  return outputs;
}

}  // namespace

SmallVector<TensorSpec, 1> infer_region_outputs(const Node& node, std::span<const TensorSpec> inputs,
                                                const NodeView::VariableSpecs& variables) {
  return infer_regions(node, inputs, variables, Purpose::kPass);
}

SmallVector<TensorSpec, 1> infer_running(const Node& node, std::span<const TensorSpec> inputs,
                                         const NodeView::VariableSpecs& variables,
                                         const NodeView::ShapeValues& shape_values) {
  return infer_node(node, inputs, variables, shape_values, Purpose::kRun);
}

LoopShape loop_shape(const Node& node) {
  LoopShape loop;
  loop.carried = static_cast<std::size_t>(*node.find<std::int64_t>("carried"));
  if (const auto* trips = node.find<std::int64_t>("max_trips")) loop.max_trips = *trips;
  if (const auto* stash = node.find<bool>("stash")) loop.stash = *stash;
  return loop;
}

const Node* gather_of_known_extent(const Graph& replica) {
  static const OpDef& gather = OpRegistry::global().get("all_gather");
  for (const Node& node : replica.nodes()) {
    if (&node.op() == &gather && !awaits_joining(node)) return &node;
    const RegionKind kind = node.op().region_kind;
    if (kind != RegionKind::kCond && kind != RegionKind::kWhile) continue;
    for (const Graph& inner : node.regions()) {
      if (const Node* found = gather_of_known_extent(inner)) return found;
    }
  }
  return nullptr;
}

}  // namespace lockstep::internal
