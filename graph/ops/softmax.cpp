// graph/ops/softmax.cpp - softmax and its losses.
#include "lockstep/graph/ops/softmax.h"

#include "lockstep/core/kernels/softmax.h"
#include "lockstep/graph/ops/gradient_rule.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/ops/rules/internal/axes.h"
#include "lockstep/graph/ops/rules/internal/floating.h"
#include "lockstep/graph/ops/rules/internal/items.h"
#include "lockstep/graph/ops/rules/internal/shape_rules.h"

namespace lockstep {

namespace {

using internal::Items;
using internal::items_along;
using internal::items_of;
using internal::split_items;

// Elements per shard: if each takes an exponential (about 20 us), and if none does.
constexpr std::int64_t kSoftmaxGrain = 16 << 10;
constexpr std::int64_t kCheapGrain = 64 << 10;

OpDef along_axis(std::string name, std::string summary, std::size_t inputs, double work) {
  OpDef def;
  def.name = std::move(name);
  def.summary = std::move(summary);
  def.inputs = Arity::exactly(inputs);
  def.attributes = {{"axis", AttributeType::kInt}};
  def.traits.in_place = true;
  def.traits.infallible = true;
  def.infer = [](InferContext& c) {
    internal::require_floating(c);
    internal::normal_axis(c);
    Shape shape = c.input(0).shape;
    if (c.num_inputs() == 2) {
      c.same_dtype();
      if (!c.input(1).shape.may_equal(shape)) {
        NodeView::fail(str("takes two of one shape, got ", c.input(0), " and ", c.input(1)));
      }
      shape = broadcast_shapes(shape, c.input(1).shape);  // an extent that either one knows is known
    }
    c.add_output(c.input(0).dtype, shape);
  };
  def.cost = [work](const NodeView& node, std::span<const TensorSpec> outputs) {
    return internal::cost_by_elements(node, outputs, work);
  };
  def.split = [work](const NodeView& node, std::span<const TensorSpec>) {
    return split_items(items_of(node), work > 8 ? kSoftmaxGrain : kCheapGrain);
  };
  return def;
}

OpDef softmax_op(bool log) {
  OpDef def = along_axis(log ? "log_softmax" : "softmax",
                         log ? "x - log(sum(exp(x))) along `axis`, without overflow"
                             : "exp(x) / sum(exp(x)) along `axis`, without overflow",
                         1, 20);
  def.kernels["cpu"] = [log](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return [log, dtype = outputs[0].dtype, items = items_of(node)](KernelContext& c) {
      const auto [begin, end] = c.range(items.count);
      kernels::softmax(dtype, log, c.input(0), c.output(0), items.n, items.inner, begin, end);
    };
  };
  if (log) {
    def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
      const std::int64_t axis = c.view().get<std::int64_t>("axis");
      const Value total = sum(c.grad(), {axis}, true);
      const Value share = softmax(c.input(), axis) * total;
      return {c.grad() - share};
    };
  } else {
    def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
      return {c.builder().op1("softmax_grad", {c.output(), c.grad()},
                              {{"axis", c.view().get<std::int64_t>("axis")}})};
    };
  }
  return def;
}

OpDef softmax_grad_op() {
  OpDef def = along_axis("softmax_grad",
                         "what flows back through y = softmax(x): y * (g - sum(y * g)) along `axis`", 2, 4);
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return [dtype = outputs[0].dtype, items = items_of(node)](KernelContext& c) {
      const auto [begin, end] = c.range(items.count);
      kernels::softmax_grad(dtype, c.input(0), c.input(1), c.output(0), items.n, items.inner, begin, end);
    };
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    const std::int64_t axis = c.view().get<std::int64_t>("axis");
    const Value y = c.input(0), g = c.input(1), h = c.grad();
    const Value total = sum(y * g, {axis}, true);
    const Value through_y = h * (g - total);
    const Value also = g * sum(y * h, {axis}, true);
    const Value back = through_y - also;
    return {back, c.builder().op1("softmax_grad", {y, h}, {{"axis", axis}})};
  };
  return def;
}

// --- cross entropy

bool is_class_number(DType dtype) { return dtype == DType::kI32 || dtype == DType::kI64; }

// The shape of the examples: that of the logits without the last axis.
Shape infer_examples(const InferContext& c, const TensorSpec& logits, const TensorSpec& labels) {
  internal::require_floating(c);
  const std::size_t rank = logits.shape.rank();
  if (rank == 0) NodeView::fail(str("takes logits [..., classes], got ", logits));
  if (logits.shape[rank - 1] == 0) NodeView::fail(str("takes at least one class, got ", logits));
  Shape examples = logits.shape.without_dim(rank - 1);
  const bool numbers = is_class_number(labels.dtype);
  const Shape& wanted = numbers ? examples : logits.shape;
  if ((!numbers && labels.dtype != logits.dtype) || !labels.shape.may_equal(wanted)) {
    NodeView::fail(str("takes labels i32", examples, " or i64", examples, " (class numbers) or ", logits,
                       " (weights of the classes) beside logits ", logits, ", got ", labels));
  }
  if (examples.is_known()) return examples;
  const Shape of_labels = numbers ? labels.shape : labels.shape.without_dim(rank - 1);
  return broadcast_shapes(examples, of_labels);  // an extent that either one knows is known
}

Items rows_of(const TensorSpec& logits) {
  return items_along(logits.shape, static_cast<std::int64_t>(logits.shape.rank()) - 1);
}

OpDef cross_entropy_op() {
  OpDef def;
  def.name = "softmax_cross_entropy";
  def.traits.refuses_integers = true;
  def.summary = "-sum(labels * log_softmax(logits)) along the last axis, and softmax(logits)";
  def.inputs = Arity::exactly(2);
  def.infer = [](InferContext& c) {
    c.add_output(c.input(0).dtype, infer_examples(c, c.input(0), c.input(1)));
    c.add_output(c.input(0));
  };
  def.cost = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    return internal::cost_by_elements(node, outputs, 20);
  };
  def.split = [](const NodeView& node, std::span<const TensorSpec>) {
    return split_items(rows_of(node.input(0)), kSoftmaxGrain);
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
    return [dtype = node.input(0).dtype, labels = node.input(1).dtype,
            items = rows_of(node.input(0))](KernelContext& c) {
      const auto [begin, end] = c.range(items.count);
      kernels::softmax_cross_entropy(dtype, c.input(0), labels, c.input(1), items.n, c.output(0), c.output(1),
                                     begin, end);
    };
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    const Value labels = c.input(1);
    Value back;
    if (c.has_grad(0)) {
      back = c.builder().op1("softmax_cross_entropy_grad", {c.output(1), labels, c.grad(0)});
    }
    if (c.has_grad(1)) {
      const Value more =
          c.builder().op1("softmax_grad", {c.output(1), c.grad(1)}, {{"axis", std::int64_t{-1}}});
      back = back.valid() ? back + more : more;
    }
    if (is_class_number(labels.dtype()) || !c.has_grad(0)) return {back, Gradient()};
    const std::int64_t last[] = {-1};
    const Value each = with_kept_dims(c.grad(0), c.input(0), last);
    const Value logs = log_softmax(c.input(0));
    return {back, neg(each * logs)};
  };
  return def;
}

OpDef cross_entropy_grad_op() {
  OpDef def;
  def.name = "softmax_cross_entropy_grad";
  def.summary = "what flows back from losses into logits: (softmax * sum(labels) - labels) * g";
  def.inputs = Arity::exactly(3);
  def.traits.in_place = true;
  def.infer = [](InferContext& c) {
    const Shape examples = infer_examples(c, c.input(0), c.input(1));
    if (c.input(2).dtype != c.input(0).dtype || !c.input(2).shape.may_equal(examples)) {
      NodeView::fail(
          str("takes one ", c.input(0).dtype, " for each example ", examples, ", got ", c.input(2)));
    }
    c.add_output(c.input(0));
  };
  def.cost = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    return internal::cost_by_elements(node, outputs, 2);
  };
  def.split = [](const NodeView& node, std::span<const TensorSpec>) {
    return split_items(rows_of(node.input(0)), kCheapGrain);
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
    return [dtype = node.input(0).dtype, labels = node.input(1).dtype,
            items = rows_of(node.input(0))](KernelContext& c) {
      const auto [begin, end] = c.range(items.count);
      kernels::softmax_cross_entropy_grad(dtype, c.input(0), labels, c.input(1), c.input(2), items.n,
                                          c.output(0), begin, end);
    };
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    const Value p = c.input(0), labels = c.input(1), g = c.input(2), h = c.grad();
    const std::int64_t last[] = {-1};
    const Value ones = ones_like(g);
    const Value unit = c.builder().op1("softmax_cross_entropy_grad", {p, labels, ones});
    const Value to_g = sum(h * unit, {-1});
    const Value scaled = h * with_kept_dims(g, p, last);
    if (is_class_number(labels.dtype())) return {scaled, Gradient(), to_g};
    const Value weight = sum(labels, {-1}, true);
    const Value to_p = scaled * weight;
    const Value total = sum(scaled * p, {-1}, true);
    return {to_p, total - scaled, to_g};
  };
  return def;
}

Value along(const char* op, const Operand& x, std::int64_t axis) {
  const Value& value = x.value_for(op);
  return value.builder().op1(op, {value}, {{"axis", axis}}, {}, x.site());
}

}  // namespace

void internal::register_softmax_ops(OpRegistry& registry) {
  registry.add(softmax_op(false));
  registry.add(softmax_op(true));
  registry.add(softmax_grad_op());
  registry.add(cross_entropy_op());
  registry.add(cross_entropy_grad_op());
}

Value softmax(const Operand& x, std::int64_t axis) { return along("softmax", x, axis); }
Value log_softmax(const Operand& x, std::int64_t axis) { return along("log_softmax", x, axis); }
Value softmax_cross_entropy(const Operand& logits, const Value& labels) {
  const Value& value = logits.value_for("softmax_cross_entropy");
  return value.builder().op1("softmax_cross_entropy", {value, labels}, {}, {}, logits.site());
}

}  // namespace lockstep
