// graph/ops/pooling.cpp - maxima and averages over windows, and what their gradients need.
#include <algorithm>

#include "lockstep/core/kernels/pool.h"
#include "lockstep/graph/ops/convolution.h"
#include "lockstep/graph/ops/gradient_rule.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/rules/internal/shape_rules.h"
#include "lockstep/graph/ops/rules/internal/windows.h"
#include "lockstep/graph/ops/shapes.h"

namespace lockstep {

namespace {

constexpr double kElement = 0.5e-9;  // seconds for one element of a window
constexpr double kPoolShard = 50e-6;

kernels::PoolShape pool_shape(const NodeView& node, const Shape& x) {
  if (x.rank() != 4) NodeView::fail(str("takes images [n, rows, columns, channels], got ", x));
  const Extents2d window = internal::extents_of(node, "window", {1, 1});
  const auto axes = internal::windows_of(node, {x[1], x[2]}, window, {1, 1});
  return {x[0], axes[0], axes[1], x[3]};
}

Shape output_shape(const kernels::PoolShape& shape) {
  return Shape{shape.images, shape.rows.out, shape.columns.out, shape.channels};
}

void check_flow(const Shape& flow, const kernels::PoolShape& pool) {
  const Shape expected = output_shape(pool);
  if (!flow.may_equal(expected))
    NodeView::fail(str("what flows back has shape ", flow, "; the pooling gives ", expected));
}

void check_floating(const NodeView& node) {
  if (!is_floating(node.input(0).dtype)) NodeView::fail(str("takes floating images, got ", node.input(0)));
}

double seconds_of(const kernels::PoolShape& s) {
  return kElement *
         static_cast<double>(s.out_rows() * s.columns.out * s.channels * (s.rows.size * s.columns.size + 1));
}

using ShapeOfNode = kernels::PoolShape (*)(const NodeView&, const TensorSpec& output);
using Fill = void (*)(DType, const kernels::PoolShape&, const KernelContext&, std::int64_t, std::int64_t);

// An op over windows of images: attributes, cost, shards of output rows (or of images, `by_image`) and
// kernel.
OpDef pool_op(std::string name, std::string summary, std::size_t inputs, bool by_image,
              ShapeOfNode shape_of_node, Fill fill) {
  OpDef def;
  def.name = std::move(name);
  def.summary = std::move(summary);
  def.inputs = Arity::exactly(inputs);
  def.attributes = internal::window_attributes();
  def.attributes.push_back({"window", AttributeType::kInts});
  def.cost = [=](const NodeView& node, std::span<const TensorSpec> outputs) {
    const kernels::PoolShape shape = shape_of_node(node, outputs[0]);
    const double seconds = seconds_of(shape);
    Cost cost{seconds / kElement, static_cast<double>(num_bytes(outputs[0])), 100e-9 + seconds};
    for (const TensorSpec& input : node.inputs()) cost.bytes += static_cast<double>(num_bytes(input));
    return cost;
  };
  def.split = [=](const NodeView& node, std::span<const TensorSpec> outputs) {
    const kernels::PoolShape shape = shape_of_node(node, outputs[0]);
    const std::int64_t most = std::max<std::int64_t>(by_image ? shape.images : shape.out_rows(), 1);
    return Split{std::clamp<std::int64_t>(static_cast<std::int64_t>(seconds_of(shape) / kPoolShard), 1, most),
                 0, false};
  };
  def.kernels["cpu"] = [=](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    const kernels::PoolShape shape = shape_of_node(node, outputs[0]);
    return [=, dtype = outputs[0].dtype](KernelContext& c) {
      const auto [begin, end] = c.range(by_image ? shape.images : shape.out_rows());
      fill(dtype, shape, c, begin, end);
    };
  };
  return def;
}

kernels::PoolShape shape_by_input(const NodeView& node, const TensorSpec&) {
  return pool_shape(node, node.input(0).shape);
}
kernels::PoolShape shape_by_output(const NodeView& node, const TensorSpec& output) {
  return pool_shape(node, output.shape);
}

// A node with the same windows as another.
Value like(const NodeView& node, std::string_view op, std::initializer_list<Value> inputs) {
  return inputs.begin()->builder().op1(op, inputs, node.attributes());
}

OpDef max_pool_op() {
  OpDef def = pool_op(
      "max_pool", "the largest element of each window; NaN is larger than anything", 1, false, shape_by_input,
      [](DType dtype, const kernels::PoolShape& shape, const KernelContext& c, std::int64_t begin,
         std::int64_t end) { kernels::max_pool(dtype, shape, c.input(0), c.output(0), begin, end); });
  def.infer = [](InferContext& c) {
    c.require(c.input(0).dtype != DType::kBool, "has no meaning for bool");
    c.add_output(c.input(0).dtype, output_shape(pool_shape(c, c.input(0).shape)));
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    return {like(c.view(), "max_pool_backward", {c.input(), c.grad()})};
  };
  return def;
}

OpDef max_pool_backward_op() {
  OpDef def =
      pool_op("max_pool_backward",
              "the gradient of max_pool: each element of g at the first largest element of its window of x",
              2, true, shape_by_input,
              [](DType dtype, const kernels::PoolShape& shape, const KernelContext& c, std::int64_t begin,
                 std::int64_t end) {
                kernels::max_pool_backward(dtype, shape, c.input(0), c.input(1), c.output(0), begin, end);
              });
  def.infer = [](InferContext& c) {
    c.same_dtype();
    check_floating(c);
    check_flow(c.input(1).shape, pool_shape(c, c.input(0).shape));
    c.add_output(c.input(0));
  };
  // Nothing flows to x: a small change of x does not change which elements are largest.
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    return {Gradient(), like(c.view(), "max_pool_pick", {c.input(0), c.grad()})};
  };
  return def;
}

OpDef max_pool_pick_op() {
  OpDef def = pool_op("max_pool_pick", "the element of u at the first largest element of each window of x", 2,
                      false, shape_by_input,
                      [](DType dtype, const kernels::PoolShape& shape, const KernelContext& c,
                         std::int64_t begin, std::int64_t end) {
                        kernels::max_pool_pick(dtype, shape, c.input(0), c.input(1), c.output(0), begin, end);
                      });
  def.infer = [](InferContext& c) {
    c.same_dtype();
    check_floating(c);
    const Shape &x = c.input(0).shape, &u = c.input(1).shape;
    const kernels::PoolShape shape = pool_shape(c, x);
    if (!u.may_equal(x)) NodeView::fail(str("takes two tensors of one shape, got ", x, " and ", u));
    c.add_output(c.input(0).dtype, output_shape(shape));
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    return {Gradient(), like(c.view(), "max_pool_backward", {c.input(0), c.grad()})};
  };
  return def;
}

OpDef avg_pool_op() {
  OpDef def =
      pool_op("avg_pool", "the average of each window; padding does not count", 1, false, shape_by_input,
              [](DType dtype, const kernels::PoolShape& shape, const KernelContext& c, std::int64_t begin,
                 std::int64_t end) { kernels::avg_pool(dtype, shape, c.input(0), c.output(0), begin, end); });
  def.infer = [](InferContext& c) {
    check_floating(c);
    c.add_output(c.input(0).dtype, output_shape(pool_shape(c, c.input(0).shape)));
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    const Value shape = shape_of(c.input());
    return {like(c.view(), "avg_pool_backward", {c.grad(), shape})};
  };
  return def;
}

OpDef avg_pool_backward_op() {
  OpDef def = pool_op("avg_pool_backward",
                      "the gradient of avg_pool: each element of g spread evenly over its window", 2, true,
                      shape_by_output,
                      [](DType dtype, const kernels::PoolShape& shape, const KernelContext& c,
                         std::int64_t begin, std::int64_t end) {
                        kernels::avg_pool_backward(dtype, shape, c.input(0), c.output(0), begin, end);
                      });
  def.shape_operands = {1};
  def.infer = [](InferContext& c) {
    check_floating(c);
    const Shape x = internal::target_shape_of(c, 1);
    check_flow(c.input(0).shape, pool_shape(c, x));
    c.add_output(c.input(0).dtype, x);
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    return {like(c.view(), "avg_pool", {c.grad()}), Gradient()};
  };
  return def;
}

Value pool(std::string_view op, const Operand& x, Extents2d window, const PoolOptions& options) {
  const Value& images = x.value_for(op);
  std::vector<Attribute> attributes =
      internal::window_values(options.strides == Extents2d{} ? window : options.strides, options.padding);
  attributes.push_back({"window", std::vector<std::int64_t>(window.begin(), window.end())});
  return images.builder().op1(op, {images}, std::move(attributes), {}, x.site());
}

}  // namespace

void internal::register_pooling_ops(OpRegistry& registry) {
  registry.add(max_pool_op());
  registry.add(max_pool_backward_op());
  registry.add(max_pool_pick_op());
  registry.add(avg_pool_op());
  registry.add(avg_pool_backward_op());
}

Value max_pool(const Operand& x, Extents2d window, const PoolOptions& options) {
  return pool("max_pool", x, window, options);
}
Value avg_pool(const Operand& x, Extents2d window, const PoolOptions& options) {
  return pool("avg_pool", x, window, options);
}

}  // namespace lockstep
