// graph/ops/shapes.cpp - shapes as values, and ops that give elements another shape.
#include "lockstep/graph/ops/shapes.h"

#include <algorithm>
#include <cstring>

#include "lockstep/core/kernels/reduce.h"
#include "lockstep/core/kernels/strided.h"
#include "lockstep/graph/build/builder_access.h"
#include "lockstep/graph/ops/gradient_rule.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/rules/internal/axes.h"
#include "lockstep/graph/ops/rules/internal/shape_rules.h"
#include "lockstep/graph/ops/sources.h"

namespace lockstep {

namespace {

using internal::summed_axes;
using internal::target_of;
using internal::target_shape_of;

// For ops whose output is their input's memory: normally nothing runs, but a caller may insist on a kernel.
KernelFn copy_kernel(const NodeView&, std::span<const TensorSpec> outputs) {
  return [bytes = static_cast<std::size_t>(num_bytes(outputs[0]))](KernelContext& c) {
    if (bytes > 0) std::memcpy(c.output(0), c.input(0), bytes);
  };
}

OpDef shape_of_op() {
  OpDef def;
  def.name = "shape_of";
  def.summary = "the dimensions of its input, whose contents are not looked at";
  def.inputs = Arity::exactly(1);
  def.traits.gives_shape = true;
  def.traits.shape_math = true;
  def.traits.infallible = true;
  def.infer = [](InferContext& c) {
    c.add_output(DType::kI64, Shape{static_cast<std::int64_t>(c.input(0).shape.rank())});
  };
  def.gradient = [](GradientContext&) -> std::vector<Gradient> { return {Gradient()}; };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
    return [shape = node.input(0).shape](KernelContext& c) {
      std::ranges::copy(shape.dims(), static_cast<std::int64_t*>(c.output(0)));
    };
  };
  return def;
}

// --- reshape

// The wanted dimensions with -1 computed, as far as the input's shape determines it.
Shape reshaped(const Shape& from, std::vector<std::int64_t> wanted) {
  std::int64_t product = 1;
  std::size_t open = 0, at = 0;  // dimensions that are -1 or not known yet, and the last of them
  bool computed = false;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] == -1) {
      if (computed) NodeView::fail("more than one dimension of the new shape is -1");
      computed = true;
    } else if (wanted[i] < 0 && wanted[i] != kUnknownElement) {
      NodeView::fail(
          str("a dimension of the new shape is ", wanted[i], "; it must be -1 (computed), 0 or more"));
    }
    if (wanted[i] < 0) {
      ++open;
      at = i;
    } else {
      product = checked_mul(product, wanted[i], "the new shape");
    }
  }
  const auto describe = [&] {
    std::vector<std::int64_t> dims = wanted;
    for (std::int64_t& dim : dims) dim = dim < 0 ? kUnknown : dim;
    return Shape(std::span<const std::int64_t>(dims));
  };
  Shape asked = describe();
  if (open == 1 && product == 0 && computed) {
    NodeView::fail(
        str("-1 in ", asked, " cannot be computed: the other dimensions have no elements; state it"));
  }
  if (!from.is_known() || open > 1) return asked;
  const std::int64_t elements = from.num_elements();
  const bool fits = open == 0 ? elements == product : product == 0 ? elements == 0 : elements % product == 0;
  if (!fits) {
    NodeView::fail(str("a value of shape ", from, " has ", elements,
                       elements == 1 ? " element, which does" : " elements, which do", " not fill ", asked));
  }
  if (open == 1 && product > 0) wanted[at] = elements / product;
  return describe();
}

OpDef reshape_op() {
  OpDef def;
  def.name = "reshape";
  def.summary = "the same elements under another shape, of which one dimension may be -1 and is computed";
  def.inputs = Arity::between(1, 2);
  def.attributes = {{"shape", AttributeType::kShape, false}};
  def.shape_operands = {1};
  def.traits.alias = true;
  def.traits.moves_elements = true;
  def.traits.shape_math = true;
  def.traits.infallible = true;
  def.infer = [](InferContext& c) {
    c.add_output(c.input(0).dtype, reshaped(c.input(0).shape, target_of(c, 1)));
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    std::vector<Gradient> result(c.num_inputs());
    const Shape& shape = c.input().shape();
    result[0] = shape.is_known() ? reshape(c.grad(), shape) : reshape(c.grad(), shape_of(c.input()));
    return result;
  };
  def.kernels["cpu"] = copy_kernel;
  return def;
}

// --- broadcasting and back

// Does `small`, from the last axis on, broadcast to `large`? Unknown dimensions fit anything.
bool broadcasts(const Shape& small, const Shape& large) {
  if (small.rank() > large.rank()) return false;
  for (std::size_t back = 1; back <= small.rank(); ++back) {
    const std::int64_t have = small[small.rank() - back];
    const std::int64_t want = large[large.rank() - back];
    if (have != want && have != 1 && have != kUnknown && want != kUnknown) return false;
  }
  return true;
}

OpDef broadcast_to_op() {
  OpDef def;
  def.name = "broadcast_to";
  def.summary = "its input repeated along new axes and along those of extent 1, as NumPy broadcasts";
  def.traits.moves_elements = true;
  def.traits.shape_math = true;
  def.traits.keeps_zeros = true;
  def.inputs = Arity::between(1, 2);
  def.attributes = {{"shape", AttributeType::kShape, false}};
  def.shape_operands = {1};
  def.traits.alias_if_same = true;
  def.traits.infallible = true;
  def.infer = [](InferContext& c) {
    const Shape& from = c.input(0).shape;
    Shape to = target_shape_of(c, 1);
    if (!broadcasts(from, to)) {
      NodeView::fail(str("a value of shape ", from, " does not broadcast to ", to));
    }
    // A target extent that is not known yet follows from an input extent other than 1.
    for (std::size_t back = 1; back <= from.rank(); ++back) {
      const std::int64_t have = from[from.rank() - back];
      if (to[to.rank() - back] == kUnknown && have != 1) to = to.with_dim(to.rank() - back, have);
    }
    c.add_output(c.input(0).dtype, to);
  };
  def.split = internal::copy_split;
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    std::vector<Gradient> result(c.num_inputs());
    result[0] = sum_to_like(c.grad(), c.input());
    return result;
  };
  def.moves = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    const Shape& from = node.input(0).shape;
    const Shape& to = outputs[0].shape;
    const std::vector<std::int64_t> dense = kernels::dense_strides(from);
    std::vector<std::int64_t> strides(to.rank(), 0);
    for (std::size_t axis = 0; axis < from.rank(); ++axis) {
      if (from[axis] != 1) strides[to.rank() - from.rank() + axis] = dense[axis];
    }
    return internal::dense_box(outputs[0], strides, 0);
  };
  def.kernels["cpu"] = internal::kernel_of_box(def.moves);
  return def;
}

kernels::Reduction summing(const NodeView& node, std::span<const TensorSpec> outputs) {
  const TensorSpec& from = node.input(0);
  return {kernels::AxisReduce::kSum, from.dtype, from.shape, summed_axes(from.shape, outputs[0].shape)};
}

OpDef sum_to_op() {
  OpDef def;
  def.name = "sum_to";
  def.summary = "the sum of its input over what broadcasting a tensor of the given shape would repeat";
  def.inputs = Arity::between(1, 2);
  def.attributes = {{"shape", AttributeType::kShape, false}};
  def.shape_operands = {1};
  def.traits.alias_if_same = true;
  def.traits.infallible = true;
  def.infer = [](InferContext& c) {
    c.require(c.input(0).dtype != DType::kBool, "has no meaning for bool");
    const Shape to = target_shape_of(c, 1);
    if (!broadcasts(to, c.input(0).shape)) {
      NodeView::fail(str("a value of shape ", c.input(0).shape, " does not sum to ", to,
                         ": a tensor of that shape does not broadcast to it"));
    }
    c.add_output(c.input(0).dtype, to);
  };
  def.cost = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    return Cost{static_cast<double>(node.input(0).shape.num_elements()),
                static_cast<double>(num_bytes(node.input(0)) + num_bytes(outputs[0])), 0};
  };
  def.split = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    const kernels::Reduction reduction = summing(node, outputs);
    return Split{reduction.shards(), reduction.scratch_bytes(), reduction.has_finish()};
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    std::vector<Gradient> result(c.num_inputs());
    const Shape& shape = c.input().shape();
    result[0] =
        shape.is_known() ? broadcast_to(c.grad(), shape) : broadcast_to(c.grad(), shape_of(c.input()));
    return result;
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return [reduction = summing(node, outputs)](KernelContext& c) {
      if (c.is_finish()) {
        reduction.finish(c.scratch(), c.output(0));
      } else {
        reduction.run(c.input(0), c.output(0), c.scratch(), c.shard());
      }
    };
  };
  return def;
}

// --- axes of extent 1

// The axes of extent 1 that are added or removed, numbered in the shape that has them.
std::vector<std::int64_t> unit_axes(const NodeView& node, std::size_t rank) {
  return internal::normal_axes(node.get<std::vector<std::int64_t>>("axes"), rank);
}

OpDef alias_op(std::string name, std::string summary) {
  OpDef def;
  def.name = std::move(name);
  def.summary = std::move(summary);
  def.inputs = Arity::exactly(1);
  def.attributes = {{"axes", AttributeType::kInts}};
  def.traits.alias = true;
  def.traits.moves_elements = true;
  def.traits.shape_math = true;
  def.traits.infallible = true;
  def.kernels["cpu"] = copy_kernel;
  return def;
}

OpDef expand_dims_op() {
  OpDef def = alias_op("expand_dims", "its input with axes of extent 1 at `axes` of the output");
  def.infer = [](InferContext& c) {
    const Shape& from = c.input(0).shape;
    const std::size_t added = c.get<std::vector<std::int64_t>>("axes").size();
    Shape shape = from;
    for (const std::int64_t axis : unit_axes(c, from.rank() + added))
      shape = shape.with_inserted(static_cast<std::size_t>(axis), 1);
    c.add_output(c.input(0).dtype, shape);
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    return {squeeze(c.grad(), unit_axes(c.view(), c.output().shape().rank()))};
  };
  return def;
}

OpDef squeeze_op() {
  OpDef def = alias_op("squeeze", "its input without the axes `axes`, which have extent 1");
  def.infer = [](InferContext& c) {
    Shape shape = c.input(0).shape;
    const std::vector<std::int64_t> axes = unit_axes(c, shape.rank());
    for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
      const auto at = static_cast<std::size_t>(*axis);
      if (shape[at] != 1 && shape[at] != kUnknown) {
        NodeView::fail(str("axis ", at, " of ", c.input(0).shape, " has extent ", shape[at], ", not 1"));
      }
      shape = shape.without_dim(at);
    }
    c.add_output(c.input(0).dtype, shape);
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    return {expand_dims(c.grad(), unit_axes(c.view(), c.input().shape().rank()))};
  };
  return def;
}

// --- making nodes

Value with_shape(std::string_view op, const Operand& x, const Shape& shape) {
  const Value& value = x.value_for(op);
  return value.builder().op1(op, {value}, {{"shape", shape}}, {}, x.site());
}

Value with_shape(std::string_view op, const Operand& x, const Value& shape) {
  const Value& value = x.value_for(op);
  return value.builder().op1(op, {value, shape}, {}, {}, x.site());
}

Value filled_like(std::string_view op, const Operand& x, double number) {
  const Value& like = x.value_for(op);
  GraphBuilder& builder = like.builder();
  const TensorSpec& spec = like.spec();
  // If x differs between replicas, the result is each replica's own, even if their shapes turn out equal:
  // sum(ones_like(x)) counts rows, and the counts of all replicas add up.
  if (spec.shape.is_known() && !internal::BuilderAccess(builder).in_replicas())
    return full(builder, spec.dtype, spec.shape, number, x.site());
  const Value shape = builder.op1("shape_of", {like}, {}, {}, x.site());
  return full(builder, spec.dtype, shape, number, x.site());
}

}  // namespace

void internal::register_shapes_ops(OpRegistry& registry) {
  registry.add(shape_of_op());
  registry.add(reshape_op());
  registry.add(broadcast_to_op());
  registry.add(sum_to_op());
  registry.add(expand_dims_op());
  registry.add(squeeze_op());
  register_moving_ops(registry);
  register_slicing_ops(registry);
}

Value shape_of(const Operand& x) {
  const Value& value = x.value_for("shape_of");
  return value.builder().op1("shape_of", {value}, {}, {}, x.site());
}

Value reshape(const Operand& x, const Shape& shape) { return with_shape("reshape", x, shape); }
Value reshape(const Operand& x, const Value& shape) { return with_shape("reshape", x, shape); }
Value broadcast_to(const Operand& x, const Shape& shape) { return with_shape("broadcast_to", x, shape); }
Value broadcast_to(const Operand& x, const Value& shape) { return with_shape("broadcast_to", x, shape); }
Value sum_to(const Operand& x, const Shape& shape) { return with_shape("sum_to", x, shape); }
Value sum_to(const Operand& x, const Value& shape) { return with_shape("sum_to", x, shape); }
Value zeros_like(const Operand& x) { return filled_like("zeros_like", x, 0); }
Value ones_like(const Operand& x) { return filled_like("ones_like", x, 1); }

Value expand_dims(const Operand& x, std::vector<std::int64_t> axes) {
  const Value& value = x.value_for("expand_dims");
  return value.builder().op1("expand_dims", {value}, {{"axes", std::move(axes)}}, {}, x.site());
}

Value squeeze(const Operand& x, std::vector<std::int64_t> axes) {
  const Value& value = x.value_for("squeeze");
  if (axes.empty()) {
    const Shape& shape = value.shape();
    if (!shape.is_known()) {
      throw InvalidArgument(
          str("squeeze: which axes of ", shape, " have extent 1 is not known yet; name them"),
          {{}, "squeeze", {}, x.site().file, x.site().line, -1});
    }
    for (std::size_t i = 0; i < shape.rank(); ++i) {
      if (shape[i] == 1) axes.push_back(static_cast<std::int64_t>(i));
    }
  }
  return value.builder().op1("squeeze", {value}, {{"axes", std::move(axes)}}, {}, x.site());
}

}  // namespace lockstep
