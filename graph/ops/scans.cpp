// graph/ops/scans.cpp - running sums, the places of extremes and the largest few, along one axis.
#include "lockstep/graph/ops/scans.h"

#include "lockstep/core/kernels/scan.h"
#include "lockstep/core/kernels/select.h"
#include "lockstep/graph/ops/gradient_rule.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/ops/rules/internal/axes.h"
#include "lockstep/graph/ops/rules/internal/items.h"

namespace lockstep {

namespace {

using internal::Items;
using internal::items_along;
using internal::items_of;
using internal::split_items;

constexpr std::int64_t kScanGrain = 32 << 10;  // elements per shard; about 30 us

void require_numeric(const InferContext& c) {
  if (c.input(0).dtype == DType::kBool) NodeView::fail("has no meaning for bool; cast first");
}

OpDef scan_op(std::string name, std::string summary) {
  OpDef def;
  def.name = std::move(name);
  def.summary = std::move(summary);
  def.inputs = Arity::exactly(1);
  def.traits.infallible = true;
  def.traits.shape_math = true;
  def.cost = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    Cost cost{8 * static_cast<double>(node.input(0).shape.num_elements()),
              static_cast<double>(num_bytes(node.input(0))), 0};
    for (const TensorSpec& output : outputs) cost.bytes += static_cast<double>(num_bytes(output));
    return cost;
  };
  return def;
}

OpDef cumsum_op() {
  OpDef def = scan_op("cumsum", "the sum of all elements up to each along `axis`");
  def.attributes = {
      {"axis", AttributeType::kInt}, {"exclusive", AttributeType::kBool}, {"reverse", AttributeType::kBool}};
  def.traits.in_place = true;
  def.infer = [](InferContext& c) {
    require_numeric(c);
    internal::normal_axis(c);
    c.add_output(c.input(0));
  };
  def.split = [](const NodeView& node, std::span<const TensorSpec>) {
    return split_items(items_of(node), kScanGrain);
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    const NodeView& node = c.view();
    return {cumsum(c.grad(), node.get<std::int64_t>("axis"), node.get<bool>("exclusive"),
                   !node.get<bool>("reverse"))};
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return [dtype = outputs[0].dtype, items = items_of(node), exclusive = node.get<bool>("exclusive"),
            reverse = node.get<bool>("reverse")](KernelContext& c) {
      const auto [begin, end] = c.range(items.count);
      kernels::cumsum(dtype, c.input(0), c.output(0), items.n, items.inner, exclusive, reverse, begin, end);
    };
  };
  return def;
}

OpDef arg_op(bool largest) {
  OpDef def =
      scan_op(largest ? "argmax" : "argmin", largest ? "the index of the first of the largest along `axis`"
                                                     : "the index of the first of the smallest along `axis`");
  def.attributes = {{"axis", AttributeType::kInt}, {"keepdims", AttributeType::kBool}};
  def.infer = [](InferContext& c) {
    require_numeric(c);
    const std::int64_t axis = internal::normal_axis(c);
    if (c.input(0).shape[static_cast<std::size_t>(axis)] == 0) {
      NodeView::fail(str("of nothing: axis ", axis, " of ", c.input(0), " holds no elements"));
    }
    c.add_output(DType::kI64, internal::reduced_shape(c.input(0).shape, {axis}, c.get<bool>("keepdims")));
  };
  def.split = [](const NodeView& node, std::span<const TensorSpec>) {
    return split_items(items_of(node), kScanGrain);
  };
  def.kernels["cpu"] = [largest](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
    return [largest, dtype = node.input(0).dtype, items = items_of(node)](KernelContext& c) {
      const auto [begin, end] = c.range(items.count);
      kernels::arg_extreme(dtype, largest, c.input(0), static_cast<std::int64_t*>(c.output(0)), items.n,
                           items.inner, begin, end);
    };
  };
  return def;
}

// Puts g at the places of x that were taken: a scatter into x as one long row.
Value put_back(const Value& g, const Value& indices, const Value& x) {
  const Value length = num_elements(x, {-1});
  const Value per_row = sum(ones_like(indices), {-1}, true);       // [..., 1]; its contents do not matter
  const Value row = reshape(ones_like(per_row), Shape{kUnknown});  // [rows] of ones
  const Value start = reshape(cumsum(row, 0, true) * length, shape_of(per_row));
  const Value places = reshape(indices + start, Shape{kUnknown});
  const Value total = reshape(prod(shape_of(x)), Shape{1});
  const Value flat = scatter_add(places, reshape(g, Shape{kUnknown}), total);
  return reshape(flat, shape_of(x));
}

OpDef top_k_op() {
  OpDef def = scan_op("top_k", "the `k` largest along the last axis, largest first, and their indices");
  def.attributes = {{"k", AttributeType::kInt}};
  def.infer = [](InferContext& c) {
    require_numeric(c);
    const TensorSpec& x = c.input(0);
    const std::int64_t k = c.get<std::int64_t>("k");
    if (x.shape.rank() == 0) NodeView::fail(str("takes values along a last axis, got ", x));
    const std::size_t last = x.shape.rank() - 1;
    if (k < 0 || (x.shape[last] != kUnknown && k > x.shape[last])) {
      NodeView::fail(
          str("k is ", k, ", but the last axis of ", x, " holds ", counted(x.shape[last], "element")));
    }
    c.add_output(x.dtype, x.shape.with_dim(last, k));
    c.add_output(DType::kI64, x.shape.with_dim(last, k));
  };
  const auto rows_of = [](const NodeView& node) {
    return items_along(node.input(0).shape, static_cast<std::int64_t>(node.input(0).shape.rank()) - 1);
  };
  def.split = [rows_of](const NodeView& node, std::span<const TensorSpec>) {
    return split_items(rows_of(node), kScanGrain / 4);
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    if (!c.has_grad(0)) return {Gradient()};
    return {put_back(c.grad(0), c.output(1), c.input())};
  };
  def.kernels["cpu"] = [rows_of](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
    return [dtype = node.input(0).dtype, items = rows_of(node),
            k = node.get<std::int64_t>("k")](KernelContext& c) {
      const auto [begin, end] = c.range(items.count);
      kernels::top_k(dtype, c.input(0), items.n, k, c.output(0), static_cast<std::int64_t*>(c.output(1)),
                     begin, end);
    };
  };
  return def;
}

Value along(const char* op, const Operand& x, std::vector<Attribute> attributes) {
  const Value& value = x.value_for(op);
  return value.builder().op1(op, {value}, std::move(attributes), {}, x.site());
}

}  // namespace

void internal::register_scan_ops(OpRegistry& registry) {
  registry.add(cumsum_op());
  registry.add(arg_op(true));
  registry.add(arg_op(false));
  registry.add(top_k_op());
}

Value cumsum(const Operand& x, std::int64_t axis, bool exclusive, bool reverse) {
  return along("cumsum", x, {{"axis", axis}, {"exclusive", exclusive}, {"reverse", reverse}});
}
Value argmax(const Operand& x, std::int64_t axis, bool keepdims) {
  return along("argmax", x, {{"axis", axis}, {"keepdims", keepdims}});
}
Value argmin(const Operand& x, std::int64_t axis, bool keepdims) {
  return along("argmin", x, {{"axis", axis}, {"keepdims", keepdims}});
}

TopKResult top_k(const Operand& x, std::int64_t k) {
  const Value& value = x.value_for("top_k");
  const std::vector<Value> outputs = value.builder().op("top_k", {&value, 1}, {{"k", k}}, {}, x.site());
  return {outputs[0], outputs[1]};
}

}  // namespace lockstep
