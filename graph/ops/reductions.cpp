// graph/ops/reductions.cpp - reductions over axes, in an order fixed by the shape.
#include "lockstep/graph/ops/reductions.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "lockstep/core/kernels/reduce.h"
#include "lockstep/core/kernels/scan.h"
#include "lockstep/graph/ops/gradient_rule.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/ops/rules/internal/axes.h"
#include "lockstep/graph/ops/rules/internal/items.h"
#include "lockstep/graph/ops/rules/internal/shares.h"

namespace lockstep {

namespace {

using Axes = std::vector<std::int64_t>;
using internal::gradient_of_prod_of_others;
using internal::Items;
using internal::items_of;
using internal::normal_axis;
using internal::reduced_axes;
using internal::reduced_shape;
using internal::split_items;
using kernels::AxisReduce;
using kernels::Reduction;

void check_dtype(const InferContext& c, AxisReduce op) {
  const TensorSpec& x = c.input(0);
  if (op == AxisReduce::kAny || op == AxisReduce::kAll) {
    if (x.dtype != DType::kBool)
      NodeView::fail(str("takes bool, got ", x, "; compare first (not_equal(x, 0))"));
  } else if (op == AxisReduce::kMean || op == AxisReduce::kLogSumExp) {
    if (!is_floating(x.dtype))
      NodeView::fail(str("takes floating values, got ", x, "; cast(x, DType::kF32) first"));
  } else if (x.dtype == DType::kBool) {
    NodeView::fail(str("has no meaning for bool, got ", x, "; use any or all, or cast first"));
  }
}

// Is a reduced axis known to be empty?
bool of_nothing(const Shape& shape, const std::vector<std::int64_t>& axes) {
  return std::ranges::any_of(axes,
                             [&](std::int64_t axis) { return shape[static_cast<std::size_t>(axis)] == 0; });
}

OpDef reduce_op(std::string name, std::string summary, AxisReduce op, GradientFn gradient) {
  OpDef def;
  def.name = std::move(name);
  def.summary = std::move(summary);
  def.inputs = Arity::exactly(1);
  def.attributes = {{"axes", AttributeType::kInts}, {"keepdims", AttributeType::kBool}};
  def.traits.infallible = true;
  def.traits.shape_math = true;
  def.gradient = std::move(gradient);
  def.infer = [op](InferContext& c) {
    check_dtype(c, op);
    const std::vector<std::int64_t> axes = reduced_axes(c);
    if ((op == AxisReduce::kMax || op == AxisReduce::kMin) && of_nothing(c.input(0).shape, axes)) {
      NodeView::fail(str("of nothing: the reduced axes of ", c.input(0), " hold no elements"));
    }
    c.add_output(c.input(0).dtype, reduced_shape(c.input(0).shape, axes, c.get<bool>("keepdims")));
  };
  def.cost = [op](const NodeView& node, std::span<const TensorSpec> outputs) {
    const double work = op == AxisReduce::kLogSumExp ? 16 : 1;
    return Cost{work * static_cast<double>(node.input(0).shape.num_elements()),
                static_cast<double>(num_bytes(node.input(0)) + num_bytes(outputs[0])), 0};
  };
  def.split = [op](const NodeView& node, std::span<const TensorSpec>) {
    const Reduction reduction(op, node.input(0).dtype, node.input(0).shape, reduced_axes(node));
    return Split{reduction.shards(), reduction.scratch_bytes(), reduction.has_finish()};
  };
  def.kernels["cpu"] = [op](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
    return [reduction = Reduction(op, node.input(0).dtype, node.input(0).shape, reduced_axes(node))](
               KernelContext& c) {
      if (c.is_finish()) {
        reduction.finish(c.scratch(), c.output(0));
      } else {
        reduction.run(c.input(0), c.output(0), c.scratch(), c.shard());
      }
    };
  };
  return def;
}

// --- gradients

// A value of the output's shape with the reduced axes put back, with extent 1.
Value kept(const GradientContext& c, const Value& value) {
  if (c.view().get<bool>("keepdims")) return value;
  const std::vector<std::int64_t> axes = reduced_axes(c.view());
  return with_kept_dims(value, c.input(), axes);
}

std::vector<Gradient> sum_gradient(GradientContext& c) {
  return {broadcast_to(kept(c, c.grad()), shape_of(c.input()))};
}

std::vector<Gradient> mean_gradient(GradientContext& c) {
  const Value count =
      internal::count_elements(c.input(), reduced_axes(c.view()), internal::count_dtype(c.input().dtype()));
  const Value share = internal::share_of(c.grad(), count);
  return {broadcast_to(kept(c, share), shape_of(c.input()))};
}

// Elements equal to the extreme share the gradient equally.
std::vector<Gradient> extreme_gradient(GradientContext& c) {
  const DType dtype = c.input().dtype();
  const Value extreme = kept(c, c.output());
  const Value same = equal(c.input(), extreme);
  const Value taken = cast(same, dtype);
  const DType wide = internal::count_dtype(dtype);
  const Value takers = sum(wide == dtype ? taken : cast(same, wide), reduced_axes(c.view()), true);
  const Value share = internal::share_of(kept(c, c.grad()), takers);
  return {taken * share};
}

std::vector<Gradient> logsumexp_gradient(GradientContext& c) {
  // If all elements are -inf, so is the result; a finite number in its place gives exp(-inf), which is 0.
  const double lowest = c.input().dtype() == DType::kF64 ? std::numeric_limits<double>::lowest()
                        : c.input().dtype() == DType::kF16
                            ? -65504
                            : static_cast<double>(std::numeric_limits<float>::lowest()) / 2;
  const Value result = kept(c, maximum(c.output(), lowest));
  const Value weight = exp(c.input() - result);
  return {weight * kept(c, c.grad())};
}

// Axis by axis, each time by the product of the other elements along it, so that zeros do no harm.
std::vector<Gradient> prod_gradient(GradientContext& c) {
  const std::vector<std::int64_t> axes = reduced_axes(c.view());
  std::vector<Value> products = {c.input()};
  for (std::size_t i = 0; i + 1 < axes.size(); ++i)
    products.push_back(prod(products.back(), {axes[i]}, true));
  Value back = kept(c, c.grad());
  for (std::size_t i = axes.size(); i-- > 0;) {
    const Value others = c.builder().op1("prod_of_others", {products[i]}, {{"axis", axes[i]}});
    back = back * others;
  }
  return {back};
}

OpDef prod_of_others_op() {
  OpDef def;
  def.name = "prod_of_others";
  def.summary = "for each element, the product of all others along `axis`";
  def.inputs = Arity::exactly(1);
  def.attributes = {{"axis", AttributeType::kInt}};
  def.traits.infallible = true;
  def.infer = [](InferContext& c) {
    if (!is_floating(c.input(0).dtype)) NodeView::fail(str("takes floating values, got ", c.input(0)));
    normal_axis(c);
    c.add_output(c.input(0));
  };
  def.gradient = gradient_of_prod_of_others();
  def.split = [](const NodeView& node, std::span<const TensorSpec>) {
    Split split = split_items(items_of(node), 32 << 10);
    split.scratch_bytes =
        kernels::prod_of_others_scratch(node.input(0).dtype, node.input(0).shape.num_elements());
    return split;
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    const Items items = items_of(node);
    return [items, dtype = outputs[0].dtype](KernelContext& c) {
      const auto [begin, end] = c.range(items.count);
      kernels::prod_of_others(dtype, c.input(0), c.output(0), static_cast<float*>(c.scratch()), items.n,
                              items.inner, begin, end);
    };
  };
  return def;
}

OpDef num_elements_op() {
  OpDef def;
  def.name = "num_elements";
  def.summary = "how many elements a tensor of the given shape has along `axes` (empty: all), as a scalar";
  def.inputs = Arity::exactly(1);
  def.attributes = {{"axes", AttributeType::kInts}, {"dtype", AttributeType::kDType}};
  def.shape_operands = {0};
  def.traits.infallible = true;
  def.traits.shape_math = true;
  def.infer = [](InferContext& c) {
    c.require(c.get<DType>("dtype") != DType::kBool, "a number does not fit into bool");
    internal::normal_axes(c.get<std::vector<std::int64_t>>("axes"), c.shape_operand(0).size());
    c.add_output(c.get<DType>("dtype"), Shape{});
  };
  def.gradient = [](GradientContext&) -> std::vector<Gradient> { return {Gradient()}; };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    const std::vector<std::int64_t> dims = node.shape_operand(0);
    double count = 1;
    for (const std::int64_t axis : reduced_axes(node.get<std::vector<std::int64_t>>("axes"), dims.size())) {
      count *= static_cast<double>(dims[static_cast<std::size_t>(axis)]);
    }
    return [value = Tensor::full(outputs[0].dtype, Shape{}, count)](KernelContext& c) {
      std::memcpy(c.output(0), value.raw(), value.num_bytes());
    };
  };
  return def;
}

Value reduce(const char* op, const Operand& x, Axes axes, bool keepdims) {
  std::vector<Attribute> attributes;
  attributes.push_back({"axes", std::move(axes)});
  attributes.push_back({"keepdims", keepdims});
  const Value& value = x.value_for(op);
  return value.builder().op1(op, {value}, std::move(attributes), {}, x.site());
}

}  // namespace

void internal::register_reduction_ops(OpRegistry& registry) {
  registry.add(reduce_op("sum", "the sum over `axes` (empty: all), which keepdims leaves with extent 1",
                         AxisReduce::kSum, sum_gradient));
  registry.add(reduce_op("mean", "the mean over `axes`", AxisReduce::kMean, mean_gradient));
  registry.add(reduce_op("max", "the largest over `axes`; NaN where there is one", AxisReduce::kMax,
                         extreme_gradient));
  registry.add(reduce_op("min", "the smallest over `axes`; NaN where there is one", AxisReduce::kMin,
                         extreme_gradient));
  registry.add(reduce_op("prod", "the product over `axes`", AxisReduce::kProd, prod_gradient));
  registry.add(reduce_op("any", "whether any over `axes` is true", AxisReduce::kAny, {}));
  registry.add(reduce_op("all", "whether all over `axes` are true", AxisReduce::kAll, {}));
  registry.add(reduce_op("logsumexp", "log(sum(exp(x))) over `axes`, without overflow",
                         AxisReduce::kLogSumExp, logsumexp_gradient));
  registry.add(prod_of_others_op());
  registry.add(num_elements_op());
}

Value sum(const Operand& x, Axes axes, bool keep) { return reduce("sum", x, std::move(axes), keep); }
Value mean(const Operand& x, Axes axes, bool keep) { return reduce("mean", x, std::move(axes), keep); }
Value max(const Operand& x, Axes axes, bool keep) { return reduce("max", x, std::move(axes), keep); }
Value min(const Operand& x, Axes axes, bool keep) { return reduce("min", x, std::move(axes), keep); }
Value prod(const Operand& x, Axes axes, bool keep) { return reduce("prod", x, std::move(axes), keep); }
Value any_of(const Operand& x, Axes axes, bool keep) { return reduce("any", x, std::move(axes), keep); }
Value all(const Operand& x, Axes axes, bool keep) { return reduce("all", x, std::move(axes), keep); }
Value logsumexp(const Operand& x, Axes axes, bool keep) {
  return reduce("logsumexp", x, std::move(axes), keep);
}

// A node even if the number is known: in replicas it is each replica's own, which a constant would not be.
Value num_elements(const Operand& x, std::vector<std::int64_t> axes, DType dtype) {
  const Value& value = x.value_for("num_elements");
  const Value dims = shape_of(Operand(value, x.site()));
  return value.builder().op1("num_elements", {dims}, {{"axes", std::move(axes)}, {"dtype", dtype}}, {},
                             x.site());
}

Value internal::count_elements(const Value& x, std::vector<std::int64_t> axes, DType dtype) {
  const Shape& shape = x.shape();
  const std::vector<std::int64_t> normal = reduced_axes(axes, shape.rank());
  const bool known = std::ranges::none_of(
      normal, [&](std::int64_t axis) { return shape[static_cast<std::size_t>(axis)] == kUnknown; });
  if (!known) return num_elements(x, std::move(axes), dtype);
  double count = 1;
  for (const std::int64_t axis : normal) count *= static_cast<double>(shape[static_cast<std::size_t>(axis)]);
  return x.builder().constant(Tensor::full(dtype, Shape{}, count), "num_elements");
}

Value with_kept_dims(const Value& reduced, const Value& x, std::span<const std::int64_t> axes) {
  const std::vector<std::int64_t> normal = reduced_axes({axes.begin(), axes.end()}, x.shape().rank());
  const Shape shape = reduced_shape(x.shape(), normal, true);
  if (std::ranges::count(shape.dims(), kUnknown) <= 1) return reshape(reduced, shape);
  // Several dimensions are unknown: takes the extents of x, with 1 in place of the reduced ones.
  std::vector<std::int64_t> keep(shape.rank(), 1), add(shape.rank(), 0);
  for (const std::int64_t axis : normal) {
    keep[static_cast<std::size_t>(axis)] = 0;
    add[static_cast<std::size_t>(axis)] = 1;
  }
  GraphBuilder& builder = x.builder();
  const Shape vector{static_cast<std::int64_t>(shape.rank())};
  const Value dims = shape_of(x);
  const Value kept =
      dims * builder.constant(Tensor::from<std::int64_t>(vector, std::span<const std::int64_t>(keep)));
  return reshape(reduced, kept + builder.constant(
                                     Tensor::from<std::int64_t>(vector, std::span<const std::int64_t>(add))));
}

}  // namespace lockstep
