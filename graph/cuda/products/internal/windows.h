// graph/cuda/products/internal/windows.h - windows that slide over images, in the sources of kernels of convolution and pooling.
#pragma once

#include <array>
#include <string>

#include "lockstep/core/kernels/window.h"
#include "lockstep/graph/cuda/internal/jit.h"
#include "lockstep/graph/ir/op.h"

namespace lockstep::internal::cuda {

// Images [images, rows.in, columns.in, channels] and what windows make of them, [images, rows.out, columns.out, out_channels].
struct Windows {
  std::int64_t images = 0;
  kernels::WindowAxis rows, columns;
  std::int64_t channels = 1, out_channels = 1, groups = 1;
};
// For nodes of pooling, and of convolution with a filter of this shape.
Windows pool_windows(const NodeView& node, const Shape& images);
Windows filter_windows(const NodeView& node, const Shape& images, const Shape& filter);

// A kernel that runs `body` for each i below a.n, with inputs a.x and a.y, the output a.out, and the numbers of the windows: a.ih, a.iw
// (images), a.oh, a.ow (results), a.kh, a.kw (window), a.sh, a.sw (strides), a.dh, a.dw (dilations), a.ph, a.pw (padding in front),
// a.c, a.oc (channels), a.groups, a.images. T is what elements of the dtype are computed as.
JitKernel window_kernel(DType dtype, const std::string& functions, const std::string& body);
void launch(const JitKernel& kernel, Stream& stream, const Windows& windows, const void* x, const void* y,
            void* out, std::int64_t n);

}  // namespace lockstep::internal::cuda
