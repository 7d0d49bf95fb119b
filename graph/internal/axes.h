// graph/internal/axes.h - axes of an input, as attributes name them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/graph/op.h"

namespace lockstep {

// As sorted numbers in [0, rank): all of them where none is named. Throws InvalidArgument for one outside, or named twice.
std::vector<std::int64_t> normal_axes(const TensorSpec& input, std::vector<std::int64_t> axes);
// The attribute `axes` of a node, for its input 0.
std::vector<std::int64_t> normal_axes(const NodeView& node);
// One axis, as a number in [0, rank). Throws InvalidArgument for one outside.
std::int64_t normal_axis(const TensorSpec& input, std::int64_t axis);
// The shape that is left once the axes (as of normal_axes) are reduced.
Shape reduced_shape(const Shape& shape, const std::vector<std::int64_t>& axes, bool keepdims);

}  // namespace lockstep
