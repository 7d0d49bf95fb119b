// graph/ops/slicing.cpp - ops that cut a piece out of a tensor, or put it into a larger one.
#include <algorithm>
#include <cstring>

#include "lockstep/core/kernels/place.h"
#include "lockstep/core/kernels/strided.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/gradient_rule.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/rules/internal/axes.h"
#include "lockstep/graph/ops/rules/internal/shape_rules.h"
#include "lockstep/graph/ops/shapes.h"

namespace lockstep {

namespace {

using Ints = std::vector<std::int64_t>;

// The elements read along one axis: `count` of them from `first` on. kUnknown if not known yet.
struct Cut {
  std::int64_t first = 0, step = 1, count = 0;
};

// Of an axis of known extent, as NumPy reads begin:end:step.
Cut cut(std::int64_t extent, std::int64_t begin, std::int64_t end, std::int64_t step) {
  const bool forward = step > 0;
  const std::int64_t low = forward ? 0 : -1, high = forward ? extent : extent - 1;
  const auto place = [&](std::int64_t index) {
    return std::clamp(index < 0 ? index + extent : index, low, high);
  };
  const std::int64_t first = begin == kOpen ? (forward ? low : high) : place(begin);
  const std::int64_t last = end == kOpen ? (forward ? high : low) : place(end);
  const std::int64_t span = forward ? last - first : first - last;
  const std::int64_t stride = forward ? step : -step;
  const std::int64_t count = span <= 0 ? 0 : (span - 1) / stride + 1;
  // Without a second element the step does not matter, and 1 keeps offsets in memory, which are multiples of
  // it, small.
  return {first, count > 1 ? step : 1, count};
}

const Ints& ints(const NodeView& node, std::string_view attribute) { return node.get<Ints>(attribute); }

// Without the attribute, each step is 1.
Ints steps_of(const NodeView& node) {
  const Ints* steps = node.find<Ints>("steps");
  return steps != nullptr ? *steps : Ints(ints(node, "begin").size(), 1);
}

void check_steps(const NodeView& node, std::size_t rank) {
  const Ints& begin = ints(node, "begin");
  const Ints& end = ints(node, "end");
  const Ints steps = steps_of(node);
  if (begin.size() != end.size() || begin.size() != steps.size() || begin.size() > rank) {
    NodeView::fail(str("begin, end and steps need one number per axis, for at most ",
                       counted(rank, "axis", "axes"), ", got ", begin.size(), ", ", end.size(), " and ",
                       steps.size()));
  }
  for (const std::int64_t step : steps) {
    // INT64_MIN has no positive counterpart: negating it would overflow.
    if (step == 0 || step == std::numeric_limits<std::int64_t>::min())
      NodeView::fail(str("a step is ", step, "; it must be above or below 0"));
  }
}

// The cuts of a tensor of this shape that the attributes name.
std::vector<Cut> attribute_cuts(const NodeView& node, const Shape& shape) {
  check_steps(node, shape.rank());
  const Ints& begin = ints(node, "begin");
  const Ints steps = steps_of(node);
  std::vector<Cut> cuts;
  for (std::size_t i = 0; i < shape.rank(); ++i) {
    if (i >= begin.size()) {
      cuts.push_back({0, 1, shape[i]});
    } else if (shape[i] == kUnknown) {
      cuts.push_back({kUnknown, steps[i], kUnknown});
    } else {
      cuts.push_back(cut(shape[i], begin[i], ints(node, "end")[i], steps[i]));
    }
  }
  return cuts;
}

// The cuts that begins and sizes name, as far as they are known.
std::vector<Cut> operand_cuts(const Shape& shape, const Ints& begins, const Ints& sizes) {
  if (begins.size() != shape.rank() || sizes.size() != shape.rank()) {
    NodeView::fail(str("needs a begin and a size for each axis of ", shape, ", got ", begins.size(), " and ",
                       sizes.size()));
  }
  std::vector<Cut> cuts;
  for (std::size_t i = 0; i < shape.rank(); ++i) {
    const std::int64_t begin = begins[i], size = sizes[i], extent = shape[i];
    const bool begin_known = begin != kUnknownElement, size_known = size != kUnknownElement && size != -1;
    if ((begin_known && begin < 0) || (size != kUnknownElement && size < -1)) {
      NodeView::fail(str("axis ", i, ": begin ", begin, " and size ", size, " must not be negative"));
    }
    Cut one{begin_known ? begin : kUnknown, 1, size_known ? size : kUnknown};
    const bool leaves = extent != kUnknown && ((begin_known && begin > extent) ||
                                               (size_known && size > extent - (begin_known ? begin : 0)));
    if (leaves) {
      NodeView::fail(
          str("axis ", i, ": a piece of size ", size, " at ", begin, " leaves an axis of extent ", extent));
    }
    if (begin_known && size == -1 && extent != kUnknown) one.count = extent - begin;
    cuts.push_back(one);
  }
  return cuts;
}

Shape counts_of(const std::vector<Cut>& cuts) {
  Ints dims;
  for (const Cut& one : cuts) dims.push_back(one.count);
  return Shape(std::span<const std::int64_t>(dims));
}

std::vector<AttributeSpec> slice_attributes() {
  return {{"begin", AttributeType::kInts, false},
          {"end", AttributeType::kInts, false},
          {"steps", AttributeType::kInts, false}};
}

void check_form(const NodeView& node, bool attributes) {
  for (const char* name : {"begin", "end", "steps"}) {
    const bool optional = attributes && std::string_view(name) == "steps";
    if (optional || (node.find<Ints>(name) != nullptr) == attributes) continue;
    NodeView::fail(attributes ? str("the attribute '", name, "' is missing")
                              : str("takes the attribute '", name, "' or begins as an input, not both"));
  }
}

// --- slice

std::vector<Cut> cuts_of_slice(const NodeView& node) {
  const Shape& shape = node.input(0).shape;
  if (node.num_inputs() == 2) NodeView::fail("takes 1 input, or 3: a value, begins and sizes");
  check_form(node, node.num_inputs() == 1);
  if (node.num_inputs() == 1) return attribute_cuts(node, shape);
  return operand_cuts(shape, internal::elements_of(node, 1, "the begins"),
                      internal::elements_of(node, 2, "the sizes"));
}

OpDef slice_op() {
  OpDef def;
  def.name = "slice";
  def.summary =
      "begin:end:step of its input along each axis, as NumPy reads it; or the piece of a size at a begin";
  def.inputs = Arity::between(1, 3);
  def.attributes = slice_attributes();
  def.shape_operands = {1, 2};
  def.traits.moves_elements = true;
  def.traits.shape_math = true;
  def.traits.infallible = true;
  def.infer = [](InferContext& c) { c.add_output(c.input(0).dtype, counts_of(cuts_of_slice(c))); };
  def.split = internal::copy_split;
  def.cost = [](const NodeView&, std::span<const TensorSpec> outputs) {
    return Cost{0, 2 * static_cast<double>(num_bytes(outputs[0])), 0};
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    std::vector<Gradient> result(c.num_inputs());
    const Value shape = shape_of(c.input());
    result[0] = c.num_inputs() == 1 ? unslice(c.grad(), shape, ints(c.view(), "begin"), ints(c.view(), "end"),
                                              steps_of(c.view()))
                                    : unslice(c.grad(), shape, c.input(1));
    return result;
  };
  def.moves = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    const Ints dense = kernels::dense_strides(node.input(0).shape);
    const std::vector<Cut> cuts = cuts_of_slice(node);
    Ints strides;
    std::int64_t start = 0;
    for (std::size_t i = 0; i < cuts.size(); ++i) {
      start += cuts[i].first * dense[i];
      strides.push_back(cuts[i].step * dense[i]);
    }
    return internal::dense_box(outputs[0], strides, start);
  };
  def.kernels["cpu"] = internal::kernel_of_box(def.moves);
  return def;
}

// --- putting a piece into a larger tensor

ElementMoves moves_of_place(const TensorSpec& in, const TensorSpec& out, const std::vector<Cut>& cuts,
                            double value) {
  const Ints dense = kernels::dense_strides(out.shape);
  ElementBox box;
  box.extents.assign(in.shape.dims().begin(), in.shape.dims().end());
  box.in_strides = kernels::dense_strides(in.shape);
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    box.out_start += cuts[i].first * dense[i];
    box.out_strides.push_back(cuts[i].step * dense[i]);
  }
  return {{std::move(box)}, value};
}

KernelFn place_kernel(const TensorSpec& in, const TensorSpec& out, const std::vector<Cut>& cuts,
                      double value) {
  Ints offsets, steps;
  for (const Cut& one : cuts) {
    offsets.push_back(one.first);
    steps.push_back(one.step);
  }
  const Tensor fill = Tensor::full(out.dtype, Shape{}, value);
  return [place = kernels::Place(size_of(out.dtype), in.shape, out.shape, offsets, steps, fill.raw()),
          n = out.shape.num_elements()](KernelContext& c) {
    const auto [begin, end] = c.range(n);
    place.run(c.input(0), c.output(0), begin, end);
  };
}

// The inputs are x, shape; or x, shape, begins.
std::vector<Cut> cuts_of_unslice(const NodeView& node, const Shape& shape) {
  check_form(node, node.num_inputs() == 2);
  if (node.num_inputs() == 2) return attribute_cuts(node, shape);
  const Shape& piece = node.input(0).shape;
  Ints sizes;
  for (const std::int64_t dim : piece.dims()) sizes.push_back(dim == kUnknown ? kUnknownElement : dim);
  return operand_cuts(shape, internal::elements_of(node, 2, "the begins"), sizes);
}

OpDef unslice_op() {
  OpDef def;
  def.name = "unslice";
  def.summary = "zeros of the given shape, with its input where slice with the same arguments would read";
  def.inputs = Arity::between(2, 3);
  def.attributes = slice_attributes();
  def.shape_operands = {1, 2};
  def.traits.infallible = true;
  def.infer = [](InferContext& c) {
    const Shape shape = internal::target_shape_of(c, 1);
    const Shape piece = counts_of(cuts_of_unslice(c, shape));
    bool fits = piece.rank() == c.input(0).shape.rank();
    for (std::size_t i = 0; fits && i < piece.rank(); ++i) {
      const std::int64_t have = c.input(0).shape[i];
      fits = have == piece[i] || have == kUnknown || piece[i] == kUnknown;
    }
    if (!fits) {
      NodeView::fail(str("a slice of a value of shape ", shape, " is ", piece, ", not ", c.input(0).shape));
    }
    c.add_output(c.input(0).dtype, shape);
  };
  def.split = internal::copy_split;
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    std::vector<Gradient> result(c.num_inputs());
    if (c.num_inputs() == 2) {
      result[0] = slice(c.grad(), ints(c.view(), "begin"), ints(c.view(), "end"), steps_of(c.view()));
    } else {
      result[0] = slice(c.grad(), c.input(2), shape_of(c.input()));
    }
    return result;
  };
  def.moves = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    return moves_of_place(node.input(0), outputs[0], cuts_of_unslice(node, outputs[0].shape), 0);
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return place_kernel(node.input(0), outputs[0], cuts_of_unslice(node, outputs[0].shape), 0);
  };
  return def;
}

// --- a piece at a place that the step computes

// The rows of a tensor along an axis: the piece is `count` long there, the tensor `extent`.
struct Rows {
  std::int64_t extent = 0, count = 0, inner = 1;  // inner: elements per index of the axis
  std::size_t size = 0;                           // of an element
};

std::size_t axis_of_piece(const NodeView& node) {
  return static_cast<std::size_t>(
      internal::normal_axis(node.get_or<std::int64_t>("axis", 0), node.input(0).shape.rank()));
}

Rows rows_of(const NodeView& node, const TensorSpec& whole, const TensorSpec& piece) {
  const std::size_t axis = axis_of_piece(node);
  Rows rows{whole.shape[axis], piece.shape[axis], 1, size_of(whole.dtype)};
  for (std::size_t d = axis + 1; d < whole.shape.rank(); ++d) rows.inner *= whole.shape[d];
  return rows;
}

std::int64_t begin_of(const Rows& rows, const void* input) {
  std::int64_t begin = 0;
  std::memcpy(&begin, input, sizeof begin);
  if (begin >= 0 && begin <= rows.extent - rows.count) return begin;
  throw RefusedData(
      str("a piece of size ", rows.count, " at ", begin, " leaves an axis of extent ", rows.extent), 0);
}

void check_begin(const NodeView& node) {
  if (node.input(1) != TensorSpec{DType::kI64, Shape{}})
    NodeView::fail(str("the place must be i64[], got ", node.input(1)));
}

// The attribute `size`, or the extent along the axis that the third input gives.
std::int64_t size_of_piece(const NodeView& node, std::size_t axis) {
  const auto* given = node.find<std::int64_t>("size");
  if ((given != nullptr) == (node.num_inputs() == 3))
    NodeView::fail("takes the attribute 'size', or the shape of the piece as an input: one of both");
  if (given != nullptr) return *given;
  const Ints shape = internal::elements_of(node, 2, "the shape");
  if (shape.size() != node.input(0).shape.rank())
    NodeView::fail(str("the shape of the piece has ", counted(shape.size(), "axis", "axes"), ", the value ",
                       node.input(0).shape.rank()));
  return shape[axis] == kUnknownElement ? kUnknown : shape[axis];
}

OpDef slice_at_op() {
  OpDef def;
  def.name = "slice_at";
  def.summary = "the piece of a size along `axis` that begins at a place which the step computes";
  def.inputs = Arity::between(2, 3);
  def.attributes = {{"axis", AttributeType::kInt, false}, {"size", AttributeType::kInt, false}};
  def.shape_operands = {2};
  def.traits.moves_elements = true;
  def.traits.refuses_integers = true;
  def.infer = [](InferContext& c) {
    check_begin(c);
    const std::size_t axis = axis_of_piece(c);
    Ints dims(c.input(0).shape.dims().begin(), c.input(0).shape.dims().end());
    const std::int64_t size = size_of_piece(c, axis);
    if (size != kUnknown && (size < 0 || (dims[axis] != kUnknown && size > dims[axis])))
      NodeView::fail(str("a piece of size ", size, " does not fit into axis ", axis, " of ", c.input(0)));
    dims[axis] = size;
    c.add_output(c.input(0).dtype, Shape(dims));
  };
  def.split = internal::copy_split;
  def.cost = [](const NodeView&, std::span<const TensorSpec> outputs) {
    return Cost{0, 2 * static_cast<double>(num_bytes(outputs[0])), 0};
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    std::vector<Gradient> result(c.num_inputs());
    result[0] =
        unslice_at(c.grad(), c.input(1), shape_of(c.input()), c.view().get_or<std::int64_t>("axis", 0));
    return result;
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return [rows = rows_of(node, node.input(0), outputs[0]),
            n = outputs[0].shape.num_elements()](KernelContext& c) {
      const std::int64_t first = begin_of(rows, c.input(1)) * rows.inner;
      const std::int64_t row = rows.count * rows.inner, whole = rows.extent * rows.inner;
      const auto* in = static_cast<const char*>(c.input(0));
      auto* out = static_cast<char*>(c.output(0));
      const auto [begin, end] = c.range(n);
      for (std::int64_t i = begin; i < end;) {
        const std::int64_t within = i % row, count = std::min(row - within, end - i);
        std::memcpy(out + static_cast<std::size_t>(i) * rows.size,
                    in + static_cast<std::size_t>(i / row * whole + first + within) * rows.size,
                    static_cast<std::size_t>(count) * rows.size);
        i += count;
      }
    };
  };
  return def;
}

OpDef unslice_at_op() {
  OpDef def;
  def.name = "unslice_at";
  def.summary = "zeros of the given shape, with its input where slice_at at the same place would read";
  def.inputs = Arity::exactly(3);
  def.attributes = {{"axis", AttributeType::kInt, false}};
  def.shape_operands = {2};
  def.traits.refuses_integers = true;
  def.infer = [](InferContext& c) {
    check_begin(c);
    const std::size_t axis = axis_of_piece(c);
    const Shape shape = internal::target_shape_of(c, 2);
    const Shape& piece = c.input(0).shape;
    bool fits = piece.rank() == shape.rank();
    for (std::size_t i = 0; fits && i < piece.rank(); ++i) {
      fits = piece[i] == kUnknown || shape[i] == kUnknown ||
             (i == axis ? piece[i] <= shape[i] : piece[i] == shape[i]);
    }
    if (!fits) NodeView::fail(str("a piece of shape ", piece, " does not fit into ", shape));
    c.add_output(c.input(0).dtype, shape);
  };
  def.split = internal::copy_split;
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    std::vector<Gradient> result(c.num_inputs());
    result[0] = slice_at(c.grad(), c.input(1), shape_of(c.input()), c.view().get_or<std::int64_t>("axis", 0));
    return result;
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return [rows = rows_of(node, outputs[0], node.input(0)),
            n = outputs[0].shape.num_elements()](KernelContext& c) {
      const std::int64_t first = begin_of(rows, c.input(1)) * rows.inner;
      const std::int64_t row = rows.count * rows.inner, whole = rows.extent * rows.inner;
      const auto* in = static_cast<const char*>(c.input(0));
      auto* out = static_cast<char*>(c.output(0));
      const auto [begin, end] = c.range(n);
      for (std::int64_t i = begin; i < end;) {
        const std::int64_t within = i % whole;
        const bool inside = within >= first && within < first + row;
        const std::int64_t stop = within < first ? first : inside ? first + row : whole;
        const std::int64_t count = std::min(stop - within, end - i);
        char* const to = out + static_cast<std::size_t>(i) * rows.size;
        const std::size_t bytes = static_cast<std::size_t>(count) * rows.size;
        if (inside) {
          std::memcpy(to, in + static_cast<std::size_t>(i / whole * row + within - first) * rows.size, bytes);
        } else {
          std::memset(to, 0, bytes);
        }
        i += count;
      }
    };
  };
  return def;
}

// --- pad

OpDef pad_op() {
  OpDef def;
  def.name = "pad";
  def.summary = "its input with elements of one value in front of and behind it along each axis";
  def.inputs = Arity::exactly(1);
  def.attributes = {
      {"after", AttributeType::kInts}, {"before", AttributeType::kInts}, {"value", AttributeType::kFloat}};
  def.traits.infallible = true;
  def.traits.shape_math = true;
  def.infer = [](InferContext& c) {
    Shape shape = c.input(0).shape;
    const Ints& before = ints(c, "before");
    const Ints& after = ints(c, "after");
    if (before.size() != shape.rank() || after.size() != shape.rank()) {
      NodeView::fail(str("needs a number before and after for each axis of ", shape, ", got ", before.size(),
                         " and ", after.size()));
    }
    for (std::size_t i = 0; i < shape.rank(); ++i) {
      if (before[i] < 0 || after[i] < 0)
        NodeView::fail(str("axis ", i, ": cannot pad by ", before[i], " and ", after[i], "; slice() cuts"));
      if (shape[i] == kUnknown) continue;
      const std::int64_t around = checked_add(before[i], after[i], "the padding");
      shape = shape.with_dim(i, checked_add(shape[i], around, "a padded axis"));
    }
    internal::check_number(c.get<double>("value"), c.input(0).dtype);
    c.add_output(c.input(0).dtype, shape);
  };
  def.split = internal::copy_split;
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    const Ints& before = ints(c.view(), "before");
    const auto rank = static_cast<std::int64_t>(before.size());
    const Value begin =
        c.builder().constant(Tensor::from<std::int64_t>({rank}, std::span<const std::int64_t>(before)));
    const Value size = shape_of(c.input());
    return {slice(c.grad(), begin, size)};
  };
  const auto cuts_of = [](const NodeView& node) {
    std::vector<Cut> cuts;
    for (const std::int64_t before : ints(node, "before")) cuts.push_back({before, 1, 0});
    return cuts;
  };
  def.moves = [cuts_of](const NodeView& node, std::span<const TensorSpec> outputs) {
    return moves_of_place(node.input(0), outputs[0], cuts_of(node), node.get<double>("value"));
  };
  def.kernels["cpu"] = [cuts_of](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return place_kernel(node.input(0), outputs[0], cuts_of(node), node.get<double>("value"));
  };
  return def;
}

}  // namespace

void internal::register_slicing_ops(OpRegistry& registry) {
  registry.add(slice_op());
  registry.add(unslice_op());
  registry.add(slice_at_op());
  registry.add(unslice_at_op());
  registry.add(pad_op());
}

namespace {

std::vector<Attribute> range_attributes(Ints begin, Ints end, Ints steps) {
  if (steps.empty()) steps.assign(begin.size(), 1);
  std::vector<Attribute> attributes;
  attributes.push_back({"begin", std::move(begin)});
  attributes.push_back({"end", std::move(end)});
  attributes.push_back({"steps", std::move(steps)});
  return attributes;
}

}  // namespace

Value slice(const Operand& x, std::vector<std::int64_t> begin, std::vector<std::int64_t> end,
            std::vector<std::int64_t> steps) {
  const Value& value = x.value_for("slice");
  return value.builder().op1(
      "slice", {value}, range_attributes(std::move(begin), std::move(end), std::move(steps)), {}, x.site());
}

Value slice(const Operand& x, const Value& begin, const Value& size) {
  const Value& value = x.value_for("slice");
  return value.builder().op1("slice", {value, begin, size}, {}, {}, x.site());
}

Value unslice(const Operand& x, const Value& shape, std::vector<std::int64_t> begin,
              std::vector<std::int64_t> end, std::vector<std::int64_t> steps) {
  const Value& value = x.value_for("unslice");
  return value.builder().op1("unslice", {value, shape},
                             range_attributes(std::move(begin), std::move(end), std::move(steps)), {},
                             x.site());
}

Value unslice(const Operand& x, const Value& shape, const Value& begin) {
  const Value& value = x.value_for("unslice");
  return value.builder().op1("unslice", {value, shape, begin}, {}, {}, x.site());
}

namespace {

Value place_value(const Operand& begin, GraphBuilder& builder) {
  if (begin.number()) return builder.constant(Tensor::scalar(static_cast<std::int64_t>(*begin.number())));
  const Value& value = begin.value();
  return value.dtype() == DType::kI64 ? value : cast(value, DType::kI64);
}

std::vector<Attribute> axis_attribute(std::int64_t axis) {
  return axis == 0 ? std::vector<Attribute>() : std::vector<Attribute>{{"axis", axis}};
}

}  // namespace

Value slice_at(const Operand& x, const Operand& begin, std::int64_t size, std::int64_t axis) {
  const Value& value = x.value_for("slice_at");
  std::vector<Attribute> attributes = axis_attribute(axis);
  attributes.push_back({"size", size});
  return value.builder().op1("slice_at", {value, place_value(begin, value.builder())}, std::move(attributes),
                             {}, x.site());
}

Value slice_at(const Operand& x, const Operand& begin, const Value& shape, std::int64_t axis) {
  const Value& value = x.value_for("slice_at");
  return value.builder().op1("slice_at", {value, place_value(begin, value.builder()), shape},
                             axis_attribute(axis), {}, x.site());
}

Value unslice_at(const Operand& x, const Operand& begin, const Value& shape, std::int64_t axis) {
  const Value& value = x.value_for("unslice_at");
  return value.builder().op1("unslice_at", {value, place_value(begin, value.builder()), shape},
                             axis_attribute(axis), {}, x.site());
}

Value pad(const Operand& x, std::vector<std::int64_t> before, std::vector<std::int64_t> after, double value) {
  const Value& source = x.value_for("pad");
  std::vector<Attribute> attributes;
  attributes.push_back({"before", std::move(before)});
  attributes.push_back({"after", std::move(after)});
  attributes.push_back({"value", value});
  return source.builder().op1("pad", {source}, std::move(attributes), {}, x.site());
}

}  // namespace lockstep
