// graph/run/resolved_graph.cpp - which nodes run, and on which shapes, once the feeds' shapes are known.
#include "lockstep/graph/run/internal/resolved_graph.h"

#include <algorithm>

#include "lockstep/graph/interpret/internal/evaluator.h"
#include "lockstep/graph/ir/internal/region_shapes.h"
#include "lockstep/graph/run/internal/region_kernels.h"

namespace lockstep::internal {

ResolvedGraph::ResolvedGraph(const Graph& graph, std::span<const TensorSpec> feeds,
                             const NodeView::VariableSpecs& variables, SpecBlocks& kept)
    : graph_(graph),
      order_(graph.topological_order()),
      live_(live_nodes(graph, order_)),
      host_values_(graph, [this](ValueId value) -> const TensorSpec& { return spec_of(value); }) {
  find_running();
  resolve_shapes(feeds, variables, kept);
}

void ResolvedGraph::find_running() {
  runs_.assign(graph_.id_bound(), false);
  for (const ValueId result : graph_.results()) runs_[result.node.index()] = true;
  for (auto id = order_.rbegin(); id != order_.rend(); ++id) {
    const Node& node = graph_.node(*id);
    if (live_[id->index()] && must_run(effects_of(node))) runs_[id->index()] = true;
    if (!runs_[id->index()]) continue;
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      if (reads_contents(node, i)) runs_[node.inputs()[i].node.index()] = true;
    }
    for (const NodeId control : node.controls()) runs_[control.index()] = true;
  }
}

bool ResolvedGraph::is_shape_operand(const Node& node, std::size_t input) {
  const std::vector<std::size_t>& operands = node.op().shape_operands;
  return std::ranges::find(operands, input) != operands.end();
}

bool ResolvedGraph::reads_contents(const Node& node, std::size_t input) {
  return !node.op().traits.gives_shape && !is_shape_operand(node, input);
}

bool ResolvedGraph::is_alias(const Node& node) const {
  const OpTraits& traits = node.op().traits;
  if (node.inputs().empty()) return false;
  return traits.alias || (traits.alias_if_same && spec_of(node.inputs()[0]) == outputs_of(node)[0]);
}

void ResolvedGraph::resolve_shapes(std::span<const TensorSpec> feeds,
                                   const NodeView::VariableSpecs& variables, SpecBlocks& kept) {
  specs_.resize(graph_.id_bound(), nullptr);
  const auto keep = [&](NodeId id, std::span<const TensorSpec> outputs) {
    auto block = std::make_unique<TensorSpec[]>(outputs.size());
    std::ranges::copy(outputs, block.get());
    specs_[id.index()] = block.get();
    kept.push_back(std::move(block));
  };
  for (std::size_t i = 0; i < graph_.parameters().size(); ++i) keep(graph_.parameters()[i], {&feeds[i], 1});
  std::vector<TensorSpec> inputs;
  for (const NodeId id : order_) {
    const Node& node = graph_.node(id);
    if (!live_[id.index()] || specs_[id.index()] != nullptr) continue;
    const auto known = [](const TensorSpec& spec) { return spec.shape.is_known(); };
    // Shapes that were known when the graph was made were checked then. An output may have been known
    // although an input was not (a sum with a matrix of known shape): only now can their fit be checked.
    const bool inputs_known =
        std::ranges::all_of(node.inputs(), [&](ValueId input) { return known(graph_.spec(input)); });
    if (inputs_known && std::ranges::all_of(node.outputs(), known) && node.op().shape_operands.empty()) {
      keep(id, node.outputs());
      continue;
    }
    inputs.clear();
    for (const ValueId input : node.inputs()) inputs.push_back(spec_of(input));
    const SmallVector<TensorSpec, 1> outputs = infer(node, inputs, variables);
    keep(id, {outputs.data(), outputs.size()});
  }
}

SmallVector<TensorSpec, 1> ResolvedGraph::infer(const Node& node, std::span<const TensorSpec> inputs,
                                                const NodeView::VariableSpecs& variables) {
  const NodeView::ShapeValues shape_values = host_values_.for_node(node);
  SmallVector<TensorSpec, 1> outputs = infer_running(node, inputs, variables, shape_values);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].shape.is_known()) {
      throw InvalidArgument(
          str(node.op().name, ": an output is still ", outputs[i],
              " with the feeds' shapes known; its shape must follow from the shapes of its inputs",
              node.op().region_kind == RegionKind::kCond ? ", and be the same whichever branch runs: pad "
                                                           "what they give to one extent, or reduce it inside"
                                                         : ""),
          place_of(node));
    }
    if (!node.outputs()[i].shape.admits(outputs[i].shape)) {
      throw InvalidArgument(str(node.op().name, ": output ", i, " is ", node.outputs()[i],
                                " in the graph and ", outputs[i], " with the feeds' shapes"),
                            place_of(node));
    }
  }
  return outputs;
}

}  // namespace lockstep::internal
