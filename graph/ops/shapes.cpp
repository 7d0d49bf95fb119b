// graph/ops/shapes.cpp - shapes as values, and ops that give elements another shape.
#include "lockstep/graph/ops/shapes.h"

#include <algorithm>
#include <cstring>

#include "lockstep/core/kernels/reduce.h"
#include "lockstep/core/kernels/strided.h"
#include "lockstep/graph/gradients.h"
#include "lockstep/graph/internal/builtin_ops.h"
#include "lockstep/graph/internal/shape_rules.h"

namespace lockstep {

namespace {

using internal::target_of;
using internal::target_shape_of;

constexpr std::int64_t kSmallConstant = 256;  // elements of zeros and ones that are stored in the graph

OpDef shape_of_op() {
  OpDef def;
  def.name = "shape_of";
  def.summary = "the dimensions of its input, whose contents are not looked at";
  def.inputs = Arity::exactly(1);
  def.traits.gives_shape = true;
  def.traits.infallible = true;
  def.infer = [](InferContext& c) {
    c.add_output(DType::kI64, Shape{static_cast<std::int64_t>(c.input(0).shape.rank())});
  };
  def.gradient = [](GradientContext&) -> std::vector<Gradient> { return {Gradient()}; };
  def.kernels[DeviceKind::kCpu] = [](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
    return [shape = node.input(0).shape](KernelContext& c) {
      std::ranges::copy(shape.dims(), static_cast<std::int64_t*>(c.output(0)));
    };
  };
  return def;
}

// --- reshape

// The wanted dimensions with -1 computed, as far as the input's shape says it.
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
  const Shape asked = describe();
  if (open == 1 && product == 0 && computed) {
    NodeView::fail(
        str("-1 in ", asked, " cannot be computed: the other dimensions have no elements; state it"));
  }
  if (!from.is_known() || open > 1) return asked;
  const std::int64_t elements = from.num_elements();
  const bool fits = open == 0 ? elements == product : product == 0 ? elements == 0 : elements % product == 0;
  if (!fits) {
    NodeView::fail(str("a value of shape ", from, " has ", elements, " elements, which do not fill ", asked));
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
  def.kernels[DeviceKind::kCpu] = [](const NodeView&, std::span<const TensorSpec> outputs) -> KernelFn {
    return [bytes = static_cast<std::size_t>(num_bytes(outputs[0]))](KernelContext& c) {
      if (bytes > 0) std::memcpy(c.output(0), c.input(0), bytes);
    };
  };
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
    // Where the target is not known yet, an extent above 1 says it.
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
  def.kernels[DeviceKind::kCpu] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    const Shape& from = node.input(0).shape;
    const Shape& to = outputs[0].shape;
    const std::vector<std::int64_t> dense = kernels::dense_strides(from);
    std::vector<std::int64_t> strides(to.rank(), 0);
    for (std::size_t axis = 0; axis < from.rank(); ++axis) {
      if (from[axis] != 1) strides[to.rank() - from.rank() + axis] = dense[axis];
    }
    return [copy = kernels::StridedCopy(size_of(outputs[0].dtype), to.dims(), strides,
                                        kernels::dense_strides(to))](KernelContext& c) {
      const auto [begin, end] = c.range(copy.units());
      copy.run(c.input(0), c.output(0), begin, end);
    };
  };
  return def;
}

// The axes of x that a sum to this shape sums over.
std::vector<std::int64_t> summed_axes(const Shape& from, const Shape& to) {
  std::vector<std::int64_t> axes;
  const std::size_t fresh = from.rank() - to.rank();
  for (std::size_t axis = 0; axis < from.rank(); ++axis) {
    if (axis < fresh || (to[axis - fresh] == 1 && from[axis] != 1))
      axes.push_back(static_cast<std::int64_t>(axis));
  }
  return axes;
}

kernels::Reduction summing(const NodeView& node, std::span<const TensorSpec> outputs) {
  const TensorSpec& from = node.input(0);
  return {kernels::ReduceOp::kSum, from.dtype, from.shape, summed_axes(from.shape, outputs[0].shape)};
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
  def.kernels[DeviceKind::kCpu] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
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

// --- concat

OpDef concat_op() {
  OpDef def;
  def.name = "concat";
  def.summary = "its inputs one behind the other along `axis`, along which alone their shapes may differ";
  def.inputs = Arity::at_least(1);
  def.attributes = {{"axis", AttributeType::kInt}};
  def.traits.infallible = true;
  def.infer = [](InferContext& c) {
    const DType dtype = c.same_dtype();
    Shape shape = c.input(0).shape;
    const auto axis =
        static_cast<std::size_t>(internal::normal_axis(c.get<std::int64_t>("axis"), shape.rank()));
    for (std::size_t i = 1; i < c.num_inputs(); ++i) {
      const Shape& next = c.input(i).shape;
      bool fits = next.rank() == shape.rank();
      for (std::size_t k = 0; fits && k < shape.rank(); ++k) {
        const std::int64_t have = shape[k], add = next[k];
        if (k == axis) {
          shape = shape.with_dim(
              k, have == kUnknown || add == kUnknown ? kUnknown : checked_add(have, add, "the joined axis"));
        } else if (have == kUnknown) {
          shape = shape.with_dim(k, add);
        } else {
          fits = add == have || add == kUnknown;
        }
      }
      if (!fits) {
        NodeView::fail(str("shapes may differ along axis ", axis, " alone, got ", c.input(0).shape, " and ",
                           c.input(i).shape));
      }
    }
    c.add_output(dtype, shape);
  };
  def.split = internal::copy_split;
  def.kernels[DeviceKind::kCpu] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    const auto axis = static_cast<std::size_t>(
        internal::normal_axis(node.get<std::int64_t>("axis"), outputs[0].shape.rank()));
    struct Piece {
      kernels::StridedCopy copy;
      std::int64_t offset;  // in the output, bytes
      std::int64_t before;  // units of the pieces in front
    };
    const std::vector<std::int64_t> strides = kernels::dense_strides(outputs[0].shape);
    const auto size = static_cast<std::int64_t>(size_of(outputs[0].dtype));
    std::vector<Piece> pieces;
    std::int64_t position = 0, units = 0;
    for (const TensorSpec& input : node.inputs()) {
      const std::vector<std::int64_t> own = kernels::dense_strides(input.shape);
      pieces.push_back(
          {kernels::StridedCopy(static_cast<std::size_t>(size), input.shape.dims(), own, strides),
           position * strides[axis] * size, units});
      position += input.shape[axis];
      units += pieces.back().copy.units();
    }
    return [pieces = std::move(pieces), units](KernelContext& c) {
      const auto [begin, end] = c.range(units);
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        const Piece& piece = pieces[i];
        const std::int64_t first = std::max<std::int64_t>(begin - piece.before, 0);
        const std::int64_t last = std::min(end - piece.before, piece.copy.units());
        if (first < last)
          piece.copy.run(c.input(i), static_cast<char*>(c.output(0)) + piece.offset, first, last);
      }
    };
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
  const TensorSpec spec = like.spec();
  const bool known = spec.shape.is_known();
  if (known && spec.shape.num_elements() <= kSmallConstant) {
    return builder.constant(Tensor::full(spec.dtype, spec.shape, number), op, x.site());
  }
  const Value scalar = builder.constant(Tensor::full(spec.dtype, Shape{}, number), "constant", x.site());
  if (known) return builder.op1("broadcast_to", {scalar}, {{"shape", spec.shape}}, op, x.site());
  const Value shape = builder.op1("shape_of", {like}, {}, {}, x.site());
  return builder.op1("broadcast_to", {scalar, shape}, {}, op, x.site());
}

}  // namespace

void register_shapes_ops(OpRegistry& registry) {
  registry.add(shape_of_op());
  registry.add(reshape_op());
  registry.add(broadcast_to_op());
  registry.add(sum_to_op());
  registry.add(concat_op());
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

Value concat(const std::vector<Value>& values, std::int64_t axis, SourceSite site) {
  if (values.empty()) {
    throw InvalidArgument("concat: takes at least 1 value, got none",
                          {{}, "concat", {}, site.file, site.line, -1});
  }
  return values[0].builder().op("concat", values, {{"axis", axis}}, {}, site)[0];
}

}  // namespace lockstep
