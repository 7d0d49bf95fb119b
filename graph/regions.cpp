#include "lockstep/graph/internal/regions.h"

#include <cstring>
#include <limits>
#include <memory>

#include "lockstep/graph/internal/evaluator.h"
#include "lockstep/graph/internal/shape_values.h"

namespace lockstep {

namespace {

std::vector<TensorSpec> infer_graph(const Graph& graph, std::span<const TensorSpec> arguments,
                                    const NodeView::VariableSpecs& variables) {
  std::vector<SmallVector<TensorSpec, 1>> specs(graph.id_bound());
  for (std::size_t i = 0; i < arguments.size(); ++i) specs[graph.parameters()[i].index()] = {arguments[i]};
  internal::HostValues host(
      graph, [&](ValueId value) -> const TensorSpec& { return specs[value.node.index()][value.output]; });
  std::vector<TensorSpec> inputs;
  for (const NodeId id : graph.topological_order()) {
    if (!specs[id.index()].empty()) continue;
    const Node& node = graph.node(id);
    inputs.clear();
    for (const ValueId input : node.inputs()) inputs.push_back(specs[input.node.index()][input.output]);
    const NodeView::ShapeValues shape_values = host.for_node(node);
    specs[id.index()] = node.op().region_kind == RegionKind::kNone
                            ? infer_outputs(node, inputs, variables, &shape_values)
                            : infer_region_outputs(node, inputs, variables);
  }
  std::vector<TensorSpec> results;
  for (const ValueId result : graph.results()) results.push_back(specs[result.node.index()][result.output]);
  return results;
}

}  // namespace

SmallVector<TensorSpec, 1> infer_region_outputs(const Node& node, std::span<const TensorSpec> inputs,
                                                const NodeView::VariableSpecs& variables) {
  const auto keep = [](const std::vector<TensorSpec>& specs) {
    return SmallVector<TensorSpec, 1>(std::span<const TensorSpec>(specs));
  };
  switch (node.op().region_kind) {
    case RegionKind::kCond: {
      std::vector<TensorSpec> specs = infer_graph(node.regions()[0], inputs.subspan(1), variables);
      const std::vector<TensorSpec> others = infer_graph(node.regions()[1], inputs.subspan(1), variables);
      for (std::size_t i = 0; i < specs.size(); ++i)
        specs[i].shape = join_shapes(specs[i].shape, others[i].shape);
      return keep(specs);
    }
    case RegionKind::kWhile: {
      const auto carried = static_cast<std::size_t>(*node.find<std::int64_t>("carried"));
      return SmallVector<TensorSpec, 1>(inputs.first(carried));
    }
    case RegionKind::kReplicated: {
      const auto replicas = static_cast<std::size_t>(*node.find<std::int64_t>("replicas"));
      const auto shared = static_cast<std::size_t>(*node.find<std::int64_t>("shared"));
      std::vector<TensorSpec> outputs(node.outputs().size());
      for (std::size_t r = 0; r < replicas; ++r) {
        std::vector<TensorSpec> arguments(inputs.begin(),
                                          inputs.begin() + static_cast<std::ptrdiff_t>(shared));
        for (std::size_t at = shared + r; at < inputs.size(); at += replicas) arguments.push_back(inputs[at]);
        const std::vector<TensorSpec> results = infer_graph(node.regions()[0], arguments, variables);
        for (std::size_t i = 0; i < results.size(); ++i) outputs[i * replicas + r] = results[i];
      }
      return keep(outputs);
    }
    case RegionKind::kNone: break;
  }
  return infer_outputs(node, inputs, variables);
}

KernelFn make_region_kernel(const Node& node, std::span<const TensorSpec> outputs,
                            std::vector<VariableUse> uses, const NodeView::VariableSpecs& variables) {
  auto orders = std::make_shared<const GraphOrders>(node);
  return [&node, uses = std::move(uses), variables, orders, declared = outputs.size()](KernelContext& c) {
    // Kernels only read their inputs, so views of them will do.
    const auto view = [&](std::size_t i) {
      return Tensor::view(c.input_spec(i).dtype, c.input_spec(i).shape, const_cast<void*>(c.input(i)));
    };
    std::vector<Tensor> inputs;
    for (std::size_t i = 0; i < node.inputs().size(); ++i) inputs.push_back(view(i));
    Evaluator::Variables state;
    for (std::size_t i = 0; i < uses.size(); ++i) state[uses[i].name] = view(node.inputs().size() + i);
    Evaluator evaluator(c.run(), variables, std::move(state), std::numeric_limits<std::int64_t>::max(),
                        *orders);
    const std::vector<Tensor> results = evaluator.run_regions(node, inputs, node.provenance().replica);
    const auto write = [&](std::size_t i, const Tensor& value) {
      if (value.spec() != c.output_spec(i)) {
        throw InvalidArgument(
            str("output ", i, " was planned as ", c.output_spec(i), " and came out as ", value.spec()));
      }
      if (value.num_bytes() > 0) std::memcpy(c.output(i), value.raw(), value.num_bytes());
    };
    for (std::size_t i = 0; i < results.size(); ++i) write(i, results[i]);
    std::size_t next = declared;
    for (const VariableUse& use : uses) {
      if (use.writes) write(next++, evaluator.variables().at(use.name));
    }
  };
}

}  // namespace lockstep
