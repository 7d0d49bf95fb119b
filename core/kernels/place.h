// core/kernels/place.h - puts a tensor into a larger one, between elements of one value.
//
// On each axis, element i of the source goes to offset + i * step of the destination (step > 0 or < 0);
// whatever no element goes to becomes the fill value. The way is chosen once, when the object is made;
// elements are moved bit for bit, by size. A run works on the elements [begin, end) of the destination,
// counted row-major: it can be cut anywhere.
//
// Thread safety: immutable; any number of runs at once, on ranges that do not overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/core/shape.h"

namespace lockstep::kernels {

class LOCKSTEP_API Place {
 public:
  // Both tensors are dense; `fill` points at one element. Every element must fall into the destination.
  Place(std::size_t element_size, const Shape& in, const Shape& out, std::span<const std::int64_t> offsets,
        std::span<const std::int64_t> steps, const void* fill);
  void run(const void* in, void* out, std::int64_t begin, std::int64_t end) const;

 private:
  struct Axis {
    std::int64_t out_extent, in_extent, offset, step;  // step > 0
    std::int64_t in_stride;                            // < 0 where the step was
  };
  // Where on the source an index of the destination is: -1 for nowhere.
  static std::int64_t source_of(const Axis& axis, std::int64_t index);

  std::vector<Axis> axes_;  // outermost first; at least one
  std::size_t size_;
  std::int64_t start_ = 0;  // of the source: the element that goes first
  bool empty_ = false;      // nothing to put
  std::uint64_t fill_ = 0;  // its first bytes
};

}  // namespace lockstep::kernels
