// graph/ops/convolution.cpp - convolution and its two derivatives.
#include "lockstep/graph/ops/convolution.h"

#include "lockstep/core/kernels/conv.h"
#include "lockstep/graph/ops/gradient_rule.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/rules/internal/shape_rules.h"
#include "lockstep/graph/ops/rules/internal/windows.h"
#include "lockstep/graph/ops/shapes.h"

namespace lockstep {

namespace {

// The convolution that a node belongs to, from the shapes of its three tensors; extents not known yet stay
// unknown.
kernels::ConvShape conv_shape(const NodeView& node, const Shape& x, const Shape& w) {
  if (x.rank() != 4) NodeView::fail(str("takes images [n, rows, columns, channels], got ", x));
  if (w.rank() != 4)
    NodeView::fail(str("takes a filter [rows, columns, in channels, out channels], got ", w));
  const std::int64_t groups = node.get_or<std::int64_t>("groups", 1);
  if (groups < 1) NodeView::fail(str("groups must be 1 or more, got ", groups));
  const std::int64_t channels =
      w[2] == kUnknown ? kUnknown : checked_mul(w[2], groups, "the channels of all groups");
  if (x[3] != kUnknown && channels != kUnknown && x[3] != channels) {
    NodeView::fail(str("images of shape ", x, " have ", counted(x[3], "channel"), "; a filter of shape ", w,
                       " in ", counted(groups, "group"), " takes ", channels));
  }
  if (w[3] != kUnknown && w[3] % groups != 0) {
    NodeView::fail(str(counted(w[3], "output channel"), " cannot be cut into ", groups, " groups"));
  }
  kernels::ConvShape shape;
  const Extents2d dilations = internal::extents_of(node, "dilations", {1, 1});
  const auto axes = internal::windows_of(node, {x[1], x[2]}, {w[0], w[1]}, dilations);
  shape.images = x[0];
  shape.rows = axes[0];
  shape.columns = axes[1];
  shape.in_channels = x[3] == kUnknown ? channels : x[3];
  shape.out_channels = w[3];
  shape.groups = groups;
  return shape;
}

Shape output_shape(const kernels::ConvShape& shape) {
  return Shape{shape.images, shape.rows.out, shape.columns.out, shape.out_channels};
}

void check_flow(const Shape& flow, const kernels::ConvShape& conv) {
  const Shape expected = output_shape(conv);
  if (!flow.may_equal(expected))
    NodeView::fail(str("what flows back has shape ", flow, "; the convolution gives ", expected));
}

void check_dtype(const DType dtype) {
  if (!is_floating(dtype)) NodeView::fail(str("takes floating tensors, got ", dtype));
}

std::vector<AttributeSpec> conv_attributes() {
  std::vector<AttributeSpec> attributes = internal::window_attributes();
  attributes.push_back({"dilations", AttributeType::kInts, false});
  attributes.push_back({"groups", AttributeType::kInt, false});
  return attributes;
}

std::vector<Attribute> conv_values(const Conv2dOptions& options) {
  std::vector<Attribute> attributes = internal::window_values(options.strides, options.padding);
  if (options.dilations != Extents2d{1, 1}) {
    attributes.push_back(
        {"dilations", std::vector<std::int64_t>(options.dilations.begin(), options.dilations.end())});
  }
  if (options.groups != 1) attributes.push_back({"groups", options.groups});
  return attributes;
}

Conv2dOptions options_of(const NodeView& node) {
  return {internal::extents_of(node, "strides", {1, 1}), internal::padding_of(node),
          internal::extents_of(node, "dilations", {1, 1}), node.get_or<std::int64_t>("groups", 1)};
}

Cost cost_of(const kernels::ConvShape& shape, const NodeView& node, std::span<const TensorSpec> outputs) {
  const double bytes = static_cast<double>(num_bytes(node.input(0)) + num_bytes(node.input(1))) +
                       static_cast<double>(num_bytes(outputs[0]));
  const double multiply_adds = shape.multiplications();
  return {2 * multiply_adds, bytes, 1e-6 + shape.seconds(outputs[0].dtype), multiply_adds};
}

// Common to all three ops: split, cost and kernel, from the function that computes the op and the shapes of
// its convolution.
template <class Compute>
void compute_with(OpDef& def, kernels::ConvShape (*shape_of_node)(const NodeView&, const TensorSpec&)) {
  def.cost = [=](const NodeView& node, std::span<const TensorSpec> outputs) {
    return cost_of(shape_of_node(node, outputs[0]), node, outputs);
  };
  def.split = [=](const NodeView& node, std::span<const TensorSpec> outputs) {
    const Compute compute(outputs[0].dtype, shape_of_node(node, outputs[0]));
    return Split{compute.shards(), compute.scratch_bytes(), compute.needs_finish()};
  };
  def.kernels["cpu"] = [=](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return [compute = Compute(outputs[0].dtype, shape_of_node(node, outputs[0]))](KernelContext& c) {
      if (c.is_finish()) {
        compute.finish(c.output(0), c.scratch());
      } else {
        compute.compute(c.shard(), c.input(0), c.input(1), c.output(0), c.scratch());
      }
    };
  };
}

OpDef conv2d_op() {
  OpDef def;
  def.name = "conv2d";
  def.summary = "images [n,h,w,c] seen through a filter [kh,kw,c/groups,out] at every place";
  def.inputs = Arity::exactly(2);
  def.attributes = conv_attributes();
  def.infer = [](InferContext& c) {
    check_dtype(c.same_dtype());
    c.add_output(c.input(0).dtype, output_shape(conv_shape(c, c.input(0).shape, c.input(1).shape)));
  };
  compute_with<kernels::ConvForward>(def, [](const NodeView& node, const TensorSpec&) {
    return conv_shape(node, node.input(0).shape, node.input(1).shape);
  });
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    const Conv2dOptions options = options_of(c.view());
    const Value g = c.grad(), &x = c.input(0), &w = c.input(1);
    const Value dx = conv2d_backward_input(g, w, shape_of(x), options);
    const Value dw = conv2d_backward_filter(x, g, shape_of(w), options);
    return {dx, dw};
  };
  return def;
}

// A derivative of conv2d: its third input gives the shape of its output, that of the images or of the filter.
// `shape_of_node` gives the convolution; input `flow` is what flows back into the convolution's result.
template <class Compute>
OpDef backward_op(std::string name, std::string summary, std::size_t flow,
                  kernels::ConvShape (*shape_of_node)(const NodeView&, const TensorSpec&)) {
  OpDef def;
  def.name = std::move(name);
  def.summary = std::move(summary);
  def.inputs = Arity::exactly(3);
  def.attributes = conv_attributes();
  def.shape_operands = {2};
  def.infer = [=](InferContext& c) {
    check_dtype(c.input(0).dtype);
    if (c.input(1).dtype != c.input(0).dtype)
      NodeView::fail(str("inputs must have one dtype, got ", c.input(0), " and ", c.input(1)));
    const TensorSpec output{c.input(0).dtype, internal::target_shape_of(c, 2)};
    check_flow(c.input(flow).shape, shape_of_node(c, output));
    c.add_output(output);
  };
  compute_with<Compute>(def, shape_of_node);
  return def;
}

OpDef backward_input_op() {
  OpDef def = backward_op<kernels::ConvBackwardInput>(
      "conv2d_backward_input", "the gradient of conv2d with respect to its images, of the given shape", 0,
      [](const NodeView& node, const TensorSpec& output) {
        return conv_shape(node, output.shape, node.input(1).shape);
      });
  // Linear in the flow and in the filter.
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    const Conv2dOptions options = options_of(c.view());
    const Value u = c.grad(), &g = c.input(0), &w = c.input(1);
    const Value dg = conv2d(u, w, options);
    const Value dw = conv2d_backward_filter(u, g, shape_of(w), options);
    return {dg, dw, Gradient()};
  };
  return def;
}

OpDef backward_filter_op() {
  OpDef def = backward_op<kernels::ConvBackwardFilter>(
      "conv2d_backward_filter", "the gradient of conv2d with respect to its filter, of the given shape", 1,
      [](const NodeView& node, const TensorSpec& output) {
        return conv_shape(node, node.input(0).shape, output.shape);
      });
  // Linear in the images and in the flow.
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    const Conv2dOptions options = options_of(c.view());
    const Value u = c.grad(), &x = c.input(0), &g = c.input(1);
    const Value dx = conv2d_backward_input(g, u, shape_of(x), options);
    const Value dg = conv2d(x, u, options);
    return {dx, dg, Gradient()};
  };
  return def;
}

}  // namespace

void internal::register_convolution_ops(OpRegistry& registry) {
  registry.add(conv2d_op());
  registry.add(backward_input_op());
  registry.add(backward_filter_op());
  register_pooling_ops(registry);
}

Value conv2d(const Operand& x, const Operand& w, const Conv2dOptions& options) {
  const Value& images = x.value_for("conv2d");
  return images.builder().op1("conv2d", {images, w.value_for("conv2d")}, conv_values(options), {}, x.site());
}

Value conv2d_backward_input(const Value& g, const Value& w, const Value& x_shape,
                            const Conv2dOptions& options, SourceSite site) {
  return g.builder().op1("conv2d_backward_input", {g, w, x_shape}, conv_values(options), {}, site);
}

Value conv2d_backward_filter(const Value& x, const Value& g, const Value& w_shape,
                             const Conv2dOptions& options, SourceSite site) {
  return x.builder().op1("conv2d_backward_filter", {x, g, w_shape}, conv_values(options), {}, site);
}

}  // namespace lockstep
