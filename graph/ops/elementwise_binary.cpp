// graph/ops/elementwise_binary.cpp - element-wise ops of two operands, and their derivatives.
#include <numbers>

#include "lockstep/core/kernels/elementwise.h"
#include "lockstep/graph/ops/fused/internal/step_tile.h"
#include "lockstep/graph/ops/gradient_rule.h"
#include "lockstep/graph/ops/internal/elementwise_ops.h"
#include "lockstep/graph/ops/ops.h"

namespace lockstep {

namespace {

using internal::binary_kernel;
using internal::binary_node;
using internal::elementwise_op;
using internal::Weight;
using kernels::BinaryOp;
using Gradients = std::vector<Gradient>;

void infer_binary(BinaryOp op, InferContext& c) {
  const DType dtype = c.same_dtype();
  if (kernels::binary_loop(op, dtype) == nullptr) {
    c.require(op != BinaryOp::kGeluGrad, "takes floating values");
    c.require(dtype != DType::kBool, "has no meaning for bool");
    NodeView::fail(str("takes bool, got ", dtype, "; compare it with something first"));
  }
  c.add_output(kernels::result_dtype(op, dtype), broadcast_shapes(c.input(0).shape, c.input(1).shape));
}

// Does input i have the output's shape, whatever unknown extents turn out to be? If the other input has an
// unknown extent, input i may be the one that is repeated.
bool has_output_shape(const GradientContext& c, std::size_t i) {
  if (c.input(0).id() == c.input(1).id()) return true;
  const Shape& shape = c.input(i).shape();
  const Shape& other = c.input(1 - i).shape();
  if (other.rank() > shape.rank()) return false;
  const std::size_t ahead = shape.rank() - other.rank();
  for (std::size_t axis = 0; axis < other.rank(); ++axis) {
    const std::int64_t extent = other[axis];
    if (extent != 1 && (extent == kUnknown || extent != shape[ahead + axis])) return false;
  }
  return true;
}

// What flows to input i, from a flow of the output's shape: summed over the elements that broadcasting
// repeated, if any.
Value to_input(const GradientContext& c, std::size_t i, const Value& flow) {
  const bool same = has_output_shape(c, i) && flow.shape() == c.input(i).shape();
  return same ? flow : sum_to_like(flow, c.input(i));
}

// Both flows; one after the other, so that the nodes have a fixed order.
Gradients to_both(const GradientContext& c, const Value& a, const Value& b) {
  const Value left = to_input(c, 0, a);
  const Value right = to_input(c, 1, b);
  return {left, right};
}

Gradients back_add(GradientContext& c) { return to_both(c, c.grad(), c.grad()); }
Gradients back_sub(GradientContext& c) {
  const Value left = to_input(c, 0, c.grad());
  return {left, neg(to_input(c, 1, c.grad()))};
}
Gradients back_mul(GradientContext& c) {
  const Value a = c.grad() * c.input(1);
  const Value b = c.grad() * c.input(0);
  return to_both(c, a, b);
}
Gradients back_div(GradientContext& c) {
  const Value a = c.grad() / c.input(1);
  const Value b = neg(a * c.output());
  return to_both(c, a, b);
}
Gradients back_floor_div(GradientContext&) { return {Gradient(), Gradient()}; }
Gradients back_mod(GradientContext& c) {
  const Value b = neg(c.grad() * floor_div(c.input(0), c.input(1)));
  return to_both(c, c.grad(), b);
}
// Nothing flows to the base where the exponent is 0 (rather than 0 * infinity), nor to the exponent where the
// base is not above 0.
Gradients back_pow(GradientContext& c) {
  const Value& base = c.input(0);
  const Value& exponent = c.input(1);
  const Value lower = where(equal(exponent, 0), 1, exponent) - 1;
  const Value slope = exponent * pow(base, lower);
  const Value positive = greater(base, 0);
  const Value growth = where(positive, c.output() * log(where(positive, base, 1)), 0);
  const Value a = c.grad() * slope;
  const Value b = c.grad() * growth;
  return to_both(c, a, b);
}
// The flow goes to one operand; to the first where they are equal.
Gradients back_choice(GradientContext& c, const Value& first) {
  const Value a = where(first, c.grad(), 0);
  const Value b = where(first, 0, c.grad());
  return to_both(c, a, b);
}
Gradients back_maximum(GradientContext& c) { return back_choice(c, greater_equal(c.input(0), c.input(1))); }
Gradients back_minimum(GradientContext& c) { return back_choice(c, less_equal(c.input(0), c.input(1))); }
Gradients back_relu_grad(GradientContext& c) {
  return {to_input(c, 0, relu_grad(c.grad(), c.input(1))), Gradient()};
}

// The derivative of gelu is the distribution function of the normal distribution plus x times its density, which has the derivative
// density * (2 - x^2).
Gradients back_gelu_grad(GradientContext& c) {
  const Value x = c.input(1);
  const Value density = exp(square(x) * -0.5) * (std::numbers::inv_sqrtpi / std::numbers::sqrt2);
  return {to_input(c, 0, gelu_grad(c.grad(), x)),
          to_input(c, 1, c.grad() * c.input(0) * (density * (2 - square(x))))};
}

struct BinaryDef {
  BinaryOp op;
  Weight weight;
  bool commutative;
  bool infallible;
  Gradients (*gradient)(GradientContext&);  // null: the result is bool
  const char* summary;
  const char* source;
};

constexpr BinaryDef kBinaryDefs[] = {
    {BinaryOp::kAdd, Weight::kLight, true, true, back_add, "a + b", "x0 + x1"},
    {BinaryOp::kSub, Weight::kLight, false, true, back_sub, "a - b", "x0 - x1"},
    {BinaryOp::kMul, Weight::kLight, true, true, back_mul, "a * b", "x0 * x1"},
    {BinaryOp::kDiv, Weight::kLight, false, false, back_div, "a / b; integers truncate toward zero",
     "ls_div(x0, x1, refuse)"},
    {BinaryOp::kFloorDiv, Weight::kHeavy, false, false, back_floor_div, "a / b, rounded down",
     "ls_floor_div(x0, x1, refuse)"},
    {BinaryOp::kMod, Weight::kHeavy, false, false, back_mod, "a - floor_div(a, b) * b",
     "ls_mod(x0, x1, refuse)"},
    {BinaryOp::kPow, Weight::kHeavy, false, false, back_pow, "a to the power of b", "ls_pow(x0, x1, refuse)"},
    {BinaryOp::kMaximum, Weight::kLight, true, true, back_maximum, "the larger one; NaN where either is",
     "ls_max(x0, x1)"},
    {BinaryOp::kMinimum, Weight::kLight, true, true, back_minimum, "the smaller one; NaN where either is",
     "ls_min(x0, x1)"},
    {BinaryOp::kReluGrad, Weight::kLight, false, true, back_relu_grad, "a where b > 0, else 0",
     "x1 > T(0) ? x0 : T(0)"},
    {BinaryOp::kGeluGrad, Weight::kMedium, false, true, back_gelu_grad, "a times the derivative of gelu at b",
     "x0 * ls_gelu_slope(x1)"},
    {BinaryOp::kLess, Weight::kLight, false, true, nullptr, "a < b, as bool; false where either is NaN",
     "x0 < x1"},
    {BinaryOp::kLessEqual, Weight::kLight, false, true, nullptr, "a <= b, as bool", "x0 <= x1"},
    {BinaryOp::kGreater, Weight::kLight, false, true, nullptr, "a > b, as bool", "x0 > x1"},
    {BinaryOp::kGreaterEqual, Weight::kLight, false, true, nullptr, "a >= b, as bool", "x0 >= x1"},
    {BinaryOp::kEqual, Weight::kLight, true, true, nullptr, "a == b, as bool", "x0 == x1"},
    {BinaryOp::kNotEqual, Weight::kLight, true, true, nullptr, "a != b, as bool; true where either is NaN",
     "x0 != x1"},
    {BinaryOp::kLogicalAnd, Weight::kLight, true, true, nullptr, "a and b, of bool", "x0 && x1"},
    {BinaryOp::kLogicalOr, Weight::kLight, true, true, nullptr, "a or b, of bool", "x0 || x1"},
};
static_assert(std::size(kBinaryDefs) == kernels::kNumBinaryOps);

OpDef binary_op(const BinaryDef& binary) {
  OpDef def = elementwise_op(std::string(to_string(binary.op)), binary.summary, 2, binary.weight);
  def.traits.commutative = binary.commutative;
  def.traits.infallible = binary.infallible;
  def.traits.refuses_integers = !binary.infallible;
  def.infer = [op = binary.op](InferContext& c) { infer_binary(op, c); };
  def.kernels["cpu"] = [op = binary.op](const NodeView& node,
                                        std::span<const TensorSpec> outputs) -> KernelFn {
    return binary_kernel(kernels::binary_loop(op, node.input(0).dtype), node, outputs[0]);
  };
  def.source = {binary.source};
  def.tile = [op = binary.op](const NodeView& node, std::span<const TensorSpec>) -> TileFn {
    return internal::StepTile{kernels::chain_op_of(op), nullptr,
                              kernels::binary_loop(op, node.input(0).dtype)};
  };
  if (binary.gradient != nullptr) def.gradient = binary.gradient;
  return def;
}

}  // namespace

void internal::register_binary_ops(OpRegistry& registry) {
  for (const BinaryDef& binary : kBinaryDefs) registry.add(binary_op(binary));
}

Value add(const Operand& a, const Operand& b) { return binary_node("add", a, b); }
Value sub(const Operand& a, const Operand& b) { return binary_node("sub", a, b); }
Value mul(const Operand& a, const Operand& b) { return binary_node("mul", a, b); }
Value div(const Operand& a, const Operand& b) { return binary_node("div", a, b); }
Value floor_div(const Operand& a, const Operand& b) { return binary_node("floor_div", a, b); }
Value mod(const Operand& a, const Operand& b) { return binary_node("mod", a, b); }
Value pow(const Operand& a, const Operand& b) { return binary_node("pow", a, b); }
Value maximum(const Operand& a, const Operand& b) { return binary_node("maximum", a, b); }
Value minimum(const Operand& a, const Operand& b) { return binary_node("minimum", a, b); }
Value relu_grad(const Operand& gradient, const Operand& x) { return binary_node("relu_grad", gradient, x); }
Value gelu_grad(const Operand& gradient, const Operand& x) { return binary_node("gelu_grad", gradient, x); }
Value less(const Operand& a, const Operand& b) { return binary_node("less", a, b); }
Value less_equal(const Operand& a, const Operand& b) { return binary_node("less_equal", a, b); }
Value greater(const Operand& a, const Operand& b) { return binary_node("greater", a, b); }
Value greater_equal(const Operand& a, const Operand& b) { return binary_node("greater_equal", a, b); }
Value equal(const Operand& a, const Operand& b) { return binary_node("equal", a, b); }
Value not_equal(const Operand& a, const Operand& b) { return binary_node("not_equal", a, b); }
Value logical_and(const Operand& a, const Operand& b) { return binary_node("logical_and", a, b); }
Value logical_or(const Operand& a, const Operand& b) { return binary_node("logical_or", a, b); }
Value operator+(const Operand& a, const Operand& b) { return binary_node("add", a, b); }
Value operator-(const Operand& a, const Operand& b) { return binary_node("sub", a, b); }
Value operator*(const Operand& a, const Operand& b) { return binary_node("mul", a, b); }
Value operator/(const Operand& a, const Operand& b) { return binary_node("div", a, b); }
Value operator<(const Operand& a, const Operand& b) { return binary_node("less", a, b); }
Value operator<=(const Operand& a, const Operand& b) { return binary_node("less_equal", a, b); }
Value operator>(const Operand& a, const Operand& b) { return binary_node("greater", a, b); }
Value operator>=(const Operand& a, const Operand& b) { return binary_node("greater_equal", a, b); }

}  // namespace lockstep
