// graph/ops/elementwise.cpp - ops that work element by element.
#include "lockstep/core/kernels/elementwise.h"

#include <cmath>

#include "lockstep/graph/gradients.h"
#include "lockstep/graph/internal/builtin_ops.h"
#include "lockstep/graph/ops.h"

namespace lockstep {

namespace {

constexpr std::int64_t kGrain = 64 << 10;  // elements a shard; about 20 us

Cost elementwise_cost(const NodeView& node, std::span<const TensorSpec> outputs) {
  Cost cost;
  cost.flops = static_cast<double>(outputs[0].shape.num_elements());
  cost.bytes = static_cast<double>(num_bytes(outputs[0]));
  for (const TensorSpec& input : node.inputs()) cost.bytes += static_cast<double>(num_bytes(input));
  return cost;
}

Split elementwise_split(const NodeView&, std::span<const TensorSpec> outputs) {
  return {shards_for(outputs[0].shape.num_elements(), kGrain), 0, false};
}

OpDef elementwise_op(std::string name, std::string summary, std::size_t inputs) {
  OpDef def;
  def.name = std::move(name);
  def.summary = std::move(summary);
  def.inputs = Arity::exactly(inputs);
  def.traits.elementwise = true;
  def.traits.in_place = true;
  def.cost = elementwise_cost;
  def.split = elementwise_split;
  return def;
}

void infer_binary(InferContext& c) {
  const DType dtype = c.same_dtype();
  c.require(dtype != DType::kBool, "has no meaning for bool");
  c.add_output(dtype, broadcast_shapes(c.input(0).shape, c.input(1).shape));
}

void infer_comparison(InferContext& c) {
  c.same_dtype();
  c.add_output(DType::kBool, broadcast_shapes(c.input(0).shape, c.input(1).shape));
}

OpDef binary_op(std::string name, std::string summary, kernels::BinaryOp op, bool commutative) {
  OpDef def = elementwise_op(std::move(name), std::move(summary), 2);
  def.traits.commutative = commutative;
  def.infer = op == kernels::BinaryOp::kLess ? infer_comparison : infer_binary;
  def.kernels[DeviceKind::kCpu] = [op](const NodeView& node,
                                       std::span<const TensorSpec> outputs) -> KernelFn {
    return [op, a = node.input(0), b = node.input(1).shape, out = outputs[0].shape,
            n = outputs[0].shape.num_elements()](KernelContext& c) {
      const auto [begin, end] = c.range(n);
      kernels::binary(op, a.dtype, out, c.input(0), a.shape, c.input(1), b, c.output(0), begin, end);
    };
  };
  def.tile = [op](const NodeView& node, std::span<const TensorSpec>) -> TileFn {
    return [op, dtype = node.input(0).dtype](const void* const* in, void* out, std::int64_t count) {
      const Shape shape{count};
      kernels::binary(op, dtype, shape, in[0], shape, in[1], shape, out, 0, count);
    };
  };
  return def;
}

OpDef relu_op() {
  OpDef def = elementwise_op("relu", "max(x, 0); NaN stays NaN", 1);
  def.infer = [](InferContext& c) {
    c.require(c.input(0).dtype != DType::kBool, "has no meaning for bool");
    c.add_output(c.input(0));
  };
  def.traits.infallible = true;
  def.kernels[DeviceKind::kCpu] = [](const NodeView&, std::span<const TensorSpec> outputs) -> KernelFn {
    return [dtype = outputs[0].dtype, n = outputs[0].shape.num_elements()](KernelContext& c) {
      const auto [begin, end] = c.range(n);
      kernels::relu(dtype, c.input(0), c.output(0), begin, end);
    };
  };
  def.tile = [](const NodeView&, std::span<const TensorSpec> outputs) -> TileFn {
    return [dtype = outputs[0].dtype](const void* const* in, void* out, std::int64_t count) {
      kernels::relu(dtype, in[0], out, 0, count);
    };
  };
  return def;
}

OpDef identity_op() {
  OpDef def = elementwise_op("identity", "its input", 1);
  def.infer = [](InferContext& c) { c.add_output(c.input(0)); };
  def.traits.alias = true;
  def.traits.infallible = true;
  def.kernels[DeviceKind::kCpu] = [](const NodeView&, std::span<const TensorSpec> outputs) -> KernelFn {
    return [dtype = outputs[0].dtype, n = outputs[0].shape.num_elements()](KernelContext& c) {
      const auto [begin, end] = c.range(n);
      kernels::copy(dtype, c.input(0), c.output(0), begin, end);
    };
  };
  return def;
}

// A number among the operands becomes a constant of the other operand's dtype, which must be able to hold it.
Value value_of(std::string_view op, const Operand& operand, const Operand& other, SourceSite site) {
  if (!operand.number()) return operand.value_for(op);
  GraphBuilder& builder = other.value_for(op).builder();
  const DType dtype = other.value().dtype();
  const double number = *operand.number();
  const ErrorPlace place{{}, std::string(op), {}, site.file, site.line, -1};
  if (is_integer(dtype) && number != std::trunc(number)) {
    throw InvalidArgument(str(op, ": ", number, " beside a value of ", dtype, ", which cannot hold it"),
                          place);
  }
  try {
    return builder.constant(Tensor::full(dtype, Shape{}, number), "constant", site);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(str(op, ": ", error.message()), place);
  }
}

Value binary(std::string_view op, const Operand& a, const Operand& b) {
  const Value left = value_of(op, a, b, a.site());
  const Value right = value_of(op, b, a, a.site());
  return left.builder().op1(op, {left, right}, {}, {}, a.site());
}

Value unary(std::string_view op, const Operand& x) {
  const Value& value = x.value_for(op);
  return value.builder().op1(op, {value}, {}, {}, x.site());
}

}  // namespace

void register_elementwise_ops(OpRegistry& registry) {
  OpDef add_def = binary_op("add", "a + b", kernels::BinaryOp::kAdd, true);
  add_def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    return {sum_to_like(c.grad(), c.input(0)), sum_to_like(c.grad(), c.input(1))};
  };
  registry.add(std::move(add_def));
  OpDef sub_def = binary_op("sub", "a - b", kernels::BinaryOp::kSub, false);
  sub_def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    return {sum_to_like(c.grad(), c.input(0)), sum_to_like(0 - c.grad(), c.input(1))};
  };
  registry.add(std::move(sub_def));
  OpDef mul_def = binary_op("mul", "a * b", kernels::BinaryOp::kMul, true);
  mul_def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    return {sum_to_like(c.grad() * c.input(1), c.input(0)), sum_to_like(c.grad() * c.input(0), c.input(1))};
  };
  registry.add(std::move(mul_def));
  OpDef div_def = binary_op("div", "a / b; integers truncate toward zero", kernels::BinaryOp::kDiv, false);
  div_def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    const Value left = c.grad() / c.input(1);
    return {sum_to_like(left, c.input(0)), sum_to_like(0 - left * c.output(), c.input(1))};
  };
  registry.add(std::move(div_def));
  registry.add(
      binary_op("less", "a < b, as bool; false where either is NaN", kernels::BinaryOp::kLess, false));
  registry.add(relu_op());
  registry.add(identity_op());
}

Value add(const Operand& a, const Operand& b) { return binary("add", a, b); }
Value sub(const Operand& a, const Operand& b) { return binary("sub", a, b); }
Value mul(const Operand& a, const Operand& b) { return binary("mul", a, b); }
Value div(const Operand& a, const Operand& b) { return binary("div", a, b); }
Value less(const Operand& a, const Operand& b) { return binary("less", a, b); }
Value operator+(const Operand& a, const Operand& b) { return binary("add", a, b); }
Value operator-(const Operand& a, const Operand& b) { return binary("sub", a, b); }
Value operator*(const Operand& a, const Operand& b) { return binary("mul", a, b); }
Value operator/(const Operand& a, const Operand& b) { return binary("div", a, b); }
Value identity(const Operand& x) { return unary("identity", x); }
Value relu(const Operand& x) { return unary("relu", x); }

}  // namespace lockstep
