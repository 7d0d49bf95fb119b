// graph/cuda/moves.cpp - kernels of ops that only move elements (OpDef::moves).
#include "lockstep/graph/cuda/internal/moves.h"

#include <algorithm>
#include <cstdint>
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

// The same box in words of several elements, as many as lie side by side everywhere: fewer and larger accesses.
struct Words {
  ElementBox box;
  std::size_t bytes = 0;
};
Words words_of(const ElementBox& box, std::size_t bytes) {
  Words words{box, bytes};
  ElementBox& b = words.box;
  if (b.extents.empty() || b.in_strides.back() != 1 || b.out_strides.back() != 1) return words;
  const std::size_t outer = b.extents.size() - 1;
  const auto is_even = [](std::int64_t number) { return number % 2 == 0; };
  while (
      words.bytes < kAccess && is_even(b.extents.back()) && is_even(b.in_start) && is_even(b.out_start) &&
      std::all_of(b.in_strides.begin(), b.in_strides.begin() + static_cast<std::ptrdiff_t>(outer), is_even) &&
      std::all_of(b.out_strides.begin(), b.out_strides.begin() + static_cast<std::ptrdiff_t>(outer),
                  is_even)) {
    words.bytes *= 2;
    b.extents.back() /= 2;
    b.in_start /= 2;
    b.out_start /= 2;
    for (std::size_t axis = 0; axis < outer; ++axis) {
      b.in_strides[axis] /= 2;
      b.out_strides[axis] /= 2;
    }
  }
  return words;
}

std::string box_source(std::size_t axes, std::size_t bytes, bool is_short) {
  const std::string word = word_of(bytes), rank = std::to_string(std::max<std::size_t>(axes, 1));
  std::string text =
      str("typedef ", is_short ? "unsigned" : "long long", " I;\nstruct Args {\n  const ", word, "* in;\n  ",
          word, "* out;\n  long long n, extents[", rank, "], from[", rank, "], to[", rank,
          "];\n};\n"
          "extern \"C\" __global__ void kernel(const Args a) {\n"
          "  const I n = I(a.n), step = I(gridDim.x) * blockDim.x;\n"
          "  for (I i = I(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {\n"
          "    I left = i;\n    long long from = 0, to = 0;\n");
  for (std::size_t axis = axes; axis-- > 0;) {
    if (axis > 0) {
      text += str("    { const I here = left % I(a.extents[", axis, "]); left /= I(a.extents[", axis,
                  "]); from += here * a.from[", axis, "]; to += here * a.to[", axis, "]; }\n");
    } else {
      text += "    from += left * a.from[0]; to += left * a.to[0];\n";
    }
  }
  return text + "    a.out[to] = a.in[from];\n  }\n}\n";
}

// One way to move a box: element by element, or in words.
class BoxKernel {
 public:
  explicit BoxKernel(Words words) : words_(std::move(words)), kernel_(source_of(words_)) {
    if (words_.box.extents.empty()) {  // one element
      words_.box.extents = {1};
      words_.box.in_strides = words_.box.out_strides = {0};
    }
  }

  void operator()(KernelContext& c) const {
    const ElementBox& box = words_.box;
    const std::int64_t n = count_of(box);
    Arguments arguments;
    arguments.add(from(c)).add(to(c)).add(n).add(box.extents).add(box.in_strides).add(box.out_strides);
    kernel_.launch(*c.stream(), blocks_for(n, kThreads), kThreads, arguments);
  }

  bool is_aligned(const KernelContext& c) const {
    return (reinterpret_cast<std::uintptr_t>(from(c)) | reinterpret_cast<std::uintptr_t>(to(c))) %
               words_.bytes ==
           0;
  }

 private:
  static std::int64_t count_of(const ElementBox& box) {
    std::int64_t n = 1;
    for (const std::int64_t extent : box.extents) n *= extent;
    return n;
  }
  static std::string source_of(const Words& words) {
    return box_source(words.box.extents.size(), words.bytes, count_of(words.box) <= kMostInWords);
  }
  const void* from(const KernelContext& c) const {
    return static_cast<const char*>(c.input(words_.box.input)) +
           words_.box.in_start * static_cast<std::int64_t>(words_.bytes);
  }
  const void* to(const KernelContext& c) const {
    return static_cast<const char*>(c.output(words_.box.output)) +
           words_.box.out_start * static_cast<std::int64_t>(words_.bytes);
  }

  Words words_;
  JitKernel kernel_;
};

KernelFn box_kernel(const ElementBox& whole, std::size_t bytes) {
  for (const std::int64_t extent : whole.extents) {
    if (extent == 0) return [](KernelContext&) {};
  }
  const ElementBox box = simplified(whole);
  const Words words = words_of(box, bytes);
  BoxKernel each({box, bytes});
  if (words.bytes == bytes) return each;
  return [each = std::move(each), together = BoxKernel(words)](KernelContext& c) {
    (together.is_aligned(c) ? together : each)(c);
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
