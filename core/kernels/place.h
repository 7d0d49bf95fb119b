// core/kernels/place.h - copies a tensor into a larger one and fills the rest with one value.
//
// On each axis, element i of the source goes to offset + i * step of the destination (step > 0 or < 0); all
// other elements of the destination become the fill value. How to copy is worked out once, when the object is
// made; elements are moved bit for bit, by size. A run works on the elements [begin, end) of the destination,
// counted row-major: it can be cut anywhere.
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

class LOCKSTEP_API Place {
 public:
  // Both tensors are dense; `fill` points at one element. Every element must fall into the destination.
  Place(std::size_t element_size, const Shape& in, const Shape& out, std::span<const std::int64_t> offsets,
        std::span<const std::int64_t> steps, const void* fill);
  void run(const void* in, void* out, std::int64_t begin, std::int64_t end) const;

 private:
  struct Axis {
    std::int64_t out_extent, in_extent, offset, step;  // step > 0
    std::int64_t in_stride;                            // < 0 if the step was
  };
  // The index on the source's axis of the element that goes to `index` of the destination; -1: none.
  static std::int64_t source_of(const Axis& axis, std::int64_t index);

  std::vector<Axis> axes_;  // outermost first; at least one
  std::size_t size_;
  std::int64_t start_ = 0;  // offset of the source's element that goes first
  bool empty_ = false;      // the source has no elements
  std::uint64_t fill_ = 0;  // the fill value, in its first bytes
};

}  // namespace lockstep::kernels
