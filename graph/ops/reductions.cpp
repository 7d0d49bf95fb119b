// graph/ops/reductions.cpp - sums over axes, in an order fixed by the shape.
#include <algorithm>

#include "lockstep/core/kernels/reduce.h"
#include "lockstep/graph/internal/builtin_ops.h"
#include "lockstep/graph/ops.h"

namespace lockstep {

namespace {

constexpr std::int64_t kTile = 64 << 10;  // input elements a shard; about 20 us

// The axes as sorted numbers in [0, rank): all of them where none is named.
std::vector<std::int64_t> normal_axes(const NodeView& node) {
  const auto rank = static_cast<std::int64_t>(node.input(0).shape.rank());
  std::vector<std::int64_t> axes = node.get<std::vector<std::int64_t>>("axes");
  if (axes.empty()) {
    for (std::int64_t axis = 0; axis < rank; ++axis) axes.push_back(axis);
    return axes;
  }
  for (std::int64_t& axis : axes) {
    if (axis < -rank || axis >= rank) NodeView::fail(str("axis ", axis, " is outside of ", node.input(0)));
    if (axis < 0) axis += rank;
  }
  std::ranges::sort(axes);
  if (std::ranges::adjacent_find(axes) != axes.end()) NodeView::fail("an axis is named twice");
  return axes;
}

bool sums_everything(const NodeView& node, std::span<const TensorSpec> outputs) {
  return outputs[0].shape.num_elements() == 1 && node.input(0).shape.num_elements() > kTile;
}

OpDef sum_op() {
  OpDef def;
  def.name = "sum";
  def.summary = "the sum over `axes` (empty: all), which keepdims leaves with extent 1";
  def.inputs = Arity::exactly(1);
  def.attributes = {{"axes", AttributeType::kInts}, {"keepdims", AttributeType::kBool}};
  def.infer = [](InferContext& c) {
    c.require(c.input(0).dtype != DType::kBool, "has no meaning for bool");
    const std::vector<std::int64_t> axes = normal_axes(c);
    const bool keepdims = c.get<bool>("keepdims");
    std::vector<std::int64_t> dims;
    for (std::size_t i = 0; i < c.input(0).shape.rank(); ++i) {
      const bool summed = std::ranges::binary_search(axes, static_cast<std::int64_t>(i));
      if (!summed) dims.push_back(c.input(0).shape[i]);
      if (summed && keepdims) dims.push_back(1);
    }
    c.add_output(c.input(0).dtype, Shape(std::span<const std::int64_t>(dims)));
  };
  def.cost = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    return Cost{static_cast<double>(node.input(0).shape.num_elements()),
                static_cast<double>(num_bytes(node.input(0)) + num_bytes(outputs[0])), 0};
  };
  def.split = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    const std::int64_t in = node.input(0).shape.num_elements();
    const std::int64_t out = outputs[0].shape.num_elements();
    if (sums_everything(node, outputs)) {
      const std::int64_t tiles = shards_for(in, kTile);
      return Split{tiles, static_cast<std::size_t>(tiles) * kernels::size_of_partial(outputs[0].dtype), true};
    }
    return Split{std::max<std::int64_t>(std::min(out, shards_for(in, kTile)), 1), 0, false};
  };
  def.kernels[DeviceKind::kCpu] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    const DType dtype = outputs[0].dtype;
    const std::int64_t in = node.input(0).shape.num_elements();
    if (sums_everything(node, outputs)) {
      return [dtype, in](KernelContext& c) {
        if (c.is_finish()) {
          kernels::combine_tiles(dtype, c.scratch(), c.num_shards(), c.output(0));
          return;
        }
        const std::int64_t begin = c.shard() * kTile;
        kernels::sum_tile(dtype, c.input(0), begin, std::min(in, begin + kTile),
                          static_cast<char*>(c.scratch()) +
                              static_cast<std::size_t>(c.shard()) * kernels::size_of_partial(dtype));
      };
    }
    return [dtype, shape = node.input(0).shape, axes = normal_axes(node),
            out = outputs[0].shape.num_elements()](KernelContext& c) {
      const auto [begin, end] = c.range(out);
      kernels::sum(dtype, c.input(0), shape, axes, c.output(0), begin, end);
    };
  };
  return def;
}

}  // namespace

void register_reduction_ops(OpRegistry& registry) { registry.add(sum_op()); }

Value sum(const Operand& x, std::vector<std::int64_t> axes, bool keepdims) {
  std::vector<Attribute> attributes;
  attributes.push_back({"axes", std::move(axes)});
  attributes.push_back({"keepdims", keepdims});
  const Value& value = x.value_for("sum");
  return value.builder().op1("sum", {value}, std::move(attributes), {}, x.site());
}

}  // namespace lockstep
