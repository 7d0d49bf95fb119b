// graph/ops/fused/fused_matmul.cpp - products with what follows them, made by the pass fuse-products.
//
// On CPUs each tile of the product is finished while it is in the cache, by the loops of the ops that this stands for: the
// result has their bits.
#include "lockstep/graph/ops/fused/internal/fused_matmul.h"

#include <algorithm>
#include <optional>
#include <string>

#include "lockstep/core/error.h"
#include "lockstep/core/kernels/elementwise.h"
#include "lockstep/core/kernels/reduce.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"

namespace lockstep {

namespace internal {

AfterProduct after_product(const NodeView& node) {
  using Then = AfterProduct::Then;
  using Sums = AfterProduct::Sums;
  AfterProduct after;
  after.bias = node.get_or("bias", false);
  if (const auto* then = node.find<std::string>("then")) {
    if (*then != "relu" && *then != "relu_grad" && *then != "add")
      NodeView::fail(str("has then=\"", *then, "\": expected relu, relu_grad or add"));
    after.then = *then == "relu" ? Then::kRelu : *then == "add" ? Then::kAdd : Then::kReluGrad;
  }
  if (const auto* sums = node.find<std::string>("sums")) {
    if (*sums != "a" && *sums != "b") NodeView::fail(str("has sums=\"", *sums, "\": expected a or b"));
    after.sums = *sums == "a" ? Sums::kOfA : Sums::kOfB;
  }
  return after;
}

bool is_bias(const Shape& bias, const Shape& product) {
  return bias.rank() > 0 && bias.rank() <= product.rank() && product.dim(-1) != kUnknown &&
         bias.dim(-1) == product.dim(-1) &&
         std::ranges::all_of(bias.dims().first(bias.rank() - 1),
                             [](std::int64_t extent) { return extent == 1; });
}

}  // namespace internal

namespace {

using internal::after_product;
using internal::AfterProduct;
using internal::ProductTiles;

constexpr std::size_t kScratchAlignment = 64;

constexpr double kElementSeconds = 0.2e-9;  // of what follows a product, or of a sum

// May extents that are not known yet turn out as they should be?
bool may_be(std::int64_t extent, std::int64_t wanted) {
  return extent == wanted || extent == kUnknown || wanted == kUnknown;
}

bool may_be_bias(const Shape& bias, const Shape& product) {
  return bias.rank() > 0 && bias.rank() <= product.rank() && may_be(bias.dim(-1), product.dim(-1)) &&
         std::ranges::all_of(bias.dims().first(bias.rank() - 1),
                             [](std::int64_t extent) { return may_be(extent, 1); });
}

void check_operands(const InferContext& c, const AfterProduct& after, const Shape& product) {
  if (c.num_inputs() != after.num_inputs())
    NodeView::fail(str("takes ", after.num_inputs(), " inputs by its attributes, got ", c.num_inputs()));
  if (after.bias && !may_be_bias(c.input(2).shape, product))
    NodeView::fail(str("takes a bias with an element for each column of ", product, ", got ", c.input(2)));
  if (after.has_operand() &&
      !std::ranges::equal(c.input(after.operand()).shape.dims(), product.dims(), may_be))
    NodeView::fail(
        str("takes an operand of the product's shape ", product, ", got ", c.input(after.operand())));
  if (after.sums == AfterProduct::Sums::kNone) return;
  c.require(!after.bias && after.then == AfterProduct::Then::kNothing,
            "gives sums of a plain product only: without bias and then");
  c.require(c.input(0).shape.rank() == 2 && c.input(1).shape.rank() == 2,
            "gives sums of two matrices only, not of batches");
}

void infer_fused_matmul(InferContext& c) {
  const DType dtype = c.same_dtype();
  c.require(is_floating(dtype), "takes floating matrices");
  const Shape product = internal::product_shape(c);
  const AfterProduct after = after_product(c);
  check_operands(c, after, product);
  c.add_output(dtype, product);
  if (after.sums == AfterProduct::Sums::kNone) return;
  const bool of_a = after.sums == AfterProduct::Sums::kOfA;
  c.add_output(dtype, Shape{product.dim(of_a ? -2 : -1)});
}

// What becomes of a part of the product: rows of n elements, of which some columns.
ProductTiles::Then finishing(const AfterProduct& after, DType dtype, std::int64_t n) {
  if (!after.bias && after.then == AfterProduct::Then::kNothing) return {};
  const kernels::BinaryLoop add = kernels::binary_loop(kernels::BinaryOp::kAdd, dtype);
  const kernels::BinaryLoop relu_grad = kernels::binary_loop(kernels::BinaryOp::kReluGrad, dtype);
  const kernels::UnaryLoop relu = kernels::unary_loop(kernels::UnaryOp::kRelu, dtype);
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  return [=](KernelContext& c, const kernels::GemmTiles::Tile& done) {
    const auto* const bias = after.bias ? static_cast<const char*>(c.input(2)) + done.column * size : nullptr;
    const bool whole = done.columns == n && bias == nullptr;  // its rows are one
    const std::int64_t rows = whole ? 1 : done.rows;
    const std::int64_t count = whole ? done.rows * n : done.columns;
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t at = ((done.row + row) * n + done.column) * size;
      char* const x = static_cast<char*>(c.output(0)) + at;
      const auto* const z =
          after.has_operand() ? static_cast<const char*>(c.input(after.operand())) + at : nullptr;
      if (bias != nullptr) add(x, true, bias, true, x, count);
      switch (after.then) {
        case AfterProduct::Then::kNothing: break;
        case AfterProduct::Then::kRelu: relu(x, x, count); break;
        case AfterProduct::Then::kReluGrad: relu_grad(x, true, z, true, x, count); break;
        case AfterProduct::Then::kAdd: add(x, true, z, true, x, count); break;
      }
    }
  };
}

// The product's shards come first, then those of the sums; so does the scratch memory.
struct Parts {
  ProductTiles product;
  std::optional<kernels::Reduction> sums;
  std::size_t summed = 0;  // which input

  Parts(const NodeView& node, std::span<const TensorSpec> outputs) : product(node, outputs[0]) {
    const AfterProduct after = after_product(node);
    if (after.sums == AfterProduct::Sums::kNone) return;
    summed = after.summed();
    const TensorSpec& matrix = node.input(summed);
    sums.emplace(kernels::AxisReduce::kSum, matrix.dtype, matrix.shape, after.summed_axes(node));
  }
  std::size_t sums_at() const {
    return (product.scratch_bytes() + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
  }
  Split split() const {
    Split split{product.shards(), product.scratch_bytes(), product.needs_finish()};
    if (!sums) return split;
    split.shards += sums->shards();
    if (sums->scratch_bytes() > 0) split.scratch_bytes = sums_at() + sums->scratch_bytes();
    split.finish = split.finish || sums->has_finish();
    return split;
  }
};

KernelFn fused_matmul_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  return
      [parts = Parts(node, outputs), at = Parts(node, outputs).sums_at(),
       products = ProductTiles(node, outputs[0]).shards(),
       then = finishing(after_product(node), outputs[0].dtype, outputs[0].shape.dim(-1))](KernelContext& c) {
        const std::optional<kernels::Reduction>& sums = parts.sums;
        void* const scratch = c.scratch() == nullptr ? nullptr : static_cast<char*>(c.scratch()) + at;
        if (c.is_finish()) {
          if (parts.product.needs_finish()) parts.product.finish(c, then);
          if (sums && sums->has_finish()) sums->finish(scratch, c.output(1));
        } else if (c.shard() < products) {
          parts.product.compute(c, then);
        } else {
          sums->run(c.input(parts.summed), c.output(1), scratch, c.shard() - products);
        }
      };
}

Cost fused_matmul_cost(const NodeView& node, std::span<const TensorSpec> outputs) {
  const Parts parts(node, outputs);
  Cost cost = parts.product.cost(node, outputs[0]);
  for (std::size_t i = 2; i < node.num_inputs(); ++i)
    cost.bytes += static_cast<double>(num_bytes(node.input(i)));
  for (const TensorSpec& sums : outputs.subspan(1)) cost.bytes += static_cast<double>(num_bytes(sums));
  const Shape& walked = parts.sums ? node.input(parts.summed).shape : outputs[0].shape;
  cost.flops += static_cast<double>(walked.num_elements());
  cost.seconds += static_cast<double>(walked.num_elements()) * kElementSeconds;
  return cost;
}

}  // namespace

void internal::register_fused_matmul_ops(OpRegistry& registry) {
  OpDef def;
  def.name = kFusedMatmul;
  def.summary = "a product of matrices with what follows it: bias, relu, a sum, a bias's gradient";
  def.inputs = Arity::between(2, 4);
  def.attributes = {{"transpose_a", AttributeType::kBool, false},
                    {"transpose_b", AttributeType::kBool, false},
                    {"bias", AttributeType::kBool, false},
                    {"then", AttributeType::kString, false},
                    {"sums", AttributeType::kString, false}};
  def.infer = infer_fused_matmul;
  def.cost = fused_matmul_cost;
  def.split = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    return Parts(node, outputs).split();
  };
  def.kernels["cpu"] = fused_matmul_kernel;
  registry.add(std::move(def));
}

}  // namespace lockstep
