// graph/ops/rules/internal/shape_rules.h - what inference rules of ops that change shapes share.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/graph/ir/op.h"

namespace lockstep::internal {

// Written by a shard of an op that moves elements; about 25 us.
constexpr std::int64_t kCopyGrainBytes = 256 << 10;

// The elements of input i, a shape operand that must be a vector; `what` names it in errors ("the sizes").
std::vector<std::int64_t> elements_of(const NodeView& node, std::size_t i, std::string_view what);
// The shape that a node is told to make: its attribute `shape`, or input `operand` where it has that many
// inputs. An element not known yet is kUnknownElement; -1 stands as it came.
std::vector<std::int64_t> target_of(const NodeView& node, std::size_t operand);
// As a Shape: elements not known yet become kUnknown, negative ones fail.
Shape target_shape_of(const NodeView& node, std::size_t operand);

// Fails where an element of that dtype cannot be this number: a fraction among integers, or out of range.
void check_number(double value, DType dtype);

// Shards of an op that writes its outputs once, in any order.
Split copy_split(const NodeView& node, std::span<const TensorSpec> outputs);

}  // namespace lockstep::internal
