// graph/cuda/moves.cpp - kernels of ops that only move elements (OpDef::moves).
#include "lockstep/graph/cuda/internal/moves.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/internal/elementwise.h"
#include "lockstep/graph/cuda/internal/jit.h"
#include "lockstep/graph/cuda/internal/kernel_set.h"
#include "lockstep/graph/cuda/internal/types.h"

namespace lockstep::internal::cuda {

namespace {

// Without axes of extent 1; neighbours are one axis where both sides step through them as through one.
ElementBox simplified(const ElementBox& box) {
  ElementBox simple = box;
  simple.extents.clear();
  simple.in_strides.clear();
  simple.out_strides.clear();
  for (std::size_t axis = 0; axis < box.extents.size(); ++axis) {
    const std::int64_t extent = box.extents[axis];
    if (extent == 1) continue;
    const bool joins = !simple.extents.empty() && simple.in_strides.back() == box.in_strides[axis] * extent &&
                       simple.out_strides.back() == box.out_strides[axis] * extent;
    if (joins) {
      simple.extents.back() *= extent;
      simple.in_strides.back() = box.in_strides[axis];
      simple.out_strides.back() = box.out_strides[axis];
    } else {
      simple.extents.push_back(extent);
      simple.in_strides.push_back(box.in_strides[axis]);
      simple.out_strides.push_back(box.out_strides[axis]);
    }
  }
  return simple;
}

std::string box_source(std::size_t axes, std::size_t bytes) {
  const std::string word = word_of(bytes), rank = std::to_string(std::max<std::size_t>(axes, 1));
  std::string text =
      str("struct Args {\n  const ", word, "* in;\n  ", word, "* out;\n  long long n, extents[", rank,
          "], from[", rank, "], to[", rank, "];\n};\n",
          "extern \"C\" __global__ void kernel(const Args a) {\n"
          "  const long long step = (long long)gridDim.x * blockDim.x;\n"
          "  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += step) {\n"
          "    long long left = i, from = 0, to = 0;\n");
  for (std::size_t axis = axes; axis-- > 0;) {
    if (axis > 0) {
      text += str("    { const long long here = left % a.extents[", axis, "]; left /= a.extents[", axis,
                  "]; from += here * a.from[", axis, "]; to += here * a.to[", axis, "]; }\n");
    } else {
      text += "    from += left * a.from[0]; to += left * a.to[0];\n";
    }
  }
  return text + "    a.out[to] = a.in[from];\n  }\n}\n";
}

KernelFn box_kernel(const ElementBox& whole, std::size_t bytes) {
  ElementBox box = simplified(whole);
  std::int64_t n = 1;
  for (const std::int64_t extent : whole.extents) n *= extent;
  if (n == 0) return [](KernelContext&) {};
  const JitKernel kernel(box_source(box.extents.size(), bytes));
  if (box.extents.empty()) {  // one element
    box.extents = {1};
    box.in_strides = box.out_strides = {0};
  }
  return [kernel, box, n, bytes](KernelContext& c) {
    Arguments arguments;
    arguments
        .add(static_cast<const char*>(c.input(box.input)) + box.in_start * static_cast<std::int64_t>(bytes))
        .add(static_cast<char*>(c.output(box.output)) + box.out_start * static_cast<std::int64_t>(bytes))
        .add(n)
        .add(box.extents)
        .add(box.in_strides)
        .add(box.out_strides);
    kernel.launch(*c.stream(), blocks_for(n, kThreads), kThreads, arguments);
  };
}

}  // namespace

KernelFn make_move_kernel(const ElementMoves& moves, std::span<const TensorSpec> outputs) {
  std::vector<KernelFn> kernels;
  if (moves.fill) kernels.push_back(make_element_kernel({}, outputs, {literal_of(*moves.fill)}));
  for (const ElementBox& box : moves.boxes)
    kernels.push_back(box_kernel(box, size_of(outputs[box.output].dtype)));
  return one_after_another(std::move(kernels));
}

}  // namespace lockstep::internal::cuda
