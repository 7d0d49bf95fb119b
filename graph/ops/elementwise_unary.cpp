// graph/ops/elementwise_unary.cpp - element-wise ops of one operand, and their derivatives.
#include <numbers>

#include "lockstep/core/kernels/elementwise.h"
#include "lockstep/graph/ops/fused/internal/step_tile.h"
#include "lockstep/graph/ops/gradient_rule.h"
#include "lockstep/graph/ops/internal/elementwise_ops.h"
#include "lockstep/graph/ops/ops.h"

namespace lockstep {

namespace {

using internal::elementwise_op;
using internal::unary_kernel;
using internal::unary_node;
using internal::Weight;
using kernels::UnaryOp;

void infer_unary(UnaryOp op, InferContext& c) {
  const TensorSpec& in = c.input(0);
  if (kernels::unary_loop(op, in.dtype) == nullptr) {
    if (op == UnaryOp::kLogicalNot)
      NodeView::fail(str("takes bool, got ", in, "; compare it with something first"));
    if (op <= UnaryOp::kRelu) NodeView::fail("has no meaning for bool");
    NodeView::fail(str("takes floating values, got ", in, "; cast it first"));
  }
  c.add_output(kernels::result_dtype(op, in.dtype), in.shape);
}

// What flows back into x from y = f(x).
using Derivative = Gradient (*)(const Value& gradient, const Value& x, const Value& y);

Gradient nothing(const Value&, const Value&, const Value&) { return {}; }

Gradient back_abs(const Value& g, const Value& x, const Value&) { return g * sign(x); }
Gradient back_cos(const Value& g, const Value& x, const Value&) { return neg(g * sin(x)); }
Gradient back_erf(const Value& g, const Value& x, const Value&) {
  const Value bell = exp(neg(square(x)));
  return g * (bell * (2 * std::numbers::inv_sqrtpi));
}
Gradient back_exp(const Value& g, const Value&, const Value& y) { return g * y; }
Gradient back_gelu(const Value& g, const Value& x, const Value&) { return gelu_grad(g, x); }
Gradient back_log(const Value& g, const Value& x, const Value&) { return g / x; }
Gradient back_log1p(const Value& g, const Value& x, const Value&) { return g / (x + 1); }
Gradient back_neg(const Value& g, const Value&, const Value&) { return neg(g); }
Gradient back_reciprocal(const Value& g, const Value&, const Value& y) { return neg(g * square(y)); }
Gradient back_relu(const Value& g, const Value&, const Value& y) { return relu_grad(g, y); }
Gradient back_rsqrt(const Value& g, const Value&, const Value& y) {
  const Value cube = square(y) * y;
  return g * (cube * -0.5);
}
Gradient back_sigmoid(const Value& g, const Value&, const Value& y) { return g * (y * (1 - y)); }
Gradient back_sin(const Value& g, const Value& x, const Value&) { return g * cos(x); }
Gradient back_softplus(const Value& g, const Value& x, const Value&) { return g * sigmoid(x); }
Gradient back_sqrt(const Value& g, const Value&, const Value& y) { return g * 0.5 / y; }
Gradient back_square(const Value& g, const Value& x, const Value&) { return g * (x * 2); }
Gradient back_tanh(const Value& g, const Value&, const Value& y) { return g * (1 - square(y)); }

struct UnaryDef {
  UnaryOp op;
  Weight weight;
  Derivative derivative;  // null: the result is bool
  const char* summary;
  const char* source;
};

constexpr UnaryDef kUnaryDefs[] = {
    {UnaryOp::kNeg, Weight::kLight, back_neg, "-x", "-x0"},
    {UnaryOp::kAbs, Weight::kLight, back_abs, "x without its sign", "ls_abs(x0)"},
    {UnaryOp::kSquare, Weight::kLight, back_square, "x * x", "x0 * x0"},
    {UnaryOp::kSign, Weight::kLight, nothing, "-1, 0 or 1; NaN stays NaN", "ls_sign(x0)"},
    {UnaryOp::kRelu, Weight::kLight, back_relu, "max(x, 0); NaN stays NaN", "x0 < T(0) ? T(0) : x0"},
    {UnaryOp::kExp, Weight::kMedium, back_exp, "e to the power of x", "exp(x0)"},
    {UnaryOp::kLog, Weight::kMedium, back_log, "natural logarithm", "log(x0)"},
    {UnaryOp::kLog1p, Weight::kMedium, back_log1p, "log(1 + x), exact for small x", "log1p(x0)"},
    {UnaryOp::kSqrt, Weight::kLight, back_sqrt, "square root", "sqrt(x0)"},
    {UnaryOp::kRsqrt, Weight::kLight, back_rsqrt, "1 / sqrt(x)", "T(1) / sqrt(x0)"},
    {UnaryOp::kReciprocal, Weight::kLight, back_reciprocal, "1 / x", "T(1) / x0"},
    {UnaryOp::kSin, Weight::kMedium, back_sin, "sine of radians", "sin(x0)"},
    {UnaryOp::kCos, Weight::kMedium, back_cos, "cosine of radians", "cos(x0)"},
    {UnaryOp::kTanh, Weight::kMedium, back_tanh, "hyperbolic tangent", "tanh(x0)"},
    {UnaryOp::kSigmoid, Weight::kMedium, back_sigmoid, "1 / (1 + exp(-x))", "ls_sigmoid(x0)"},
    {UnaryOp::kGelu, Weight::kMedium, back_gelu, "x * (1 + erf(x / sqrt(2))) / 2", "ls_gelu(x0)"},
    {UnaryOp::kErf, Weight::kMedium, back_erf, "error function", "erf(x0)"},
    {UnaryOp::kSoftplus, Weight::kMedium, back_softplus, "log(1 + exp(x)), which does not overflow",
     "ls_softplus(x0)"},
    {UnaryOp::kFloor, Weight::kLight, nothing, "the next whole number below", "floor(x0)"},
    {UnaryOp::kCeil, Weight::kLight, nothing, "the next whole number above", "ceil(x0)"},
    {UnaryOp::kRound, Weight::kLight, nothing, "the nearest whole number, half to even", "rint(x0)"},
    {UnaryOp::kIsFinite, Weight::kLight, nullptr, "neither infinite nor NaN, as bool", "isfinite(x0)"},
    {UnaryOp::kLogicalNot, Weight::kLight, nullptr, "not x, of bool", "!x0"},
};
static_assert(std::size(kUnaryDefs) == kernels::kNumUnaryOps);

OpDef unary_op(const UnaryDef& unary) {
  OpDef def = elementwise_op(std::string(to_string(unary.op)), unary.summary, 1, unary.weight);
  def.traits.keeps_zeros = unary.op == UnaryOp::kNeg;
  def.infer = [op = unary.op](InferContext& c) { infer_unary(op, c); };
  def.kernels["cpu"] = [op = unary.op](const NodeView& node,
                                       std::span<const TensorSpec> outputs) -> KernelFn {
    return unary_kernel(kernels::unary_loop(op, node.input(0).dtype), node.input(0), outputs[0]);
  };
  def.source = {unary.source};
  def.tile = [op = unary.op](const NodeView& node, std::span<const TensorSpec>) -> TileFn {
    return internal::StepTile{kernels::chain_op_of(op), kernels::unary_loop(op, node.input(0).dtype),
                              nullptr};
  };
  if (unary.derivative != nullptr) {
    def.gradient = [derivative = unary.derivative](GradientContext& c) -> std::vector<Gradient> {
      return {derivative(c.grad(), c.input(), c.output())};
    };
  }
  return def;
}

}  // namespace

void internal::register_unary_ops(OpRegistry& registry) {
  for (const UnaryDef& unary : kUnaryDefs) registry.add(unary_op(unary));
}

Value neg(const Operand& x) { return unary_node("neg", x); }
Value abs(const Operand& x) { return unary_node("abs", x); }
Value square(const Operand& x) { return unary_node("square", x); }
Value sign(const Operand& x) { return unary_node("sign", x); }
Value relu(const Operand& x) { return unary_node("relu", x); }
Value exp(const Operand& x) { return unary_node("exp", x); }
Value log(const Operand& x) { return unary_node("log", x); }
Value log1p(const Operand& x) { return unary_node("log1p", x); }
Value sqrt(const Operand& x) { return unary_node("sqrt", x); }
Value rsqrt(const Operand& x) { return unary_node("rsqrt", x); }
Value reciprocal(const Operand& x) { return unary_node("reciprocal", x); }
Value sin(const Operand& x) { return unary_node("sin", x); }
Value cos(const Operand& x) { return unary_node("cos", x); }
Value tanh(const Operand& x) { return unary_node("tanh", x); }
Value sigmoid(const Operand& x) { return unary_node("sigmoid", x); }
Value gelu(const Operand& x) { return unary_node("gelu", x); }
Value erf(const Operand& x) { return unary_node("erf", x); }
Value softplus(const Operand& x) { return unary_node("softplus", x); }
Value floor(const Operand& x) { return unary_node("floor", x); }
Value ceil(const Operand& x) { return unary_node("ceil", x); }
Value round(const Operand& x) { return unary_node("round", x); }
Value isfinite(const Operand& x) { return unary_node("isfinite", x); }
Value logical_not(const Operand& x) { return unary_node("logical_not", x); }
Value operator-(const Operand& x) { return unary_node("neg", x); }

}  // namespace lockstep
