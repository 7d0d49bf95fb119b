// graph/ops/matmul.cpp - products of matrices and of batches of them.
#include "lockstep/graph/ops/matmul.h"

#include "lockstep/graph/ops/gradient_rule.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/rules/internal/products.h"
#include "lockstep/graph/ops/shapes.h"

namespace lockstep {

namespace {

using internal::ProductTiles;
using internal::transposes_a;
using internal::transposes_b;

void infer_matmul(InferContext& c) {
  const DType dtype = c.same_dtype();
  c.require(dtype != DType::kBool && dtype != DType::kU8, "takes floating or i32/i64 matrices");
  c.add_output(dtype, internal::product_shape(c));
}

KernelFn matmul_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  return [tiles = ProductTiles(node, outputs[0])](KernelContext& c) {
    if (c.is_finish()) {
      tiles.finish(c, {});
    } else {
      tiles.compute(c, {});
    }
  };
}

// Each derivative is a product again, with the transposes that make its operands fit.
std::vector<Gradient> matmul_gradient(GradientContext& c) {
  const bool ta = transposes_a(c.view()), tb = transposes_b(c.view());
  const Value &a = c.input(0), &b = c.input(1);
  const Value g = c.grad();
  const Value da = ta ? matmul(b, g, tb, true) : matmul(g, b, false, !tb);
  // If b is a single matrix, it repeats no part of a: there is nothing to sum.
  const Value left = b.shape().rank() == 2 ? da : sum_to_like(da, a);
  // If the batch was folded into rows, the sum over the batch is a sum over rows too.
  const std::int64_t k = a.shape().dim(-1), n = g.shape().dim(-1);
  if (!ta && b.shape().rank() == 2 && a.shape().rank() > 2 && k > 0 && n > 0) {
    const Value rows = reshape(a, Shape{kUnknown, k});
    const Value flow = reshape(g, Shape{kUnknown, n});
    return {left, tb ? matmul(flow, rows, true) : matmul(rows, flow, true)};
  }
  const Value db = tb ? matmul(g, a, true, ta) : matmul(a, g, !ta);
  return {left, a.shape().rank() == 2 ? db : sum_to_like(db, b)};
}

OpDef matmul_op() {
  OpDef def;
  def.name = "matmul";
  def.summary = "the product of two matrices, or of batches of them";
  def.inputs = Arity::exactly(2);
  def.attributes = {{"transpose_a", AttributeType::kBool, false},
                    {"transpose_b", AttributeType::kBool, false}};
  def.infer = infer_matmul;
  def.cost = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    return ProductTiles(node, outputs[0]).cost(node, outputs[0]);
  };
  def.split = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    const ProductTiles tiles(node, outputs[0]);
    return Split{tiles.shards(), tiles.scratch_bytes(), tiles.needs_finish()};
  };
  def.gradient = matmul_gradient;
  def.kernels["cpu"] = matmul_kernel;
  return def;
}

}  // namespace

void internal::register_matmul_ops(OpRegistry& registry) { registry.add(matmul_op()); }

Value matmul(const Operand& a, const Operand& b, bool transpose_a, bool transpose_b) {
  const Value& left = a.value_for("matmul");
  std::vector<Attribute> attributes;
  if (transpose_a) attributes.push_back({"transpose_a", true});
  if (transpose_b) attributes.push_back({"transpose_b", true});
  return left.builder().op1("matmul", {left, b.value_for("matmul")}, std::move(attributes), {}, a.site());
}

}  // namespace lockstep
