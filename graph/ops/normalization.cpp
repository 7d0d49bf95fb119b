// graph/ops/normalization.cpp - statistics of values, and normalisation by them.
#include "lockstep/graph/ops/normalization.h"

#include <algorithm>
#include <cmath>

#include "lockstep/core/kernels/layer_norm.h"
#include "lockstep/core/kernels/reduce.h"
#include "lockstep/graph/ops/gradient_rule.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/ops/rules/internal/axes.h"
#include "lockstep/graph/ops/rules/internal/floating.h"
#include "lockstep/graph/ops/rules/internal/items.h"
#include "lockstep/graph/ops/rules/internal/shape_rules.h"
#include "lockstep/graph/ops/rules/internal/shares.h"

namespace lockstep {

namespace {

using internal::gradient_of_layer_norm_grad;
using internal::norm_rows;
using internal::NormRows;
using internal::shards_for;
using kernels::AxisReduce;
using kernels::Reduction;

Reduction moments_of(const NodeView& node) {
  return {AxisReduce::kMoments, node.input(0).dtype, node.input(0).shape, internal::reduced_axes(node)};
}

OpDef moments_op() {
  OpDef def;
  def.name = "moments";
  def.summary = "the mean and the variance over `axes` (empty: all)";
  def.inputs = Arity::exactly(1);
  def.attributes = {{"axes", AttributeType::kInts}, {"keepdims", AttributeType::kBool}};
  def.traits.infallible = true;
  def.infer = [](InferContext& c) {
    internal::require_floating(c);
    const Shape shape =
        internal::reduced_shape(c.input(0).shape, internal::reduced_axes(c), c.get<bool>("keepdims"));
    c.add_output(c.input(0).dtype, shape);
    c.add_output(c.input(0).dtype, shape);
  };
  def.cost = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    return internal::cost_by_elements(node, outputs, 3);
  };
  def.split = [](const NodeView& node, std::span<const TensorSpec>) {
    const Reduction reduction = moments_of(node);
    return Split{reduction.shards(), reduction.scratch_bytes(), reduction.has_finish()};
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
    return [reduction = moments_of(node)](KernelContext& c) {
      if (c.is_finish()) {
        reduction.finish(c.scratch(), c.output(0), c.output(1));
      } else {
        reduction.run(c.input(0), c.output(0), c.scratch(), c.shard(), c.output(1));
      }
    };
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    const Value x = c.input();
    const std::vector<std::int64_t> axes = internal::reduced_axes(c.view());
    const auto kept = [&](const Value& v) {
      return c.view().get<bool>("keepdims") ? v : with_kept_dims(v, x, axes);
    };
    const Value count = internal::count_elements(x, axes, internal::count_dtype(x.dtype()));
    Value back;
    if (c.has_grad(1)) {
      const Value slope = kept(internal::share_of(c.grad(1) * 2, count));
      const Value distance = x - kept(c.output(0));
      back = distance * slope;
    }
    if (c.has_grad(0)) {
      const Value share = broadcast_to(kept(internal::share_of(c.grad(0), count)), shape_of(x));
      back = back.valid() ? back + share : share;
    }
    return {back};
  };
  return def;
}

// --- layer_norm

constexpr std::int64_t kNormGrain = 32 << 10;  // elements per shard; about 30 us

// Checks x and gamma; returns the dimensions of x before those of gamma.
Shape infer_rows(const InferContext& c) {
  internal::require_floating(c);
  const TensorSpec &x = c.input(0), &gamma = c.input(1);
  const std::size_t rank = gamma.shape.rank();
  bool fits = gamma.dtype == x.dtype && rank > 0 && rank <= x.shape.rank();
  for (std::size_t i = 0; fits && i < rank; ++i) {
    const std::int64_t have = gamma.shape[i], want = x.shape[x.shape.rank() - rank + i];
    fits = have == want || have == kUnknown || want == kUnknown;
  }
  if (!fits) NodeView::fail(str("takes gamma of the last axes of x, ", x, ", got ", gamma));
  return Shape(x.shape.dims().first(x.shape.rank() - rank));
}

DType statistics_dtype(DType dtype) { return internal::count_dtype(dtype); }

std::vector<Gradient> layer_norm_gradient(GradientContext& c) {
  const Value x = c.input(0), gamma = c.input(1);
  std::vector<Gradient> result(3);
  Value back;
  if (c.has_grad(0)) {
    const Value inputs[] = {x, gamma, c.output(1), c.output(2), c.grad(0)};
    const std::vector<Value> flows =
        c.builder().op("layer_norm_grad", inputs, {{"epsilon", c.view().get<double>("epsilon")}});
    back = flows[0];
    result[1] = flows[1];
    result[2] = flows[2];
  }
  // What flows into the statistics themselves.
  const std::vector<std::int64_t> axes = internal::last_axes(gamma.shape().rank());
  const auto kept = [&](const Value& v) { return with_kept_dims(cast(v, x.dtype()), x, axes); };
  const Value count = c.has_grad(1) || c.has_grad(2)
                          ? internal::count_elements(x, axes, statistics_dtype(x.dtype()))
                          : Value();
  if (c.has_grad(1)) {
    const Value share = broadcast_to(internal::share_of(kept(c.grad(1)), count), shape_of(x));
    back = back.valid() ? back + share : share;
  }
  if (c.has_grad(2)) {
    const Value rstd = kept(c.output(2));
    const Value slope = internal::share_of(kept(c.grad(2)) * rstd * rstd * rstd, count);
    const Value distance = x - kept(c.output(1));
    const Value through = neg(distance * slope);
    back = back.valid() ? back + through : through;
  }
  result[0] = back;
  return result;
}

OpDef layer_norm_op() {
  OpDef def;
  def.name = "layer_norm";
  def.summary =
      "(x - mean) * rstd * gamma + beta over the last axes, the mean, and rstd = 1 / sqrt(variance + "
      "epsilon)";
  def.inputs = Arity::exactly(3);
  def.attributes = {{"epsilon", AttributeType::kFloat}};
  def.traits.infallible = true;
  def.infer = [](InferContext& c) {
    const Shape rows = infer_rows(c);
    const double epsilon = c.get<double>("epsilon");
    if (!(epsilon >= 0) || !std::isfinite(epsilon)) NodeView::fail(str("epsilon is ", epsilon, ", not >= 0"));
    if (c.input(2).dtype != c.input(0).dtype || !c.input(2).shape.may_equal(c.input(1).shape)) {
      NodeView::fail(str("takes beta like gamma, ", c.input(1), ", got ", c.input(2)));
    }
    c.add_output(c.input(0));
    c.add_output(statistics_dtype(c.input(0).dtype), rows);
    c.add_output(statistics_dtype(c.input(0).dtype), rows);
  };
  def.cost = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    return internal::cost_by_elements(node, outputs, 6);
  };
  def.split = [](const NodeView& node, std::span<const TensorSpec>) {
    const NormRows rows = norm_rows(node);
    return Split{std::clamp<std::int64_t>(shards_for(rows.count * rows.width, kNormGrain), 1,
                                          std::max<std::int64_t>(rows.count, 1)),
                 0, false};
  };
  def.gradient = layer_norm_gradient;
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
    return [dtype = node.input(0).dtype, rows = norm_rows(node),
            epsilon = node.get<double>("epsilon")](KernelContext& c) {
      const auto [begin, end] = c.range(rows.count);
      kernels::layer_norm(dtype, c.input(0), c.input(1), c.input(2), epsilon, rows.width, c.output(0),
                          c.output(1), c.output(2), begin, end);
    };
  };
  return def;
}

OpDef layer_norm_grad_op() {
  OpDef def;
  def.name = "layer_norm_grad";
  def.summary = "what flows back from y = layer_norm(x, gamma, beta) into x, gamma and beta";
  def.inputs = Arity::exactly(5);  // x, gamma, mean, rstd, g
  def.attributes = {{"epsilon", AttributeType::kFloat}};
  def.traits.infallible = true;
  def.infer = [](InferContext& c) {
    const Shape rows = infer_rows(c);
    const DType dtype = statistics_dtype(c.input(0).dtype);
    for (const std::size_t i : {std::size_t{2}, std::size_t{3}}) {
      if (c.input(i).dtype != dtype || !c.input(i).shape.may_equal(rows)) {
        NodeView::fail(str("takes statistics ", TensorSpec{dtype, rows}, ", got ", c.input(i)));
      }
    }
    if (c.input(4).dtype != c.input(0).dtype || !c.input(4).shape.may_equal(c.input(0).shape)) {
      NodeView::fail(str("takes a gradient like x, ", c.input(0), ", got ", c.input(4)));
    }
    c.add_output(c.input(0));
    c.add_output(c.input(1));
    c.add_output(c.input(1));
  };
  def.cost = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    return internal::cost_by_elements(node, outputs, 12);
  };
  def.split = [](const NodeView& node, std::span<const TensorSpec>) {
    const NormRows rows = norm_rows(node);
    // A shard of few rows would spend its time on its partial sums.
    const std::int64_t most = std::max<std::int64_t>(rows.count / 8, 1);
    const std::int64_t shards =
        std::clamp<std::int64_t>(shards_for(rows.count * rows.width, kNormGrain), 1, most);
    return Split{shards, static_cast<std::size_t>(shards) * kernels::layer_norm_partial_bytes(rows.width),
                 true};
  };
  def.gradient = gradient_of_layer_norm_grad();
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
    return [dtype = node.input(0).dtype, rows = norm_rows(node)](KernelContext& c) {
      if (c.is_finish()) {
        kernels::layer_norm_join(dtype, c.scratch(), c.num_shards(), rows.width, c.output(1), c.output(2));
        return;
      }
      const auto [begin, end] = c.range(rows.count);
      auto* partial = static_cast<std::byte*>(c.scratch()) +
                      static_cast<std::size_t>(c.shard()) * kernels::layer_norm_partial_bytes(rows.width);
      kernels::layer_norm_grad(dtype, c.input(0), c.input(1), c.input(2), c.input(3), c.input(4), rows.width,
                               c.output(0), partial, begin, end);
    };
  };
  return def;
}

}  // namespace

void internal::register_normalization_ops(OpRegistry& registry) {
  registry.add(moments_op());
  registry.add(layer_norm_op());
  registry.add(layer_norm_grad_op());
}

Moments moments(const Operand& x, std::vector<std::int64_t> axes, bool keepdims) {
  const Value& value = x.value_for("moments");
  const std::vector<Value> outputs = value.builder().op(
      "moments", {&value, 1}, {{"axes", std::move(axes)}, {"keepdims", keepdims}}, {}, x.site());
  return {outputs[0], outputs[1]};
}

Value layer_norm(const Operand& x, const Value& gamma, const Value& beta, double epsilon) {
  const Value& value = x.value_for("layer_norm");
  return value.builder().op1("layer_norm", {value, gamma, beta}, {{"epsilon", epsilon}}, {}, x.site());
}

}  // namespace lockstep
