// graph/ops/indexing.cpp - ops that pick and place elements by index.
#include "lockstep/graph/ops/indexing.h"

#include <algorithm>

#include "lockstep/core/kernels/rows.h"
#include "lockstep/graph/build/builder_access.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/gradient_rule.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/rules/internal/axes.h"
#include "lockstep/graph/ops/rules/internal/shape_rules.h"
#include "lockstep/graph/ops/shapes.h"

namespace lockstep {

namespace {

using internal::shards_for;

void check_index_dtype(const TensorSpec& indices) {
  if (indices.dtype == DType::kI32 || indices.dtype == DType::kI64) return;
  NodeView::fail(str("indices must be i32 or i64, got ", indices));
}

// --- gather

kernels::RowsShape rows_of(const Shape& shape, std::size_t axis) {
  kernels::RowsShape rows;
  rows.rows = shape[axis];
  for (std::size_t i = 0; i < shape.rank(); ++i) {
    if (i < axis) rows.outer *= shape[i];
    if (i > axis) rows.inner *= shape[i];
  }
  return rows;
}

// `first` (i64[1]), then the dimensions of x except that of axis `without`.
Value shape_with_first(const Value& first, const Value& x, std::size_t without) {
  Tensor others = Tensor::empty(DType::kI64, Shape{static_cast<std::int64_t>(x.shape().rank()) - 1});
  std::int64_t axis = 0;
  for (std::int64_t& other : others.data<std::int64_t>()) {
    if (axis == static_cast<std::int64_t>(without)) ++axis;
    other = axis++;
  }
  if (others.num_elements() == 0) return first;
  const Value axes = x.builder().constant(others);
  const Value shape = shape_of(x);
  const Value rest = gather(shape, axes);
  return concat({first, rest}, 0);
}

// The permutation that puts the axes [begin, begin + count) of a value of that rank first; and the inverse of
// one.
std::vector<std::int64_t> axes_to_front(std::size_t begin, std::size_t count, std::size_t rank) {
  std::vector<std::int64_t> perm;
  for (std::size_t i = begin; i < begin + count; ++i) perm.push_back(static_cast<std::int64_t>(i));
  for (std::size_t i = 0; i < rank; ++i) {
    if (i < begin || i >= begin + count) perm.push_back(static_cast<std::int64_t>(i));
  }
  return perm;
}

std::vector<std::int64_t> inverse(const std::vector<std::int64_t>& perm) {
  std::vector<std::int64_t> result(perm.size());
  for (std::size_t i = 0; i < perm.size(); ++i)
    result[static_cast<std::size_t>(perm[i])] = static_cast<std::int64_t>(i);
  return result;
}

std::vector<Gradient> gather_gradient(GradientContext& c) {
  const std::size_t axis = internal::axis_of(c.view());
  const Value& x = c.input(0);
  const Value& indices = c.input(1);
  const std::size_t rank = x.shape().rank();
  // [k, ...]: one row of x for each index.
  const Value rows = indices.shape().rank() == 1 ? indices : reshape(indices, Shape{-1});
  Value values = c.grad();
  if (axis != 0)
    values = transpose(values, axes_to_front(axis, indices.shape().rank(), values.shape().rank()));
  if (indices.shape().rank() != 1) {
    const Value count = shape_of(rows);
    values = reshape(values, shape_with_first(count, x, axis));
  }
  if (axis == 0) {
    const Value wide = rows.dtype() == DType::kI64 ? rows : cast(rows, DType::kI64);
    const Value dense_shape = shape_of(x);
    return {IndexedSlices{wide, values, dense_shape}, Gradient()};
  }
  const Value at = c.builder().constant(Tensor::from<std::int64_t>({1}, {static_cast<std::int64_t>(axis)}));
  const Value shape = shape_of(x);
  const Value extent = gather(shape, at);
  const Value scattered = scatter_add(rows, values, shape_with_first(extent, x, axis));
  return {transpose(scattered, inverse(axes_to_front(axis, 1, rank))), Gradient()};
}

OpDef gather_op() {
  OpDef def;
  def.name = "gather";
  def.traits.refuses_integers = true;
  def.summary = "the entries `indices` of x along `axis`, which the shape of the indices replaces";
  def.inputs = Arity::exactly(2);
  def.attributes = {{"axis", AttributeType::kInt}};
  def.traits.moves_elements = true;
  def.traits.shape_math = true;
  def.infer = [](InferContext& c) {
    check_index_dtype(c.input(1));
    const Shape& shape = c.input(0).shape;
    const std::size_t axis = internal::axis_of(c);
    std::vector<std::int64_t> dims;
    for (std::size_t i = 0; i < shape.rank(); ++i) {
      if (i == axis) {
        dims.insert(dims.end(), c.input(1).shape.dims().begin(), c.input(1).shape.dims().end());
      } else {
        dims.push_back(shape[i]);
      }
    }
    c.add_output(c.input(0).dtype, Shape(std::span<const std::int64_t>(dims)));
  };
  def.split = internal::copy_split;
  def.cost = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    // Entries that are asked for again and again need to be read once.
    const std::int64_t read = std::min(num_bytes(outputs[0]), num_bytes(node.input(0)));
    return Cost{0, static_cast<double>(read + num_bytes(outputs[0]) + num_bytes(node.input(1))), 0};
  };
  def.gradient = gather_gradient;
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return [size = size_of(outputs[0].dtype), shape = rows_of(node.input(0).shape, internal::axis_of(node)),
            dtype = node.input(1).dtype, count = node.input(1).shape.num_elements(),
            n = outputs[0].shape.num_elements()](KernelContext& c) {
      const auto [begin, end] = c.range(n);
      kernels::gather_rows(size, c.input(0), shape, {c.input(1), dtype, count}, c.output(0), begin, end);
    };
  };
  return def;
}

// --- scatter_add

constexpr std::int64_t kMaxScatterShards = 128;  // each reads all indices

OpDef scatter_add_op() {
  OpDef def;
  def.name = "scatter_add";
  def.traits.refuses_integers = true;
  def.summary =
      "zeros of the given shape, to whose row indices[i] row i of the values is added, in order of i";
  def.inputs = Arity::exactly(3);  // indices, values, shape
  def.shape_operands = {2};
  def.infer = [](InferContext& c) {
    check_index_dtype(c.input(0));
    const Shape& indices = c.input(0).shape;
    const Shape& values = c.input(1).shape;
    c.require(c.input(1).dtype != DType::kBool, "has no meaning for bool");
    if (indices.rank() != 1) NodeView::fail(str("indices must be a vector, got ", c.input(0)));
    Shape shape = internal::target_shape_of(c, 2);
    if (shape.rank() == 0) NodeView::fail("the shape has no rows: it must be of rank 1 or more");
    bool fits = values.rank() == shape.rank() &&
                (values[0] == indices[0] || values[0] == kUnknown || indices[0] == kUnknown);
    for (std::size_t i = 1; fits && i < shape.rank(); ++i) {
      fits = shape[i] == values[i] || shape[i] == kUnknown || values[i] == kUnknown;
      if (shape[i] == kUnknown) shape = shape.with_dim(i, values[i]);
    }
    if (!fits) {
      NodeView::fail(str("values must have a row for each index and rows of the shape wanted, got values ",
                         values, " for indices ", indices, " and shape ", shape));
    }
    c.add_output(c.input(1).dtype, shape);
  };
  def.split = [](const NodeView&, std::span<const TensorSpec> outputs) {
    const std::int64_t shards = shards_for(num_bytes(outputs[0]), internal::kCopyGrainBytes);
    return Split{std::min(shards, kMaxScatterShards),
                 kernels::scatter_add_scratch(outputs[0].dtype, outputs[0].shape.num_elements()), false};
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    return {Gradient(), gather(c.grad(), c.input(0), 0), Gradient()};
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return
        [dtype = outputs[0].dtype, indices = node.input(0).dtype, count = node.input(0).shape.num_elements(),
         rows = rows_of(outputs[0].shape, 0), n = outputs[0].shape.num_elements()](KernelContext& c) {
          const auto [begin, end] = c.range(n);
          kernels::scatter_add_rows(dtype, {c.input(0), indices, count}, c.input(1), rows, c.output(0),
                                    static_cast<float*>(c.scratch()), begin, end);
        };
  };
  return def;
}

// --- one_hot

OpDef one_hot_op() {
  OpDef def;
  def.name = "one_hot";
  def.summary = "a new last axis of extent `depth`, 1 where it equals the index and 0 elsewhere";
  def.inputs = Arity::exactly(1);
  def.attributes = {{"depth", AttributeType::kInt}, {"dtype", AttributeType::kDType}};
  def.infer = [](InferContext& c) {
    check_index_dtype(c.input(0));
    const std::int64_t depth = c.get<std::int64_t>("depth");
    if (depth < 0) NodeView::fail(str("depth is ", depth, "; it must be 0 or more"));
    c.add_output(c.get<DType>("dtype"), c.input(0).shape.with_inserted(c.input(0).shape.rank(), depth));
  };
  def.split = [](const NodeView&, std::span<const TensorSpec> outputs) {
    return Split{shards_for(num_bytes(outputs[0]), internal::kCopyGrainBytes), 0, false};
  };
  def.gradient = [](GradientContext&) -> std::vector<Gradient> { return {Gradient()}; };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return [dtype = outputs[0].dtype, indices = node.input(0).dtype, depth = node.get<std::int64_t>("depth"),
            count = node.input(0).shape.num_elements()](KernelContext& c) {
      const auto [begin, end] = c.range(count);
      kernels::one_hot_rows(dtype, {c.input(0), indices, count}, depth, c.output(0), begin, end);
    };
  };
  return def;
}

}  // namespace

void internal::register_indexing_ops(OpRegistry& registry) {
  registry.add(gather_op());
  registry.add(scatter_add_op());
  registry.add(one_hot_op());
}

Value gather(const Operand& x, const Value& indices, std::int64_t axis) {
  const Value& value = x.value_for("gather");
  return value.builder().op1("gather", {value, indices}, {{"axis", axis}}, {}, x.site());
}

Value scatter_add(const Value& indices, const Value& values, const Value& shape, SourceSite site) {
  return values.builder().op1("scatter_add", {indices, values, shape}, {}, {}, site);
}

Value segment_sum(const Value& values, const Value& segment_ids, std::int64_t num_segments, SourceSite site) {
  GraphBuilder& builder = values.builder();
  const auto made_at = internal::BuilderAccess(builder).made_at(site);
  return segment_sum(values, segment_ids, builder.constant(Tensor::from<std::int64_t>({1}, {num_segments})),
                     site);
}

Value segment_sum(const Value& values, const Value& segment_ids, const Value& num_segments, SourceSite site) {
  if (values.shape().rank() == 0) {
    throw InvalidArgument("segment_sum: a scalar has no rows",
                          {{}, "segment_sum", {}, site.file, site.line, -1});
  }
  const auto made_at = internal::BuilderAccess(values.builder()).made_at(site);
  const Value shape = shape_with_first(num_segments, values, 0);
  return values.builder().op1("scatter_add", {segment_ids, values, shape}, {}, "segment_sum", site);
}

Value one_hot(const Operand& indices, std::int64_t depth, DType dtype) {
  const Value& value = indices.value_for("one_hot");
  return value.builder().op1("one_hot", {value}, {{"depth", depth}, {"dtype", dtype}}, {}, indices.site());
}

}  // namespace lockstep
