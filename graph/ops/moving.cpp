// graph/ops/moving.cpp - ops that move whole tensors: permuted, reversed, repeated, joined, cut apart.
#include <algorithm>
#include <numeric>

#include "lockstep/core/kernels/strided.h"
#include "lockstep/graph/build/builder_access.h"
#include "lockstep/graph/ops/gradient_rule.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/ops/rules/internal/axes.h"
#include "lockstep/graph/ops/rules/internal/shape_rules.h"

namespace lockstep {

namespace {

using Ints = std::vector<std::int64_t>;

OpDef moving_op(std::string name, std::string summary, Arity inputs) {
  OpDef def;
  def.name = std::move(name);
  def.summary = std::move(summary);
  def.inputs = inputs;
  def.traits.moves_elements = true;
  def.traits.shape_math = true;
  def.traits.infallible = true;
  def.split = internal::copy_split;
  return def;
}

Ints dims_of(const Shape& shape) { return {shape.dims().begin(), shape.dims().end()}; }
Shape shape_from(const Ints& dims) { return Shape(std::span<const std::int64_t>(dims)); }

// --- transpose

Ints permutation(const NodeView& node) {
  const std::size_t rank = node.input(0).shape.rank();
  Ints perm = node.get<Ints>("perm");
  if (perm.empty()) {
    perm.resize(rank);
    std::iota(perm.rbegin(), perm.rend(), 0);
  }
  if (perm.size() != rank) {
    NodeView::fail(str("perm names ", counted(perm.size(), "axis", "axes"), " of a value of rank ", rank,
                       "; it must name each once"));
  }
  for (std::int64_t& axis : perm) axis = internal::normal_axis(axis, rank);
  internal::normal_axes(perm, rank);  // fails if an axis is there twice
  return perm;
}

OpDef transpose_op() {
  OpDef def = moving_op("transpose", "axis i is axis perm[i] of its input; empty: in reverse order",
                        Arity::exactly(1));
  def.attributes = {{"perm", AttributeType::kInts}};
  def.infer = [](InferContext& c) {
    Ints dims;
    for (const std::int64_t axis : permutation(c))
      dims.push_back(c.input(0).shape[static_cast<std::size_t>(axis)]);
    c.add_output(c.input(0).dtype, shape_from(dims));
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    const Ints perm = permutation(c.view());
    Ints inverse(perm.size());
    for (std::size_t i = 0; i < perm.size(); ++i)
      inverse[static_cast<std::size_t>(perm[i])] = static_cast<std::int64_t>(i);
    return {transpose(c.grad(), inverse)};
  };
  def.moves = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    const Ints dense = kernels::dense_strides(node.input(0).shape);
    Ints strides;
    for (const std::int64_t axis : permutation(node))
      strides.push_back(dense[static_cast<std::size_t>(axis)]);
    return internal::dense_box(outputs[0], strides, 0);
  };
  def.kernels["cpu"] = internal::kernel_of_box(def.moves);
  return def;
}

// --- flip

OpDef flip_op() {
  OpDef def = moving_op("flip", "its input backwards along `axes`; empty: along all", Arity::exactly(1));
  def.attributes = {{"axes", AttributeType::kInts}};
  def.infer = [](InferContext& c) {
    internal::normal_axes(c.get<Ints>("axes"), c.input(0).shape.rank());
    c.add_output(c.input(0));
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    return {flip(c.grad(), c.view().get<Ints>("axes"))};
  };
  def.moves = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    const Shape& shape = outputs[0].shape;
    const Ints dense = kernels::dense_strides(shape);
    const Ints axes = internal::normal_axes(node.get<Ints>("axes"), shape.rank());
    Ints strides = dense;
    std::int64_t start = 0;
    for (std::size_t i = 0; i < shape.rank(); ++i) {
      if (!axes.empty() && !std::ranges::binary_search(axes, static_cast<std::int64_t>(i))) continue;
      start += (shape[i] - 1) * dense[i];
      strides[i] = -dense[i];
    }
    return internal::dense_box(outputs[0], strides, start);
  };
  def.kernels["cpu"] = internal::kernel_of_box(def.moves);
  return def;
}

// --- tile

// How often the input is repeated along each axis; an element not known yet is kUnknownElement.
Ints repeats(const NodeView& node) {
  const std::size_t rank = node.input(0).shape.rank();
  const Ints* attribute = node.find<Ints>("reps");
  Ints reps;
  if (node.num_inputs() == 1) {
    if (attribute == nullptr)
      NodeView::fail("needs the attribute 'reps', or the repeats as its second input");
    reps = *attribute;
  } else {
    if (attribute != nullptr)
      NodeView::fail("takes the attribute 'reps' or the repeats as an input, not both");
    reps = internal::elements_of(node, 1, "the repeats");
  }
  if (reps.size() != rank) {
    NodeView::fail(
        str("needs a number of repeats for each axis of a value of rank ", rank, ", got ", reps.size()));
  }
  for (const std::int64_t rep : reps) {
    if (rep < 0 && rep != kUnknownElement)
      NodeView::fail(str("an axis is to be repeated ", rep, " times; it must be 0 or more"));
  }
  return reps;
}

std::vector<Gradient> tile_gradient(GradientContext& c) {
  // Reshaped to [r0, d0, r1, d1, ...] and summed over the repeats.
  std::vector<Gradient> result(c.num_inputs());
  const Value& x = c.input();
  const auto rank = static_cast<std::int64_t>(x.shape().rank());
  const Value reps = c.num_inputs() == 2
                         ? c.input(1)
                         : c.builder().constant(Tensor::from<std::int64_t>(
                               {rank}, std::span<const std::int64_t>(c.view().get<Ints>("reps"))));
  const Value pairs = reshape(stack({reps, shape_of(x)}, 1), Shape{2 * rank});
  Ints axes;
  for (std::int64_t i = 0; i < rank; ++i) axes.push_back(2 * i);
  const Value split_up = reshape(c.grad(), pairs);
  result[0] = rank == 0 ? c.grad() : sum(split_up, axes);
  return result;
}

OpDef tile_op() {
  OpDef def = moving_op("tile", "its input as a whole, reps[i] times along axis i", Arity::between(1, 2));
  def.attributes = {{"reps", AttributeType::kInts, false}};
  def.shape_operands = {1};
  def.infer = [](InferContext& c) {
    const Ints reps = repeats(c);
    Ints dims = dims_of(c.input(0).shape);
    for (std::size_t i = 0; i < dims.size(); ++i) {
      const bool known = dims[i] != kUnknown && reps[i] != kUnknownElement;
      dims[i] = known ? checked_mul(dims[i], reps[i], "a repeated axis") : kUnknown;
    }
    c.add_output(c.input(0).dtype, shape_from(dims));
  };
  def.gradient = tile_gradient;
  def.moves = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    const Shape& from = node.input(0).shape;
    const Ints reps = repeats(node);
    const Ints in = kernels::dense_strides(from), out = kernels::dense_strides(outputs[0].shape);
    ElementBox box;
    for (std::size_t i = 0; i < from.rank(); ++i) {
      box.extents.insert(box.extents.end(), {reps[i], from[i]});
      box.in_strides.insert(box.in_strides.end(), {0, in[i]});
      box.out_strides.insert(box.out_strides.end(), {from[i] * out[i], out[i]});
    }
    return ElementMoves{{box}};
  };
  def.kernels["cpu"] = internal::kernel_of_box(def.moves);
  return def;
}

// --- concat and split

// Copies between one tensor and its pieces along an axis.
class Pieces {
 public:
  Pieces(const TensorSpec& whole, std::span<const TensorSpec> pieces, std::size_t axis, bool join) {
    const Ints strides = kernels::dense_strides(whole.shape);
    const std::size_t size = size_of(whole.dtype);
    std::int64_t position = 0;
    for (const TensorSpec& piece : pieces) {
      const Ints own = kernels::dense_strides(piece.shape);
      pieces_.push_back(
          {kernels::StridedCopy(size, piece.shape.dims(), join ? own : strides, join ? strides : own),
           position * strides[axis] * static_cast<std::int64_t>(size), units_});
      position += piece.shape[axis];
      units_ += pieces_.back().copy.units();
    }
  }

  // Calls f(i, offset of piece i in the whole in bytes, copy, its units [begin, end)) for the part that this
  // shard copies.
  template <class F>
  void for_shard(const KernelContext& c, F&& f) const {
    const auto [begin, end] = c.range(units_);
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const Piece& piece = pieces_[i];
      const std::int64_t first = std::max<std::int64_t>(begin - piece.before, 0);
      const std::int64_t last = std::min(end - piece.before, piece.copy.units());
      if (first < last) f(i, piece.offset, piece.copy, first, last);
    }
  }

 private:
  struct Piece {
    kernels::StridedCopy copy;
    std::int64_t offset;
    std::int64_t before;  // units of the pieces before it
  };
  std::vector<Piece> pieces_;
  std::int64_t units_ = 0;
};

// The same as boxes: for the kernels of other devices.
ElementMoves moves_of_pieces(const TensorSpec& whole, std::span<const TensorSpec> pieces, std::size_t axis,
                             bool join) {
  const Ints strides = kernels::dense_strides(whole.shape);
  ElementMoves moves;
  std::int64_t position = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Ints own = kernels::dense_strides(pieces[i].shape);
    ElementBox box;
    box.extents = dims_of(pieces[i].shape);
    (join ? box.input : box.output) = i;
    box.in_strides = join ? own : strides;
    box.out_strides = join ? strides : own;
    (join ? box.out_start : box.in_start) = position * strides[axis];
    position += pieces[i].shape[axis];
    moves.boxes.push_back(std::move(box));
  }
  return moves;
}

std::vector<Gradient> concat_gradient(GradientContext& c) {
  const auto axis = static_cast<std::int64_t>(internal::axis_of(c.view()));
  Ints sizes;
  for (const Value& input : c.inputs()) sizes.push_back(input.shape()[static_cast<std::size_t>(axis)]);
  std::vector<Value> pieces;
  if (std::ranges::find(sizes, kUnknown) == sizes.end()) {
    pieces = split(c.grad(), sizes, axis);
  } else {
    const Value at = c.builder().constant(Tensor::from<std::int64_t>({1}, {axis}));
    std::vector<Value> extents;
    for (const Value& input : c.inputs()) {
      const Value shape = shape_of(input);
      extents.push_back(gather(shape, at));
    }
    const Value all = concat(extents, 0);
    pieces = split(c.grad(), all, axis);
  }
  return {pieces.begin(), pieces.end()};
}

OpDef concat_op() {
  OpDef def = moving_op(
      "concat", "its inputs one behind the other along `axis`, along which alone their shapes may differ",
      Arity::at_least(1));
  def.attributes = {{"axis", AttributeType::kInt}};
  def.infer = [](InferContext& c) {
    const DType dtype = c.same_dtype();
    const std::size_t axis = internal::axis_of(c);
    Shape shape = c.input(0).shape;
    for (std::size_t i = 1; i < c.num_inputs(); ++i) {
      const Shape& next = c.input(i).shape;
      bool fits = next.rank() == shape.rank();
      for (std::size_t k = 0; fits && k < shape.rank(); ++k) {
        const std::int64_t have = shape[k], add = next[k];
        if (k == axis) {
          const bool known = have != kUnknown && add != kUnknown;
          shape = shape.with_dim(k, known ? checked_add(have, add, "the joined axis") : kUnknown);
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
  def.gradient = concat_gradient;
  def.moves = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    return moves_of_pieces(outputs[0], node.inputs(), internal::axis_of(node), true);
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return [pieces = Pieces(outputs[0], node.inputs(), internal::axis_of(node), true)](KernelContext& c) {
      pieces.for_shard(c, [&](std::size_t i, std::int64_t offset, const kernels::StridedCopy& copy,
                              std::int64_t begin, std::int64_t end) {
        copy.run(c.input(i), static_cast<char*>(c.output(0)) + offset, begin, end);
      });
    };
  };
  return def;
}

// The extents of the pieces: kUnknown for those that are not known yet.
Ints piece_sizes(const NodeView& node) {
  const std::size_t axis = internal::axis_of(node);
  const std::int64_t whole = node.input(0).shape[axis];
  const Ints* attribute = node.find<Ints>("sizes");
  const std::int64_t* equal = node.find<std::int64_t>("parts");
  const int given = (node.num_inputs() == 2) + (attribute != nullptr) + (equal != nullptr);
  if (given != 1) NodeView::fail("needs one of the attributes 'sizes' and 'parts', or the sizes as an input");
  if (equal != nullptr) {
    const std::int64_t parts = *equal;
    if (parts < 1) NodeView::fail(str("cannot cut into ", parts, " pieces; `parts` must be 1 or more"));
    if (whole != kUnknown && whole % parts != 0) {
      NodeView::fail(str("axis ", axis, " of ", node.input(0).shape, " does not fall into ", parts,
                         " pieces of one extent"));
    }
    return Ints(static_cast<std::size_t>(parts), whole == kUnknown ? kUnknown : whole / parts);
  }
  Ints sizes = attribute != nullptr ? *attribute : internal::elements_of(node, 1, "the sizes");
  if (sizes.empty()) NodeView::fail("cannot cut into no pieces");
  std::int64_t total = 0;
  std::size_t open = 0, at = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == -1 || sizes[i] == kUnknownElement) {
      ++open;
      at = i;
      sizes[i] = kUnknown;
    } else if (sizes[i] < 0) {
      NodeView::fail(str("a piece is to have extent ", sizes[i], "; it must be -1 (computed), 0 or more"));
    } else {
      total = checked_add(total, sizes[i], "the pieces");
    }
  }
  if (attribute != nullptr && open > 1) NodeView::fail("more than one piece is to be computed (-1)");
  if (whole == kUnknown || open > 1) return sizes;
  if (open == 0 ? total != whole : total > whole) {
    NodeView::fail(str("pieces of ", total, " in all do not fit axis ", axis, " of ", node.input(0).shape));
  }
  if (open == 1) sizes[at] = whole - total;
  return sizes;
}

OpDef split_op() {
  OpDef def =
      moving_op("split", "its input cut along `axis` into pieces of `sizes`, or into `parts` equal ones",
                Arity::between(1, 2));
  def.traits.moves_elements = false;  // more than one output
  def.attributes = {{"axis", AttributeType::kInt},
                    {"parts", AttributeType::kInt, false},
                    {"sizes", AttributeType::kInts, false}};
  def.shape_operands = {1};
  def.infer = [](InferContext& c) {
    const std::size_t axis = internal::axis_of(c);
    if (const auto* parts = c.find<std::int64_t>("parts")) c.expect_outputs(*parts);
    for (const std::int64_t size : piece_sizes(c))
      c.add_output(c.input(0).dtype, c.input(0).shape.with_dim(axis, size));
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    std::vector<Value> pieces;
    for (std::size_t i = 0; i < c.num_outputs(); ++i) pieces.push_back(c.grad(i));
    std::vector<Gradient> result(c.num_inputs());
    result[0] = concat(pieces, c.view().get<std::int64_t>("axis"));
    return result;
  };
  def.moves = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    return moves_of_pieces(node.input(0), outputs, internal::axis_of(node), false);
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return [pieces = Pieces(node.input(0), outputs, internal::axis_of(node), false)](KernelContext& c) {
      pieces.for_shard(c, [&](std::size_t i, std::int64_t offset, const kernels::StridedCopy& copy,
                              std::int64_t begin, std::int64_t end) {
        copy.run(static_cast<const char*>(c.input(0)) + offset, c.output(i), begin, end);
      });
    };
  };
  return def;
}

// The builder of a list of values that must not be empty.
GraphBuilder& builder_of(std::string_view op, const std::vector<Value>& values, const SourceSite& site) {
  if (values.empty()) {
    throw InvalidArgument(str(op, ": takes at least 1 value, got none"),
                          {{}, std::string(op), {}, site.file, site.line, -1});
  }
  return values[0].builder();
}

// Checked first, since errors of expand_dims and concat would name shapes that the caller never wrote.
void check_stack(const std::vector<Value>& values, std::int64_t axis, const SourceSite& site) {
  const ErrorPlace place{{}, "stack", {}, site.file, site.line, -1};
  const TensorSpec& first = values[0].spec();
  const auto rank = static_cast<std::int64_t>(first.shape.rank());
  if (axis < -rank - 1 || axis > rank) {
    throw InvalidArgument(
        str("stack: the new axis of ", first, " must lie between ", -rank - 1, " and ", rank, ", got ", axis),
        place);
  }
  for (const Value& value : values) {
    const TensorSpec& spec = value.spec();
    bool fits = spec.dtype == first.dtype && spec.shape.rank() == first.shape.rank();
    for (std::size_t i = 0; fits && i < spec.shape.rank(); ++i)
      fits = spec.shape[i] == first.shape[i] || spec.shape[i] == kUnknown || first.shape[i] == kUnknown;
    if (fits) continue;
    throw InvalidArgument(str("stack: values must have one dtype and shape, got '", values[0].name(), "' ",
                              first, " and '", value.name(), "' ", spec),
                          place);
  }
}

}  // namespace

void internal::register_moving_ops(OpRegistry& registry) {
  registry.add(transpose_op());
  registry.add(flip_op());
  registry.add(tile_op());
  registry.add(concat_op());
  registry.add(split_op());
}

Value transpose(const Operand& x, std::vector<std::int64_t> perm) {
  const Value& value = x.value_for("transpose");
  return value.builder().op1("transpose", {value}, {{"perm", std::move(perm)}}, {}, x.site());
}

Value flip(const Operand& x, std::vector<std::int64_t> axes) {
  const Value& value = x.value_for("flip");
  return value.builder().op1("flip", {value}, {{"axes", std::move(axes)}}, {}, x.site());
}

Value tile(const Operand& x, std::vector<std::int64_t> reps) {
  const Value& value = x.value_for("tile");
  return value.builder().op1("tile", {value}, {{"reps", std::move(reps)}}, {}, x.site());
}

Value tile(const Operand& x, const Value& reps) {
  const Value& value = x.value_for("tile");
  return value.builder().op1("tile", {value, reps}, {}, {}, x.site());
}

Value concat(const std::vector<Value>& values, std::int64_t axis, SourceSite site) {
  return builder_of("concat", values, site).op("concat", values, {{"axis", axis}}, {}, site)[0];
}

Value stack(const std::vector<Value>& values, std::int64_t axis, SourceSite site) {
  GraphBuilder& builder = builder_of("stack", values, site);
  check_stack(values, axis, site);
  const auto made_at = internal::BuilderAccess(builder).made_at(site);
  std::vector<Value> rows;
  rows.reserve(values.size());
  for (const Value& value : values) rows.push_back(expand_dims(value, axis));
  return concat(rows, axis, site);
}

std::vector<Value> split(const Operand& x, std::vector<std::int64_t> sizes, std::int64_t axis) {
  const Value& value = x.value_for("split");
  return value.builder().op("split", {&value, 1}, {{"axis", axis}, {"sizes", std::move(sizes)}}, {},
                            x.site());
}

std::vector<Value> split(const Operand& x, const Value& sizes, std::int64_t axis) {
  const Value& value = x.value_for("split");
  const Value inputs[] = {value, sizes};
  return value.builder().op("split", inputs, {{"axis", axis}}, {}, x.site());
}

std::vector<Value> split_evenly(const Operand& x, std::int64_t parts, std::int64_t axis) {
  const Value& value = x.value_for("split");
  return value.builder().op("split", {&value, 1}, {{"axis", axis}, {"parts", parts}}, {}, x.site());
}

}  // namespace lockstep
