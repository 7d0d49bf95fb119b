// graph/cuda/products/windows.cpp - windows that slide over images, in the sources of kernels.
#include "lockstep/graph/cuda/products/internal/windows.h"

#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/internal/prelude.h"
#include "lockstep/graph/cuda/internal/types.h"
#include "lockstep/graph/ops/rules/internal/windows.h"

namespace lockstep::internal::cuda {

Windows pool_windows(const NodeView& node, const Shape& images) {
  const Extents2d window = extents_of(node, "window", {1, 1});
  const auto axes = windows_of(node, {images[1], images[2]}, window, {1, 1});
  return {images[0], axes[0], axes[1], images[3], images[3]};
}

Windows filter_windows(const NodeView& node, const Shape& images, const Shape& filter) {
  const auto axes =
      windows_of(node, {images[1], images[2]}, {filter[0], filter[1]}, extents_of(node, "dilations", {1, 1}));
  return {images[0], axes[0], axes[1], images[3], filter[3], node.get_or<std::int64_t>("groups", 1)};
}

JitKernel window_kernel(DType dtype, const std::string& functions, const std::string& body) {
  return JitKernel(
      str(kPrelude, "typedef ", names_of(dtype).computed,
          " T;\n"
          "struct Args {\n  const void *x, *y;\n  void* out;\n  long long n, ih, iw, oh, ow, kh, kw, sh, sw, "
          "dh, dw, ph, "
          "pw, c, oc, groups, images;\n};\n#define X(at) ",
          load_text(dtype, "a.x", "at"), "\n#define Y(at) ", load_text(dtype, "a.y", "at"),
          "\n#define PUT(at, value) ", store_text(dtype, "a.out", "at", "value"), "\n", functions,
          "extern \"C\" __global__ void kernel(const Args a) {\n"
          "  const long long step = (long long)gridDim.x * blockDim.x;\n"
          "  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += step) {\n",
          body, "  }\n}\n"));
}

void launch(const JitKernel& kernel, Stream& stream, const Windows& windows, const void* x, const void* y,
            void* out, std::int64_t n) {
  if (n == 0) return;
  const kernels::WindowAxis &rows = windows.rows, &columns = windows.columns;
  Arguments arguments;
  arguments.add(x).add(y).add(static_cast<const void*>(out)).add(n);
  arguments.add(rows.in).add(columns.in).add(rows.out).add(columns.out).add(rows.size).add(columns.size);
  arguments.add(rows.stride)
      .add(columns.stride)
      .add(rows.dilation)
      .add(columns.dilation)
      .add(rows.before)
      .add(columns.before);
  arguments.add(windows.channels).add(windows.out_channels).add(windows.groups).add(windows.images);
  kernel.launch(stream, blocks_for(n, kThreads), kThreads, arguments);
}

}  // namespace lockstep::internal::cuda
