// graph/ir/evaluate_node.cpp - evaluates one node on tensors.
#include "lockstep/graph/ir/internal/evaluate_node.h"

#include <algorithm>

#include "lockstep/core/error.h"
#include "lockstep/graph/ir/internal/deferral.h"
#include "lockstep/graph/ir/internal/region_shapes.h"
#include "lockstep/graph/ir/internal/shape_values.h"
#include "lockstep/graph/ir/replica_nodes.h"

namespace lockstep::internal {

SmallVector<TensorSpec, 1> infer_new(const OpDef& op, std::string_view name,
                                     std::span<const TensorSpec> inputs,
                                     const std::vector<Attribute>& attributes, std::span<const Graph> regions,
                                     const NodeView::VariableSpecs& variables,
                                     std::span<const TensorSpec> declared,
                                     const NodeView::ShapeValues* shape_values) {
  if (!op.inputs.accepts(inputs.size())) throw InvalidArgument(arity_message(op, inputs.size()));
  if (regions.size() != op.regions) {
    throw InvalidArgument(str("has ", op.regions, " regions, got ", regions.size()));
  }
  InferContext context(name, inputs, attributes, regions, &variables, declared, shape_values);
  op.infer(context);
  return std::move(context.outputs());
}

bool gives_nothing(const Node& node, std::span<const TensorSpec> outputs) {
  const auto is_empty = [](const TensorSpec& spec) { return spec.shape.num_elements() == 0; };
  return !outputs.empty() && std::ranges::all_of(outputs, is_empty) && effects_of(node) == Effect::kPure;
}

std::vector<Tensor> evaluate(const Node& node, std::span<const Tensor> inputs, const EvalContext& context) {
  static const NodeView::VariableSpecs none = [](std::string_view) { return nullptr; };
  const NodeView::VariableSpecs& variables = context.variables == nullptr ? none : *context.variables;
  const OpDef& op = node.op();
  if (!context.state.empty() && op.kernels.empty()) return {context.state[0]};  // a plain read

  std::vector<TensorSpec> specs;
  specs.reserve(inputs.size());
  for (const Tensor& input : inputs) specs.push_back(input.spec());
  const NodeView::ShapeValues shape_values = [&](std::size_t i) { return shape_elements(inputs[i]); };
  const SmallVector<TensorSpec, 1> outputs = infer_running(node, specs, variables, shape_values);
  for (const TensorSpec& output : outputs) {
    if (!output.shape.is_known()) {
      throw InvalidArgument(str("the shape of an output is still unknown when it runs: ", output));
    }
  }
  if (op.traits.gives_shape) return {shape_tensor(inputs[0].shape())};
  if (op.traits.alias || (op.traits.alias_if_same && inputs[0].spec() == outputs[0]))
    return {inputs[0].reshape(outputs[0].shape)};

  const KernelDef* def = OpRegistry::global().kernel(op, "cpu");
  if (def == nullptr) {
    throw Error(ErrorCode::kUnimplemented,
                str("op '", op.name, "' has no CPU kernel; ",
                    combines_replicas(op)
                        ? "let a strategy distribute the graph, or interpret what replicate made of it"
                        : "register one in OpDef::kernels"));
  }
  std::vector<Tensor> results;
  results.reserve(outputs.size());
  for (const TensorSpec& output : outputs) results.push_back(Tensor::empty(output.dtype, output.shape));
  if (gives_nothing(node, {outputs.data(), outputs.size()})) return results;
  const NodeView view = view_of(node, specs, variables, &shape_values);
  const KernelFn kernel = def->make(view, outputs);
  const Split split = def->split ? def->split(view, outputs) : Split{};

  std::vector<TensorArg> args;  // const_cast is safe here: kernels only read their inputs
  args.reserve(inputs.size() + context.state.size());
  for (const Tensor& value : context.state) args.push_back({const_cast<void*>(value.raw()), &value.spec()});
  for (const Tensor& input : inputs) args.push_back({const_cast<void*>(input.raw()), &input.spec()});
  std::vector<TensorArg> targets;
  targets.reserve(results.size());
  for (Tensor& result : results) targets.push_back({result.raw(), &result.spec()});
  Tensor scratch;
  if (split.scratch_bytes > 0) {
    scratch = Tensor::empty(DType::kU8, Shape{static_cast<std::int64_t>(split.scratch_bytes)});
  }

  KernelContext kernel_context(args, targets, &context.run);
  kernel_context.set_replica(context.replica);
  for (std::int64_t shard = 0; shard < split.shards + (split.finish ? 1 : 0); ++shard) {
    kernel_context.set_shard(shard, split.shards, scratch.raw());
    if (!def->deferred) {
      kernel(kernel_context);
      continue;
    }
    WaitingDeferral deferral;
    kernel_context.set_deferral(&deferral);
    kernel(kernel_context);
    deferral.wait();
  }
  return results;
}

}  // namespace lockstep::internal
