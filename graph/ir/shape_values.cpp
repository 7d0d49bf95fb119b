// graph/ir/shape_values.cpp - the contents of shape operands.
#include "lockstep/graph/ir/internal/shape_values.h"

#include <algorithm>
#include <limits>

#include "lockstep/graph/ir/internal/evaluate_node.h"

namespace lockstep::internal {

bool is_derivable(const Node& node) {
  const OpDef& op = node.op();
  return op.traits.shape_math && op.kernels.contains("cpu") && effects_of(node) == Effect::kPure &&
         op.regions == 0;
}

namespace {

void check_derivable(const Node& node) {
  if (is_derivable(node)) return;
  const OpDef& op = node.op();
  const bool could = op.known && op.kernels.contains("cpu") && op.regions == 0 &&
                     effects_of(node) == Effect::kPure && op.traits.is(ReplicaRole::kNone);
  throw InvalidArgument(
      str("a shape operand must follow from constants and from shapes (shape_of), but it depends on '",
          node.name(), "' (", op.name,
          could ? "), which is no op for that (OpTraits::shape_math)"
                : "), whose contents are known only when the step runs; instead of a size, make the value at "
                  "the largest there can be, and mask what lies beyond: where(less(iota(b, DType::kI64, "
                  "largest), size), x, 0); instead of a begin, gather(x, index) takes a place that is known "
                  "only when the step runs"),
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
constexpr std::int64_t kMaxElements = 1 << 16;  // of a value computed while a graph is built
// The budget for all values of a graph, in elements that are read or made.
constexpr std::int64_t kBaseBudget = 1 << 21;
constexpr std::int64_t kNodeBudget = 16;

bool has_unknown(const std::vector<std::int64_t>& elements) {
  return std::ranges::find(elements, kUnknownElement) != elements.end();
}

Tensor tensor_of(const std::vector<std::int64_t>& elements, const TensorSpec& spec) {
  if (static_cast<std::int64_t>(elements.size()) != spec.shape.num_elements()) {
    throw InvalidArgument(str("a shape operand depends on a value that is stated to be ", spec, " and has ",
                              elements.size(), " elements"));
  }
  Tensor tensor = Tensor::empty(spec.dtype, spec.shape);
  if (spec.dtype == DType::kI32) {
    std::ranges::transform(elements, tensor.data<std::int32_t>().begin(),
                           [](std::int64_t e) { return static_cast<std::int32_t>(e); });
  } else {
    std::ranges::copy(elements, tensor.data<std::int64_t>().begin());
  }
  return tensor;
}

// The element of an operand that broadcasting pairs with element `at` of the output.
std::size_t broadcast_index(const Shape& in, const Shape& out, std::int64_t at) {
  std::int64_t index = 0, stride = 1;
  for (std::size_t back = 1; back <= out.rank(); ++back) {
    const std::int64_t place = at % out[out.rank() - back];
    at /= out[out.rank() - back];
    if (back > in.rank()) continue;
    const std::int64_t extent = in[in.rank() - back];
    if (extent != 1) index += place * stride;
    stride *= extent;
  }
  return static_cast<std::size_t>(index);
}

}  // namespace

class StaticElements::Impl {
 public:
  explicit Impl(const Graph& graph)
      : graph_(graph), budget_(kBaseBudget + kNodeBudget * static_cast<std::int64_t>(graph.size())) {}

  const std::vector<std::int64_t>& of(ValueId value, int depth = 0) {
    const auto found = known_.find(value.node);
    if (found != known_.end()) return found->second.at(value.output);
    std::vector<std::vector<std::int64_t>> outputs = compute(graph_.node(value.node), depth);
    return known_.emplace(value.node, std::move(outputs)).first->second.at(value.output);
  }

 private:
  std::vector<std::vector<std::int64_t>> compute(const Node& node, int depth) {
    check_sound(node);
    if (const Tensor* constant = attribute_of(node)) return {shape_elements(*constant)};
    if (node.op().traits.gives_shape) {
      std::vector<std::int64_t> elements;
      for (const std::int64_t dim : graph_.spec(node.inputs()[0]).shape.dims())
        elements.push_back(dim == kUnknown ? kUnknownElement : dim);
      return {elements};
    }
    check_derivable(node);
    if (depth > kMaxDepth) {
      throw InvalidArgument(str("a shape operand is derived by more than ", kMaxDepth, " ops"),
                            place_of(node));
    }
    std::vector<std::vector<std::int64_t>> inputs;
    bool shapes_known = true;
    std::int64_t largest = 0;
    for (const ValueId input : node.inputs()) {
      inputs.push_back(of(input, depth + 1));  // every input, since any of them may have to be refused
      spend(node, inputs.back().size());
      shapes_known = shapes_known && graph_.spec(input).shape.is_known();
    }
    for (const TensorSpec& output : node.outputs()) {
      shapes_known = shapes_known && output.shape.is_known();
      if (shapes_known) largest = std::max(largest, output.shape.num_elements());
    }
    for (const TensorSpec& output : node.outputs()) {
      if (output.shape.is_known() && output.shape.num_elements() <= kMaxElements)
        spend(node, static_cast<std::size_t>(output.shape.num_elements()));
    }
    if (shapes_known && largest <= kMaxElements) {
      if (std::ranges::none_of(inputs, has_unknown)) return run_on(node, inputs);
      if (may_hold_unknown(node, inputs)) return run_on(node, inputs);
      if (node.op().traits.elementwise && node.outputs().size() == 1) return run_masked(node, inputs);
    }
    std::vector<std::vector<std::int64_t>> unknown;
    for (const TensorSpec& output : node.outputs()) {
      const bool known = output.shape.is_known() && output.shape.num_elements() <= kMaxElements;
      unknown.emplace_back(known ? static_cast<std::size_t>(output.shape.num_elements()) : 0,
                           kUnknownElement);
    }
    return unknown;
  }

  // A graph that is being verified may hold anything.
  void check_sound(const Node& node) const {
    bool sound = node.op().inputs.accepts(node.inputs().size());
    for (const ValueId input : node.inputs()) sound = sound && graph_.has_output(input);
    if (sound) return;
    throw InvalidArgument(str("a shape operand depends on '", node.name(), "' (", node.op().name,
                              "), whose inputs are not what the op takes"),
                          place_of(node));
  }

  // Ops that move elements carry kUnknownElement along like any other number.
  bool may_hold_unknown(const Node& node, const std::vector<std::vector<std::int64_t>>& inputs) const {
    const OpDef& op = node.op();
    if (!op.traits.moves_elements || node.outputs()[0].dtype != DType::kI64) return false;
    const bool joins = op.inputs.max == std::numeric_limits<std::size_t>::max();
    for (std::size_t i = joins ? inputs.size() : 1; i < inputs.size(); ++i) {
      if (has_unknown(inputs[i])) return false;
    }
    return true;
  }

  std::vector<std::vector<std::int64_t>> run_on(const Node& node,
                                                const std::vector<std::vector<std::int64_t>>& inputs) const {
    std::vector<Tensor> tensors;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      tensors.push_back(tensor_of(inputs[i], graph_.spec(node.inputs()[i])));
    std::vector<std::vector<std::int64_t>> outputs;
    for (const Tensor& output : run(node, tensors)) {
      const std::size_t i = outputs.size();
      if (i >= node.outputs().size() || output.spec() != node.outputs()[i]) {
        throw InvalidArgument(str("a shape operand depends on '", node.name(), "' (", node.op().name,
                                  "), which gives another value than it states: ", output.spec()),
                              place_of(node));
      }
      outputs.push_back(shape_elements(output));
    }
    return outputs;
  }

  // Runs the node with 1 in place of unknown elements; output elements that depend on one are unknown.
  std::vector<std::vector<std::int64_t>> run_masked(const Node& node,
                                                    std::vector<std::vector<std::int64_t>> inputs) const {
    const Shape& out = node.outputs()[0].shape;
    std::vector<bool> unknown(static_cast<std::size_t>(out.num_elements()), false);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const Shape& shape = graph_.spec(node.inputs()[i]).shape;
      for (std::size_t at = 0; at < unknown.size(); ++at) {
        const std::size_t from = broadcast_index(shape, out, static_cast<std::int64_t>(at));
        if (inputs[i][from] == kUnknownElement) unknown[at] = true;
      }
      std::ranges::replace(inputs[i], kUnknownElement, 1);
    }
    std::vector<std::vector<std::int64_t>> outputs = run_on(node, inputs);
    for (std::size_t at = 0; at < unknown.size(); ++at) {
      if (unknown[at]) outputs[0][at] = kUnknownElement;
    }
    return outputs;
  }

  // Takes `elements` out of the budget.
  void spend(const Node& node, std::size_t elements) {
    budget_ -= static_cast<std::int64_t>(elements);
    if (budget_ >= 0) return;
    throw InvalidArgument(str("the shape operands of the graph follow from more than ",
                              kBaseBudget + kNodeBudget * static_cast<std::int64_t>(graph_.size()),
                              " elements; derive them from shorter values"),
                          place_of(node));
  }

  const Graph& graph_;
  std::int64_t budget_;  // elements that may still be read or made
  std::unordered_map<NodeId, std::vector<std::vector<std::int64_t>>> known_;  // by output
};

StaticElements::StaticElements(const Graph& graph) : impl_(std::make_unique<Impl>(graph)) {}
StaticElements::~StaticElements() = default;
const std::vector<std::int64_t>& StaticElements::of(ValueId value) { return impl_->of(value); }

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
  return StaticElements(graph).of(value);
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
