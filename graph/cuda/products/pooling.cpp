// graph/cuda/products/pooling.cpp - maxima and averages over windows of images: a thread for each element of what is written.
#include <string>

#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/internal/kernel_set.h"
#include "lockstep/graph/cuda/products/internal/windows.h"

namespace lockstep::internal::cuda {

namespace {

// The window of an element of the result: `place` is its number in x, EACH visits those inside the image, row by row.
constexpr const char* kFunctions = R"(
__device__ inline bool larger(T value, T best) { return value > best || (value != value && best == best); }
#define EACH(image, row, column, channel) \
  for (long long ki = 0; ki < a.kh; ++ki) \
    for (long long kj = 0, y = (row) * a.sh - a.ph + ki, x = (column) * a.sw - a.pw, \
         place = (((image) * a.ih + y) * a.iw + x) * a.c + (channel); \
         kj < a.kw; ++kj, ++x, place += a.c) \
      if (y >= 0 && y < a.ih && x >= 0 && x < a.iw)
// The number in x of the first largest element; -1: the window holds nothing.
__device__ inline long long largest(const Args& a, long long image, long long row, long long column, long long channel) {
  long long found = -1;
  T best = 0;
  EACH(image, row, column, channel) {
    const T value = X(place);
    if (found < 0 || larger(value, best)) { best = value; found = place; }
  }
  return found;
}
__device__ inline long long inside(long long at, long long size, long long extent) {
  const long long first = at < 0 ? 0 : at, last = at + size < extent ? at + size : extent;
  return last > first ? last - first : 0;
}
// Of element i of the images: the windows that it lies in.
#define EACH_WINDOW \
  for (long long ki = 0; ki < a.kh; ++ki) \
    for (long long kj = 0; kj < a.kw; ++kj) \
      if (long long row = y + a.ph - ki, column = x + a.pw - kj; \
          row >= 0 && column >= 0 && row % a.sh == 0 && column % a.sw == 0 && (row /= a.sh) < a.oh && (column /= a.sw) < a.ow)
)";
constexpr const char* kOfResult =
    "    const long long channel = i % a.c, column = i / a.c % a.ow, row = i / a.c / a.ow % a.oh, image = i "
    "/ a.c / a.ow / a.oh;\n";
constexpr const char* kOfImages =
    "    const long long channel = i % a.c, x = i / a.c % a.iw, y = i / a.c / a.iw % a.ih, image = i / a.c / "
    "a.iw / a.ih;\n";

struct Pool {
  const char* op;
  bool by_output;  // the images are the op's output
  std::string body;
};

std::vector<Pool> pools() {
  return {
      {"max_pool", false,
       str(kOfResult,
           "    const long long at = largest(a, image, row, column, channel);\n    PUT(i, at < 0 ? "
           "ls_lowest<T>() : X(at));\n")},
      {"max_pool_pick", false,
       str(kOfResult,
           "    const long long at = largest(a, image, row, column, channel);\n    PUT(i, at < 0 ? T(0) : "
           "Y(at));\n")},
      {"avg_pool", false,
       str(kOfResult,
           "    T sum = 0;\n    long long count = 0;\n    EACH(image, row, column, channel) { sum += "
           "X(place); ++count; }\n"
           "    PUT(i, sum / T(count));\n")},
      {"max_pool_backward", false,
       str(kOfImages,
           "    T sum = 0;\n    EACH_WINDOW {\n"
           "      if (largest(a, image, row, column, channel) == i) sum += Y(((image * a.oh + row) * a.ow + "
           "column) * a.c + channel);\n"
           "    }\n    PUT(i, sum);\n")},
      {"avg_pool_backward", true,
       str(kOfImages,
           "    T sum = 0;\n    EACH_WINDOW {\n"
           "      const long long count = inside(row * a.sh - a.ph, a.kh, a.ih) * inside(column * a.sw - "
           "a.pw, a.kw, a.iw);\n"
           "      sum += X(((image * a.oh + row) * a.ow + column) * a.c + channel) / T(count);\n    }\n    "
           "PUT(i, sum);\n")},
  };
}

}  // namespace

void add_pooling_kernels(OpRegistry& registry) {
  for (const Pool& pool : pools()) {
    registry.add_kernel(
        pool.op, "cuda", [pool](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
          const Windows windows = pool_windows(node, pool.by_output ? outputs[0].shape : node.input(0).shape);
          return [windows, n = outputs[0].shape.num_elements(),
                  kernel = window_kernel(outputs[0].dtype, kFunctions, pool.body)](KernelContext& c) {
            launch(kernel, *c.stream(), windows, c.input(0), c.num_inputs() > 1 ? c.input(1) : nullptr,
                   c.output(0), n);
          };
        });
  }
}

}  // namespace lockstep::internal::cuda
