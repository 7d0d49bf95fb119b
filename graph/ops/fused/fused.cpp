// graph/ops/fused/fused.cpp - element-wise nodes that run as one, made by the pass fuse-elementwise.
#include <algorithm>
#include <memory>
#include <vector>

#include "lockstep/graph/ops/fused/internal/tile_program.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"

namespace lockstep {

namespace {

using internal::shards_for;

// The results by shape. Those of output 0's shape come first, since output 0 may lie in an input's memory.
std::vector<std::vector<std::size_t>> by_shape(std::span<const TensorSpec> outputs) {
  std::vector<std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto found = std::ranges::find_if(groups, [&](const std::vector<std::size_t>& group) {
      return outputs[group[0]].shape == outputs[i].shape;
    });
    if (found == groups.end()) {
      groups.push_back({i});
    } else {
      found->push_back(i);
    }
  }
  return groups;
}

Cost fused_cost(const NodeView& view, std::span<const TensorSpec> outputs) {
  const Graph& region = view.regions()[0];
  const std::vector<TensorSpec> specs = internal::infer_elementwise(region, view.inputs());
  Cost cost;
  std::vector<TensorSpec> inputs;
  for (const Node& node : region.nodes()) {
    if (!internal::computes_tiles(node)) continue;
    const TensorSpec& output = specs[node.id().index()];
    inputs.clear();
    for (const ValueId input : node.inputs()) inputs.push_back(specs[input.node.index()]);
    const double elements = static_cast<double>(output.shape.num_elements());
    cost.flops +=
        node.op().cost
            ? std::max(node.op().cost(view_of(node, inputs, internal::no_variables()), {&output, 1}).flops,
                       elements)
            : elements;
  }
  for (const TensorSpec& input : view.inputs()) cost.bytes += static_cast<double>(num_bytes(input));
  for (const TensorSpec& output : outputs) cost.bytes += static_cast<double>(num_bytes(output));
  return cost;
}

Split fused_split(const NodeView& view, std::span<const TensorSpec> outputs) {
  constexpr double kFlopsPerShard = 1 << 20;  // 20 to 100 us
  std::int64_t elements = 0;
  for (const TensorSpec& output : outputs) elements = std::max(elements, output.shape.num_elements());
  const bool several = by_shape(outputs).size() > 1;
  if (elements == 0) return {1, 0, several};
  const double flops = fused_cost(view, outputs).flops / static_cast<double>(elements);
  const auto grain = static_cast<std::int64_t>(std::clamp(kFlopsPerShard / flops, 8192.0, 65536.0));
  return {shards_for(elements, grain), 0, several};
}

KernelFn fused_kernel(const NodeView& view, std::span<const TensorSpec> outputs) {
  const Graph& region = view.regions()[0];
  const std::vector<TensorSpec> specs = internal::infer_elementwise(region, view.inputs());
  auto programs = std::make_shared<std::vector<internal::TileProgram>>();
  for (const std::vector<std::size_t>& results : by_shape(outputs))
    programs->emplace_back(region, specs, results);
  if (programs->size() == 1) {
    return [programs](KernelContext& c) {
      const internal::TileProgram& program = programs->front();
      const auto [begin, end] = c.range(program.num_elements());
      program.run(c, begin, end);
    };
  }
  // Output 0 may lie in the memory of an input, which programs of other shapes read everywhere: it is written
  // last.
  return [programs](KernelContext& c) {
    if (c.is_finish()) return programs->front().run(c, 0, programs->front().num_elements());
    for (std::size_t i = 1; i < programs->size(); ++i) {
      const auto [begin, end] = c.range((*programs)[i].num_elements());
      (*programs)[i].run(c, begin, end);
    }
  };
}

}  // namespace

void internal::register_fused_ops(OpRegistry& registry) {
  OpDef def;
  def.name = "fused";
  def.summary = "element-wise nodes that run as one, tile by tile";
  def.inputs = Arity::at_least(0);
  def.regions = 1;
  def.traits.in_place = true;
  def.traits.refuses_integers = true;
  def.infer = [](InferContext& c) {
    const Graph& region = c.regions()[0];
    const std::vector<TensorSpec> specs = internal::infer_elementwise(region, c.inputs());
    for (const ValueId result : region.results()) c.add_output(specs[result.node.index()]);
  };
  def.cost = fused_cost;
  def.split = fused_split;
  def.kernels["cpu"] = fused_kernel;
  registry.add(std::move(def));
}

}  // namespace lockstep
