// graph/ops/rules/axes.cpp - axes of a value, as attributes name them.
#include "lockstep/graph/ops/rules/internal/axes.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "lockstep/core/error.h"

namespace lockstep::internal {

std::int64_t normal_axis(std::int64_t axis, std::size_t rank) {
  const auto count = static_cast<std::int64_t>(rank);
  if (axis < -count || axis >= count) {
    NodeView::fail(str("axis ", axis, " is outside of a value of rank ", rank,
                       count == 0 ? std::string() : str("; axes go from ", -count, " to ", count - 1)));
  }
  return axis < 0 ? axis + count : axis;
}

std::int64_t normal_axis(const NodeView& node) {
  return normal_axis(node.get<std::int64_t>("axis"), node.input(0).shape.rank());
}

std::vector<std::int64_t> normal_axes(std::vector<std::int64_t> axes, std::size_t rank) {
  for (std::int64_t& axis : axes) axis = normal_axis(axis, rank);
  std::ranges::sort(axes);
  const auto twice = std::ranges::adjacent_find(axes);
  if (twice != axes.end()) NodeView::fail(str("axis ", *twice, " is named twice"));
  return axes;
}

std::vector<std::int64_t> last_axes(std::size_t count) {
  std::vector<std::int64_t> axes;
  for (auto axis = -static_cast<std::int64_t>(count); axis < 0; ++axis) axes.push_back(axis);
  return axes;
}

std::vector<std::int64_t> reduced_axes(std::vector<std::int64_t> axes, std::size_t rank) {
  if (!axes.empty()) return normal_axes(std::move(axes), rank);
  axes.resize(rank);
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}

std::vector<std::int64_t> reduced_axes(const NodeView& node) {
  return reduced_axes(node.get<std::vector<std::int64_t>>("axes"), node.input(0).shape.rank());
}

Shape reduced_shape(const Shape& shape, const std::vector<std::int64_t>& axes, bool keepdims) {
  std::vector<std::int64_t> dims;
  for (std::size_t i = 0; i < shape.rank(); ++i) {
    const bool reduced = std::ranges::binary_search(axes, static_cast<std::int64_t>(i));
    if (!reduced) dims.push_back(shape[i]);
    if (reduced && keepdims) dims.push_back(1);
  }
  return Shape(std::span<const std::int64_t>(dims));
}

std::vector<std::int64_t> summed_axes(const Shape& from, const Shape& to) {
  std::vector<std::int64_t> axes;
  const std::size_t fresh = from.rank() - to.rank();
  for (std::size_t axis = 0; axis < from.rank(); ++axis) {
    if (axis < fresh || (to[axis - fresh] == 1 && from[axis] != 1))
      axes.push_back(static_cast<std::int64_t>(axis));
  }
  return axes;
}

}  // namespace lockstep::internal
