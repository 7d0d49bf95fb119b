// graph/ops/convolution.h - convolution and pooling.
//
// Images are [images, rows, columns, channels] (NHWC). Filters are [rows, columns, in channels / groups, out
// channels].
//
//   Value y = conv2d(x, w, {.strides = {2, 2}, .padding = Padding::same()});
//   Value z = max_pool(y, {2, 2});
// Thread safety: as the builder.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/value.h"

namespace lockstep {

// What lies around an image: zeros for a convolution, nothing at all for pooling.
struct Padding {
  enum class Kind : std::uint8_t { kValid, kSame, kExplicit };
  Kind kind = Kind::kValid;
  std::array<std::int64_t, 4> extents = {};  // of kExplicit: top, bottom, left, right

  // None: windows lie inside.
  static constexpr Padding valid() { return {}; }
  // As much as an output of ceil(input / stride) needs; if it is odd, the extra one goes to the bottom and
  // right.
  static constexpr Padding same() { return {Kind::kSame, {}}; }
  static constexpr Padding of(std::int64_t top, std::int64_t bottom, std::int64_t left, std::int64_t right) {
    return {Kind::kExplicit, {top, bottom, left, right}};
  }
};

using Extents2d = std::array<std::int64_t, 2>;  // rows, columns

struct Conv2dOptions {
  Extents2d strides = {1, 1};
  Padding padding = Padding::valid();
  Extents2d dilations = {1, 1};  // distance between the elements of a window
  std::int64_t groups = 1;       // channels are cut into this many parts that do not see each other
};

// x [n, h, w, c] with the filter w [kh, kw, c / groups, out]: [n, h', w', out]. Floating.
LOCKSTEP_API Value conv2d(const Operand& x, const Operand& w, const Conv2dOptions& options = {});
// Its derivatives, as ops of their own: with respect to x of shape x_shape, and to w of shape w_shape; g
// flows back into the output.
LOCKSTEP_API Value conv2d_backward_input(const Value& g, const Value& w, const Value& x_shape,
                                         const Conv2dOptions& options = {},
                                         SourceSite site = SourceSite::current());
LOCKSTEP_API Value conv2d_backward_filter(const Value& x, const Value& g, const Value& w_shape,
                                          const Conv2dOptions& options = {},
                                          SourceSite site = SourceSite::current());

struct PoolOptions {
  Extents2d strides = {0, 0};  // {0, 0}: the extents of the window, so that windows do not overlap
  Padding padding = Padding::valid();
};

// The largest element of each window, channel by channel; the gradient goes to the first one.
LOCKSTEP_API Value max_pool(const Operand& x, Extents2d window, const PoolOptions& options = {});
// The average of each window, channel by channel; padding does not count. Floating.
LOCKSTEP_API Value avg_pool(const Operand& x, Extents2d window, const PoolOptions& options = {});

}  // namespace lockstep
