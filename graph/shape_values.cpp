#include "lockstep/graph/internal/shape_values.h"

#include <algorithm>

#include "lockstep/graph/internal/eval.h"

namespace lockstep::internal {

namespace {

// Is it made of its inputs alone, by code that may run at any time?
void check_derivable(const Node& node) {
  const OpDef& op = node.op();
  const bool runs = op.kernels.contains(DeviceKind::kCpu);  // a placeholder does not
  if (runs && effects_of(node) == Effect::kPure && op.regions == 0 && !op.traits.per_replica_source) return;
  throw InvalidArgument(
      str("a shape operand must follow from constants and from shapes (shape_of), but it depends on '",
          node.name(), "' (", op.name, "), whose contents are known only when the step runs"),
      place_of(node));
}

const Tensor* attribute_of(const Node& node) {
  const auto& attribute = node.op().traits.gives_attribute;
  return attribute ? node.find<Tensor>(*attribute) : nullptr;
}

std::vector<Tensor> run(const Node& node, std::span<const Tensor> inputs) {
  return evaluate(node, inputs, EvalContext{});
}

constexpr int kMaxDepth = 256;

std::vector<std::int64_t> static_elements(const Graph& graph, ValueId value, int depth) {
  const Node& node = graph.node(value.node);
  if (const Tensor* constant = attribute_of(node)) return shape_elements(*constant);
  if (node.op().traits.gives_shape) {
    std::vector<std::int64_t> elements;
    for (const std::int64_t dim : graph.spec(node.inputs()[0]).shape.dims())
      elements.push_back(dim == kUnknown ? kUnknownElement : dim);
    return elements;
  }
  check_derivable(node);
  if (depth > kMaxDepth) {
    throw InvalidArgument(str("a shape operand is derived by more than ", kMaxDepth, " ops"), place_of(node));
  }
  const Shape& shape = graph.spec(value).shape;
  if (!shape.is_known()) return {};
  std::vector<Tensor> inputs;
  bool known = true;
  for (const ValueId input : node.inputs()) {
    const std::vector<std::int64_t> elements = static_elements(graph, input, depth + 1);
    const TensorSpec& spec = graph.spec(input);
    known = known && spec.shape.is_known() && std::ranges::find(elements, kUnknownElement) == elements.end();
    if (!known) continue;  // the rest is looked at all the same: it may have to be refused
    Tensor tensor = Tensor::empty(DType::kI64, spec.shape);
    std::ranges::copy(elements, tensor.data<std::int64_t>().begin());
    if (spec.dtype == DType::kI32) {
      Tensor narrow = Tensor::empty(DType::kI32, spec.shape);
      std::ranges::transform(elements, narrow.data<std::int32_t>().begin(),
                             [](std::int64_t e) { return static_cast<std::int32_t>(e); });
      tensor = narrow;
    }
    inputs.push_back(std::move(tensor));
  }
  if (known) return shape_elements(run(node, inputs)[value.output]);
  return std::vector<std::int64_t>(static_cast<std::size_t>(shape.num_elements()), kUnknownElement);
}

}  // namespace

Tensor shape_tensor(const Shape& shape) {
  return Tensor::from<std::int64_t>(Shape{static_cast<std::int64_t>(shape.rank())}, shape.dims());
}

std::vector<std::int64_t> shape_elements(const Tensor& tensor) {
  if (tensor.dtype() == DType::kI64) {
    const auto data = tensor.data<std::int64_t>();
    return {data.begin(), data.end()};
  }
  if (tensor.dtype() == DType::kI32) {
    const auto data = tensor.data<std::int32_t>();
    return {data.begin(), data.end()};
  }
  throw InvalidArgument(str("a shape operand must follow from i32 and i64 values, got ", tensor.spec()));
}

std::vector<std::int64_t> static_elements(const Graph& graph, ValueId value) {
  return static_elements(graph, value, 0);
}

const Tensor& HostValues::of(ValueId value) {
  const auto found = known_.find(value.node);
  if (found != known_.end()) return found->second.at(value.output);
  const Node& node = graph_.node(value.node);
  std::vector<Tensor> outputs;
  if (const Tensor* constant = attribute_of(node)) {
    outputs = {*constant};
  } else if (node.op().traits.gives_shape) {
    outputs = {shape_tensor(spec_of_(node.inputs()[0]).shape)};
  } else {
    check_derivable(node);
    std::vector<Tensor> inputs;
    for (const ValueId input : node.inputs()) inputs.push_back(of(input));
    outputs = run(node, inputs);
  }
  return known_.emplace(value.node, std::move(outputs)).first->second.at(value.output);
}

}  // namespace lockstep::internal
