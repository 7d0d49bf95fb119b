// graph/ops/rules/shape_rules.cpp - shared by the inference rules of ops that change shapes.
#include "lockstep/graph/ops/rules/internal/shape_rules.h"

#include <cmath>

#include "lockstep/core/error.h"
#include "lockstep/core/kernels/strided.h"
#include "lockstep/core/tensor.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"

namespace lockstep::internal {

namespace {

// Far longer than any shape and any list of pieces.
constexpr std::int64_t kMaxShapeOperand = 1 << 16;

}  // namespace

std::vector<std::int64_t> elements_of(const NodeView& node, std::size_t i, std::string_view what) {
  const TensorSpec& spec = node.input(i);
  if ((spec.dtype != DType::kI64 && spec.dtype != DType::kI32) || spec.shape.rank() != 1) {
    NodeView::fail(str(what, " must be an i64 vector, got ", spec));
  }
  if (!spec.shape.is_known()) NodeView::fail(str("the length of ", what, " must be known, got ", spec));
  if (spec.shape[0] > kMaxShapeOperand)
    NodeView::fail(
        str(what, " has ", spec.shape[0], " elements, and may have ", kMaxShapeOperand, " at most"));
  std::vector<std::int64_t> elements = node.shape_operand(i);
  elements.resize(static_cast<std::size_t>(spec.shape[0]), kUnknownElement);
  return elements;
}

std::vector<std::int64_t> target_of(const NodeView& node, std::size_t operand) {
  const auto* shape = node.find<Shape>("shape");
  if (node.num_inputs() <= operand) {
    if (shape == nullptr) NodeView::fail("needs the attribute 'shape', or the shape as its last input");
    return {shape->dims().begin(), shape->dims().end()};
  }
  if (shape != nullptr) NodeView::fail("takes the attribute 'shape' or the shape as an input, not both");
  return elements_of(node, operand, "the shape");
}

Shape target_shape_of(const NodeView& node, std::size_t operand) {
  std::vector<std::int64_t> dims = target_of(node, operand);
  for (std::int64_t& dim : dims) {
    if (dim == kUnknownElement) {
      dim = kUnknown;
    } else if (dim < 0) {
      NodeView::fail(str("a dimension of the shape is ", dim, "; it must be 0 or more"));
    }
  }
  return Shape(std::span<const std::int64_t>(dims));
}

void check_number(double value, DType dtype) {
  if (is_integer(dtype) && value != std::trunc(value)) {
    NodeView::fail(str(value, " is no ", dtype, "; give a whole number"));
  }
  try {
    Tensor::full(dtype, Shape{}, value);
  } catch (const InvalidArgument&) {
    NodeView::fail(str(value, " does not fit into ", dtype));
  }
}

Split copy_split(const NodeView&, std::span<const TensorSpec> outputs) {
  std::int64_t bytes = 0;
  for (const TensorSpec& output : outputs) bytes += num_bytes(output);
  return {shards_for(bytes, kCopyGrainBytes), 0, false};
}

KernelMaker kernel_of_box(MovesFn moves) {
  return [moves = std::move(moves)](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    const ElementBox box = moves(node, outputs).boxes[0];
    const std::size_t size = size_of(outputs[0].dtype);
    return [copy = kernels::StridedCopy(size, box.extents, box.in_strides, box.out_strides),
            offset = box.in_start * static_cast<std::int64_t>(size)](KernelContext& c) {
      const auto [begin, end] = c.range(copy.units());
      // An empty tensor has no element to start at.
      if (begin < end) copy.run(static_cast<const char*>(c.input(0)) + offset, c.output(0), begin, end);
    };
  };
}

ElementMoves dense_box(const TensorSpec& output, std::vector<std::int64_t> in_strides, std::int64_t start) {
  ElementBox box;
  box.extents.assign(output.shape.dims().begin(), output.shape.dims().end());
  box.in_strides = std::move(in_strides);
  box.out_strides = kernels::dense_strides(output.shape);
  box.in_start = start;
  return {{std::move(box)}};
}

Shape batch_of(const Shape& shape) { return Shape(shape.dims().first(shape.rank() - 2)); }

std::vector<std::int64_t> matrices_of(const Shape& operand, const Shape& batch) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(batch.num_elements()));
  const Shape own = batch_of(operand);
  const std::size_t lead = batch.rank() - own.rank();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    auto rest = static_cast<std::int64_t>(i);
    std::int64_t stride = 1;
    for (std::size_t axis = batch.rank(); axis-- > 0;) {
      const std::int64_t at = rest % batch[axis];
      rest /= batch[axis];
      if (axis < lead) continue;
      if (own[axis - lead] > 1) numbers[i] += at * stride;
      stride *= own[axis - lead];
    }
  }
  return numbers;
}

}  // namespace lockstep::internal
