// graph/ops/rules/internal/axes.h - axes of a value, as attributes name them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/graph/ir/op.h"

namespace lockstep::internal {

// The axis as a number in [0, rank); fails for one outside of [-rank, rank).
std::int64_t normal_axis(std::int64_t axis, std::size_t rank);
// The attribute `axis` of a node, for its input 0.
std::int64_t normal_axis(const NodeView& node);
inline std::size_t axis_of(const NodeView& node) { return static_cast<std::size_t>(normal_axis(node)); }
// Several, sorted; fails if one is named twice.
std::vector<std::int64_t> normal_axes(std::vector<std::int64_t> axes, std::size_t rank);

// The last `count` axes, counted from the end: -count, ..., -1.
std::vector<std::int64_t> last_axes(std::size_t count);

// As normal_axes for a reduction: all axes if none is named.
std::vector<std::int64_t> reduced_axes(std::vector<std::int64_t> axes, std::size_t rank);
// The attribute `axes` of a node, for its input 0.
std::vector<std::int64_t> reduced_axes(const NodeView& node);
// The shape that is left once these axes (from reduced_axes) are reduced.
Shape reduced_shape(const Shape& shape, const std::vector<std::int64_t>& axes, bool keepdims);
// The axes that a sum of a tensor to this shape, to which it could be broadcast, sums over.
std::vector<std::int64_t> summed_axes(const Shape& from, const Shape& to);

}  // namespace lockstep::internal
