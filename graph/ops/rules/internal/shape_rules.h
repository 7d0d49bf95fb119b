// graph/ops/rules/internal/shape_rules.h - shared by the inference rules of ops that change shapes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/graph/ir/op.h"

namespace lockstep::internal {

// Bytes written by one shard of an op that moves elements; about 25 us.
constexpr std::int64_t kCopyGrainBytes = 256 << 10;

// The elements of input i, a shape operand that must be a vector; `what` names it in errors ("the sizes").
std::vector<std::int64_t> elements_of(const NodeView& node, std::size_t i, std::string_view what);
// The shape that a node is told to make: input `operand` if it has that input, else its attribute `shape`. An
// element not known yet is kUnknownElement; -1 is kept as it is.
std::vector<std::int64_t> target_of(const NodeView& node, std::size_t operand);
// As a Shape: elements not known yet become kUnknown, negative ones fail.
Shape target_shape_of(const NodeView& node, std::size_t operand);

// Fails if an element of that dtype cannot be this number: a fraction among integers, or out of range.
void check_number(double value, DType dtype);

// Shards of an op that writes its outputs once, in any order.
Split copy_split(const NodeView& node, std::span<const TensorSpec> outputs);

// A kernel of the CPU for an op that moves one box of elements and leaves nothing open.
KernelMaker kernel_of_box(MovesFn moves);
// The box that a dense output takes from an input with these strides, from element `start` on.
ElementMoves dense_box(const TensorSpec& output, std::vector<std::int64_t> in_strides, std::int64_t start);

// Of a batch of matrices: the shape without the last two axes, and which matrix of an operand, whose batch is broadcast,
// belongs to each matrix of the result.
Shape batch_of(const Shape& shape);
std::vector<std::int64_t> matrices_of(const Shape& operand, const Shape& batch);

}  // namespace lockstep::internal
