// core/kernels/window.h - windows that slide along an axis, for convolution and pooling.
//
// Thread safety: a plain value.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lockstep::kernels {

// Position o of the output looks at the elements start(o) + j * dilation of the input, j from 0 to size - 1.
// Of these [first(o), last(o)) lie inside; the others are padding.
struct WindowAxis {
  std::int64_t in = 1, out = 1;  // extents
  std::int64_t size = 1, stride = 1, dilation = 1;
  std::int64_t before = 0;  // padding in front of the first element

  std::int64_t start(std::int64_t o) const { return o * stride - before; }
  std::int64_t first(std::int64_t o) const {
    const std::int64_t at = start(o);
    return at >= 0 ? 0 : std::min(size, (-at + dilation - 1) / dilation);
  }
  std::int64_t last(std::int64_t o) const {
    const std::int64_t left = in - start(o);
    return left <= 0 ? 0 : std::min(size, (left + dilation - 1) / dilation);
  }
};

}  // namespace lockstep::kernels
