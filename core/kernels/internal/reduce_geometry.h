// core/kernels/internal/reduce_geometry.h - how the axes of a reduction lie in memory.
//
// Extents of one are dropped and neighbouring axes of one kind (reduced or kept) merged. The last axis that
// is left is the inner one; the others form two lists, each of which a Walker walks row-major.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/core/shape.h"

namespace lockstep::kernels {

struct ReduceAxis {
  std::int64_t extent = 1, stride = 1;
};

struct ReduceGeometry {
  std::vector<ReduceAxis> kept, reduced;  // the last axis first
  std::int64_t inner = 1;                 // extent of the inner axis, which is in neither list
  bool inner_reduced = true;
  std::int64_t rows = 1;      // positions on the reduced list
  std::int64_t elements = 1;  // of the input
};

inline ReduceGeometry make_geometry(const Shape& shape, std::span<const std::int64_t> axes) {
  ReduceGeometry geometry;
  geometry.elements = shape.num_elements();
  bool have_inner = false;
  std::int64_t stride = 1;             // of the axis at hand
  std::int64_t extent = 1, start = 1;  // of the merged axis that is not placed yet, and its stride
  bool is_reduced = false;
  const auto place = [&] {
    if (extent == 1) return;
    if (!have_inner) {
      geometry.inner = extent;
      geometry.inner_reduced = is_reduced;
      have_inner = true;
    } else {
      (is_reduced ? geometry.reduced : geometry.kept).push_back({extent, start});
      if (is_reduced) geometry.rows *= extent;
    }
  };
  std::size_t left = axes.size();
  for (std::size_t axis = shape.rank(); axis-- > 0;) {
    const bool reduced = left > 0 && axes[left - 1] == static_cast<std::int64_t>(axis);
    if (reduced) --left;
    if (shape[axis] == 1) continue;
    if (reduced != is_reduced || extent == 1) {
      place();
      extent = 1;
      start = stride;
      is_reduced = reduced;
    }
    extent *= shape[axis];
    stride *= shape[axis];
  }
  place();
  return geometry;
}

// A position on a list of axes.
class Walker {
 public:
  Walker(const std::vector<ReduceAxis>& axes, std::int64_t index) : axes_(axes) { seek(index); }
  std::int64_t offset() const { return offset_; }

  void seek(std::int64_t index) {
    offset_ = 0;
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      index_[i] = index % axes_[i].extent;
      index /= axes_[i].extent;
      offset_ += index_[i] * axes_[i].stride;
    }
  }
  // How many positions, this one included, lie stride() apart.
  std::int64_t run() const { return axes_.empty() ? 1 : axes_[0].extent - index_[0]; }
  std::int64_t stride() const { return axes_.empty() ? 0 : axes_[0].stride; }
  // Moves on by at most run() positions; goes back to the start after the last.
  void advance(std::int64_t steps) {
    if (axes_.empty()) return;
    offset_ += steps * axes_[0].stride;
    index_[0] += steps;
    for (std::size_t i = 0; index_[i] == axes_[i].extent;) {
      offset_ -= axes_[i].extent * axes_[i].stride;
      index_[i] = 0;
      if (++i == axes_.size()) return;
      offset_ += axes_[i].stride;
      ++index_[i];
    }
  }

 private:
  const std::vector<ReduceAxis>& axes_;
  std::int64_t index_[Shape::kMaxRank / 2 + 1];
  std::int64_t offset_ = 0;
};

}  // namespace lockstep::kernels
