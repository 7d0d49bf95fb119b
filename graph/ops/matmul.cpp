// graph/ops/matmul.cpp - products of matrices and of batches of them, cut into tiles by shape.
#include "lockstep/graph/ops/matmul.h"

#include <algorithm>

#include "lockstep/core/kernels/gemm.h"
#include "lockstep/graph/ops/gradient_rule.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/rules/internal/shape_rules.h"
#include "lockstep/graph/ops/shapes.h"

namespace lockstep {

namespace {

using internal::batch_of;
using internal::matrices_of;

constexpr double kMatmulShard = 100e-6;  // seconds of small matrices that make up a shard

bool transposes_a(const NodeView& node) { return node.get_or("transpose_a", false); }
bool transposes_b(const NodeView& node) { return node.get_or("transpose_b", false); }

void infer_matmul(InferContext& c) {
  const DType dtype = c.same_dtype();
  c.require(dtype != DType::kBool && dtype != DType::kU8, "takes floating or i32/i64 matrices");
  const Shape& a = c.input(0).shape;
  const Shape& b = c.input(1).shape;
  if (a.rank() < 2 || b.rank() < 2) {
    NodeView::fail(str("takes two matrices (rank 2 or more), got ", c.input(0), " and ", c.input(1)));
  }
  const bool ta = transposes_a(c), tb = transposes_b(c);
  const std::int64_t left = a.dim(ta ? -2 : -1), right = b.dim(tb ? -1 : -2);
  if (left != right && left != kUnknown && right != kUnknown) {
    NodeView::fail(str("inner dimensions differ: ", c.input(0), ta ? " (transposed)" : "", " x ", c.input(1),
                       tb ? " (transposed)" : "", " needs ", left, " == ", right));
  }
  const Shape batch = broadcast_shapes(batch_of(a), batch_of(b));
  std::vector<std::int64_t> dims(batch.dims().begin(), batch.dims().end());
  dims.push_back(a.dim(ta ? -1 : -2));
  dims.push_back(b.dim(tb ? -2 : -1));
  c.add_output(dtype, Shape(std::span<const std::int64_t>(dims)));
}

// A node of known shapes: equal products, each cut into tiles, or several of them to a shard.
struct Product {
  kernels::GemmTiles tiles;
  std::int64_t batch = 1;                  // matrices in the result
  std::int64_t a_bytes, b_bytes, c_bytes;  // of one matrix
  std::int64_t per_shard = 1;              // matrices, if one is a single tile
  bool empty;

  std::int64_t shards() const {
    if (empty) return 1;
    return tiles.count() > 1 ? batch * tiles.count() : (batch + per_shard - 1) / per_shard;
  }
};

Product product_of(const NodeView& node, const TensorSpec& output) {
  const Shape& a = node.input(0).shape;
  const Shape& b = node.input(1).shape;
  const bool ta = transposes_a(node), tb = transposes_b(node);
  std::int64_t m = output.shape.dim(-2);
  const std::int64_t n = output.shape.dim(-1), k = a.dim(ta ? -2 : -1);
  std::int64_t batch = batch_of(output.shape).num_elements();
  const bool empty = output.shape.num_elements() == 0;
  // One right matrix for all: the rows of all left matrices are the rows of one product.
  if (!ta && batch > 1 && batch_of(b).num_elements() == 1) {
    m *= batch;
    batch = 1;
  }
  // Only a single product is cut along k: several keep the threads busy as they are.
  const auto size = static_cast<std::int64_t>(size_of(output.dtype));
  Product product{kernels::GemmTiles(output.dtype, ta, tb, m, n, k, batch == 1),
                  batch,
                  m * k * size,
                  k * n * size,
                  m * n * size,
                  1,
                  empty};
  product.per_shard =
      std::max<std::int64_t>(static_cast<std::int64_t>(kMatmulShard / product.tiles.seconds()), 1);
  return product;
}

KernelFn matmul_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  const Product product = product_of(node, outputs[0]);
  if (product.empty) return [](KernelContext&) {};
  if (product.batch == 1) {
    return [tiles = product.tiles](KernelContext& c) {
      if (c.is_finish()) {
        tiles.finish(c.output(0), c.scratch());
      } else {
        tiles.compute(c.shard(), c.input(0), c.input(1), c.output(0), c.scratch());
      }
    };
  }
  const Shape batch = batch_of(outputs[0].shape);
  return [product, a = matrices_of(node.input(0).shape, batch),
          b = matrices_of(node.input(1).shape, batch)](KernelContext& c) {
    const std::int64_t tiles = product.tiles.count();
    const auto compute = [&](std::int64_t matrix, std::int64_t tile) {
      const auto i = static_cast<std::size_t>(matrix);
      product.tiles.compute(tile, static_cast<const char*>(c.input(0)) + a[i] * product.a_bytes,
                            static_cast<const char*>(c.input(1)) + b[i] * product.b_bytes,
                            static_cast<char*>(c.output(0)) + matrix * product.c_bytes, nullptr);
    };
    if (tiles > 1) {
      compute(c.shard() / tiles, c.shard() % tiles);
      return;
    }
    const auto [begin, end] = c.range(product.batch);
    for (std::int64_t matrix = begin; matrix < end; ++matrix) compute(matrix, 0);
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
    const double k = static_cast<double>(node.input(0).shape.dim(transposes_a(node) ? -2 : -1));
    const Product product = product_of(node, outputs[0]);
    return Cost{
        2 * k * static_cast<double>(outputs[0].shape.num_elements()),
        static_cast<double>(num_bytes(node.input(0)) + num_bytes(node.input(1)) + num_bytes(outputs[0])),
        static_cast<double>(product.batch) * product.tiles.seconds()};
  };
  def.split = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    const Product product = product_of(node, outputs[0]);
    return Split{product.shards(), product.tiles.scratch_bytes(), product.tiles.needs_finish()};
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
