// graph/cuda/indices/indexing.cpp - rows by their numbers, and the numbers of extremes.
#include <algorithm>
#include <string>

#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/internal/elementwise.h"
#include "lockstep/graph/cuda/internal/jit.h"
#include "lockstep/graph/cuda/internal/kernel_set.h"
#include "lockstep/graph/cuda/internal/prelude.h"
#include "lockstep/graph/cuda/internal/types.h"
#include "lockstep/graph/ops/rules/internal/items.h"

namespace lockstep::internal::cuda {

namespace {

// A kernel that runs `body` for each i below a.n. Its arguments: inputs 0 and 1, output 0, four numbers, where refusals go.
std::string each_source(const std::string& body) {
  return str(kPrelude,
             "struct Args { const void *x, *y; void* out; long long n, p, q, r; ls_word* refusal; ls_word "
             "number; };\n"
             "extern \"C\" __global__ void kernel(const Args a) {\n"
             "  const long long step = (long long)gridDim.x * blockDim.x;\n"
             "  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += step) {\n",
             body, "  }\n}\n");
}

struct Numbers {
  std::int64_t n = 0, p = 0, q = 0, r = 0;
};

KernelFn each_kernel(const std::string& body, const Numbers& numbers) {
  if (numbers.n == 0) return [](KernelContext&) {};
  return [kernel = JitKernel(each_source(body)), numbers](KernelContext& c) {
    Arguments arguments;
    arguments.add(c.input(0))
        .add(c.num_inputs() > 1 ? c.input(1) : nullptr)
        .add(static_cast<const void*>(c.output(0)));
    arguments.add(numbers.n).add(numbers.p).add(numbers.q).add(numbers.r);
    arguments.add(static_cast<const void*>(c.blocks().refusal)).add(c.blocks().number);
    kernel.launch(*c.stream(), blocks_for(numbers.n, kThreads), kThreads, arguments);
  };
}

// Output [outer, count, inner] of input [outer, rows, inner]; p = rows, q = inner, r = count.
KernelFn gather_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  const Items items = items_of(node);
  const std::int64_t count = node.input(1).shape.num_elements(), n = outputs[0].shape.num_elements();
  const std::string index = load_text(node.input(1).dtype, "a.y", "position");
  const std::string check = str(
      "    const long long picked = ", index,
      ";\n    if (picked < 0 || picked >= a.p) { ls_refuse(a.refusal, a.number, position); continue; }\n");
  // Where there is nothing to take, indices are still looked at.
  if (n == 0)
    return each_kernel("    const long long position = i;\n" + check, {count, items.n, items.inner, count});
  const char* const word = word_of(size_of(outputs[0].dtype));
  return each_kernel(
      str("    const long long row = i / a.q, position = row % a.r, outer = row / a.r;\n", check, "    ((",
          word, "*)a.out)[i] = ((const ", word, "*)a.x)[(outer * a.p + picked) * a.q + i % a.q];\n"),
      {n, items.n, items.inner, count});
}

KernelFn one_hot_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  const std::string index = load_text(node.input(0).dtype, "a.x", "i / a.p");
  return each_kernel(
      str("    ", store_text(outputs[0].dtype, "a.out", "i", str("(long long)(", index, ") == i % a.p")),
          ";\n"),
      {outputs[0].shape.num_elements(), node.get<std::int64_t>("depth")});
}

// The first of the largest, or of the smallest; NaN is more than either. p = elements of a row, q = from one to the next.
KernelFn arg_kernel(const NodeView& node, bool largest) {
  const Items items = items_of(node);
  const DType dtype = node.input(0).dtype;
  const std::string element = load_text(dtype, "a.x", "base + j * a.q");
  return each_kernel(
      str("    const long long base = i / a.q * a.p * a.q + i % a.q;\n    long long best = 0, j = 0;\n    ",
          names_of(dtype).computed, " most = ", element,
          ";\n    for (j = 1; j < a.p && most == most; ++j) {\n      const ", names_of(dtype).computed,
          " x = ", element, ";\n      if (x ", largest ? ">" : "<",
          " most || x != x) { most = x; best = j; }\n    }\n    ((long long*)a.out)[i] = best;\n"),
      {items.count, items.n, items.inner});
}

// x0, x0 + step, ...: p and q are unused.
KernelFn iota_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  const DType dtype = outputs[0].dtype;
  const double start = node.get<double>("start"), step = node.get<double>("step");
  const std::string value =
      is_integer(dtype) ? str(static_cast<std::uint64_t>(static_cast<std::int64_t>(start)), "ULL + ",
                              static_cast<std::uint64_t>(static_cast<std::int64_t>(step)), "ULL * ls_word(i)")
                        : str("ls_cast<", names_of(dtype).result, ">(", literal_of(start), " + ",
                              literal_of(step), " * double(i))");
  return each_kernel(str("    ", store_text(dtype, "a.out", "i", value), ";\n"),
                     {outputs[0].shape.num_elements()});
}

// A piece of `count` rows of a tensor that has `extent` along the axis. p = extent, q = inner, r = count. A place where it does not
// fit is refused.
struct Piece {
  std::int64_t extent, count, inner = 1;
};
Piece piece_of(const NodeView& node, const TensorSpec& whole, const TensorSpec& piece) {
  const auto axis =
      static_cast<std::size_t>(normal_axis(node.get_or<std::int64_t>("axis", 0), node.input(0).shape.rank()));
  Piece rows{whole.shape[axis], piece.shape[axis]};
  for (std::size_t d = axis + 1; d < whole.shape.rank(); ++d) rows.inner *= whole.shape[d];
  return rows;
}
constexpr const char* kBegin =
    "    const long long begin = *(const long long*)a.y;\n"
    "    if (begin < 0 || begin > a.p - a.r) { ls_refuse(a.refusal, a.number, 0); continue; }\n";

KernelFn slice_at_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  const Piece piece = piece_of(node, node.input(0), outputs[0]);
  const char* const word = word_of(size_of(outputs[0].dtype));
  return each_kernel(
      str(kBegin, "    const long long row = a.r * a.q;\n    ((", word, "*)a.out)[i] = ((const ", word,
          "*)a.x)[i / row * a.p * a.q + begin * a.q + i % row];\n"),
      {outputs[0].shape.num_elements(), piece.extent, piece.inner, piece.count});
}

KernelFn unslice_at_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  const Piece piece = piece_of(node, outputs[0], node.input(0));
  const char* const word = word_of(size_of(outputs[0].dtype));
  return each_kernel(
      str(kBegin,
          "    const long long whole = a.p * a.q, within = i % whole - begin * a.q;\n"
          "    const bool inside = within >= 0 && within < a.r * a.q;\n    ((",
          word, "*)a.out)[i] = inside ? ((const ", word, "*)a.x)[i / whole * a.r * a.q + within] : 0;\n"),
      {outputs[0].shape.num_elements(), piece.extent, piece.inner, piece.count});
}

// Its first input, unless some element is refused.
KernelFn checked_kernel(const NodeView& node, std::span<const TensorSpec> outputs,
                        const std::string& refused) {
  return make_element_kernel(node.inputs().first(1), outputs,
                             {str("((", with_attributes(refused, node), ") ? (refuse(), x0) : x0)")});
}

}  // namespace

void add_indexing_kernels(OpRegistry& registry) {
  registry.add_kernel("gather", "cuda", gather_kernel);
  registry.add_kernel("one_hot", "cuda", one_hot_kernel);
  registry.add_kernel("iota", "cuda", iota_kernel);
  registry.add_kernel("slice_at", "cuda", slice_at_kernel);
  registry.add_kernel("unslice_at", "cuda", unslice_at_kernel);
  const auto checked = [](const char* refused) {
    return [refused](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
      return checked_kernel(node, outputs, refused);
    };
  };
  registry.add_kernel("check_indices", "cuda", checked("x0 < 0 || x0 >= (long long)$limit"));
  registry.add_kernel("check_divisors", "cuda", checked("x0 == T(0)"));
  for (const bool largest : {true, false}) {
    registry.add_kernel(largest ? "argmax" : "argmin", "cuda",
                        [largest](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
                          return arg_kernel(node, largest);
                        });
  }
}

}  // namespace lockstep::internal::cuda
