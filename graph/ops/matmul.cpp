// graph/ops/matmul.cpp - products through BLAS, cut into row tiles.
#include <algorithm>

#include "lockstep/core/kernels/gemm.h"
#include "lockstep/graph/internal/builtin_ops.h"
#include "lockstep/graph/ops.h"

namespace lockstep {

namespace {

constexpr double kTileFlops = 2e6;  // about 100 us of one core

// Rows of the result per tile: by shape alone, and a multiple of 8 so that BLAS keeps its inner kernel.
std::int64_t rows_per_tile(std::int64_t m, std::int64_t n, std::int64_t k) {
  const double flops_a_row = 2.0 * static_cast<double>(n) * static_cast<double>(k);
  const auto rows = static_cast<std::int64_t>(kTileFlops / std::max(flops_a_row, 1.0));
  return std::clamp<std::int64_t>((rows + 7) / 8 * 8, 8, std::max<std::int64_t>(m, 8));
}

OpDef matmul_op() {
  OpDef def;
  def.name = "matmul";
  def.summary = "the product of two matrices";
  def.inputs = Arity::exactly(2);
  def.infer = [](InferContext& c) {
    const DType dtype = c.same_dtype();
    c.require(dtype != DType::kBool && dtype != DType::kU8, "takes floating or i32/i64 matrices");
    const Shape& a = c.input(0).shape;
    const Shape& b = c.input(1).shape;
    if (a.rank() != 2 || b.rank() != 2) {
      NodeView::fail(str("takes two matrices (rank 2), got ", c.input(0), " and ", c.input(1)));
    }
    if (a[1] != b[0] && a[1] != kUnknown && b[0] != kUnknown) {
      NodeView::fail(
          str("inner dimensions differ: ", c.input(0), " x ", c.input(1), " needs ", a[1], " == ", b[0]));
    }
    c.add_output(dtype, Shape{a[0], b[1]});
  };
  def.cost = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    const double k = static_cast<double>(node.input(0).shape[1]);
    return Cost{
        2 * k * static_cast<double>(outputs[0].shape.num_elements()),
        static_cast<double>(num_bytes(node.input(0)) + num_bytes(node.input(1)) + num_bytes(outputs[0])), 0};
  };
  def.split = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    const std::int64_t m = outputs[0].shape[0];
    return Split{shards_for(m, rows_per_tile(m, outputs[0].shape[1], node.input(0).shape[1])), 0, false};
  };
  def.kernels[DeviceKind::kCpu] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    const std::int64_t m = outputs[0].shape[0];
    const std::int64_t n = outputs[0].shape[1];
    const std::int64_t k = node.input(0).shape[1];
    return [dtype = outputs[0].dtype, m, n, k, tile = rows_per_tile(m, n, k)](KernelContext& c) {
      const std::int64_t begin = c.shard() * tile;
      const std::int64_t end = std::min(m, begin + tile);
      const auto size = static_cast<std::int64_t>(size_of(dtype));
      kernels::gemm(dtype, false, false, end - begin, n, k,
                    static_cast<const char*>(c.input(0)) + begin * k * size, k, c.input(1), n,
                    static_cast<char*>(c.output(0)) + begin * n * size, n);
    };
  };
  return def;
}

}  // namespace

void register_matmul_ops(OpRegistry& registry) { registry.add(matmul_op()); }

Value matmul(const Operand& a, const Operand& b) {
  const Value& left = a.value_for("matmul");
  return left.builder().op1("matmul", {left, b.value_for("matmul")}, {}, {}, a.site());
}

}  // namespace lockstep
