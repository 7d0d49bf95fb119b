// core/kernels/strided.h - copies elements between two memory layouts.
//
// A StridedCopy is the common shape of a source and a destination, with a stride for each axis of each, in
// elements. A source stride of 0 repeats (broadcast), a negative one walks backwards (flip), a permutation of
// a dense tensor's strides transposes, those of a larger tensor cut a piece out of it or put one into it.
// Axes are merged and the way of copying is chosen once, when the object is made; elements are moved bit for
// bit, by size, whatever their dtype.
//
//   const StridedCopy copy(4, out_shape.dims(), in_strides, dense_strides(out_shape));
//   copy.run(in, out, 0, copy.units());            // or in pieces [begin, end), on several threads
//
// Thread safety: immutable; any number of runs at once, on ranges that do not overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/shape.h"

namespace lockstep::kernels {

// Strides of a dense row-major tensor, in elements.
LOCKSTEP_API std::vector<std::int64_t> dense_strides(const Shape& shape);

class LOCKSTEP_API StridedCopy {
 public:
  // Elements of 1, 2, 4 or 8 bytes. Strides of the destination must not make two elements share a place.
  StridedCopy(std::size_t element_size, std::span<const std::int64_t> extents,
              std::span<const std::int64_t> in_strides, std::span<const std::int64_t> out_strides);

  // Pieces of work of about equal size that do not touch each other's elements: 0 if there is nothing to
  // copy.
  std::int64_t units() const { return units_; }
  // Copies the units [begin, end). `in` and `out` point at the element of index 0 on every axis.
  void run(const void* in, void* out, std::int64_t begin, std::int64_t end) const;

 private:
  struct Axis {
    std::int64_t extent, in_step, out_step;
  };
  void run_rows(const void* in, void* out, std::int64_t begin, std::int64_t end) const;
  void run_tiles(const void* in, void* out, std::int64_t begin, std::int64_t end) const;
  void choose_tiles();

  // Outermost first; at least one. If tiles are transposed, the last two axes are the ones that are
  // exchanged: the source is dense along the first of them, the destination along the other.
  std::vector<Axis> axes_;
  std::size_t size_;
  std::int64_t units_ = 1;  // elements, or tiles
  bool tiles_ = false;
};

}  // namespace lockstep::kernels
