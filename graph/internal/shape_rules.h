// graph/internal/shape_rules.h - what inference rules of ops that change shapes share.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/graph/op.h"

namespace lockstep::internal {

constexpr std::int64_t kCopyGrainBytes =
    256 << 10;  // written by a shard of an op that moves elements; about 25 us

// The axis as a number in [0, rank); fails for one outside of [-rank, rank).
std::int64_t normal_axis(std::int64_t axis, std::size_t rank);
// Several, sorted; fails where one is named twice.
std::vector<std::int64_t> normal_axes(std::vector<std::int64_t> axes, std::size_t rank);

// The shape that a node is told to make: its attribute `shape` where it has one input less than its op takes, otherwise its
// last input, a shape operand. An element not known yet is kUnknownElement; -1 stands as it came.
std::vector<std::int64_t> target_of(const NodeView& node, std::size_t operand);
// As a Shape: elements not known yet become kUnknown, negative ones fail.
Shape target_shape_of(const NodeView& node, std::size_t operand);

// Shards and cost of an op that writes its outputs once, in any order.
Split split_by_bytes(std::span<const TensorSpec> outputs);
Split copy_split(const NodeView& node, std::span<const TensorSpec> outputs);

}  // namespace lockstep::internal
