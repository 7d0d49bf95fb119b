// graph/cuda/rows/scans.cpp - sums up to each element, products of all others, and the largest elements: a thread for each row.
#include <string>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/kernels/scan.h"
#include "lockstep/graph/cuda/internal/jit.h"
#include "lockstep/graph/cuda/internal/kernel_set.h"
#include "lockstep/graph/cuda/internal/prelude.h"
#include "lockstep/graph/cuda/internal/types.h"
#include "lockstep/graph/ops/rules/internal/items.h"

namespace lockstep::internal::cuda {

namespace {

std::string rows_source(DType dtype, const std::string& functions, const std::string& body) {
  return str(kPrelude, "typedef ", names_of(dtype).computed, " T;\n",
             "struct Args { const void* in; void *out, *other; long long rows, n, inner, k; };\n",
             "#define X(at) ", load_text(dtype, "a.in", "at"), "\n", functions,
             "extern \"C\" __global__ void kernel(const Args a) {\n"
             "  const long long step = (long long)gridDim.x * blockDim.x;\n"
             "  for (long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x; row < a.rows; row += "
             "step) {\n"
             "    const long long base = row / a.inner * a.n * a.inner + row % a.inner;\n",
             body, "  }\n}\n");
}

KernelFn rows_kernel(const std::string& source, const Items& items, std::int64_t k) {
  if (items.count == 0) return [](KernelContext&) {};
  return [kernel = JitKernel(source), items, k](KernelContext& c) {
    Arguments arguments;
    arguments.add(c.input(0)).add(static_cast<const void*>(c.output(0)));
    arguments.add(static_cast<const void*>(c.num_outputs() > 1 ? c.output(1) : c.scratch()));
    arguments.add(items.count).add(items.n).add(items.inner).add(k);
    kernel.launch(*c.stream(), blocks_for(items.count, kThreads), kThreads, arguments);
  };
}

KernelFn cumsum_kernel(const NodeView& node, std::span<const TensorSpec>) {
  const DType dtype = node.input(0).dtype;
  const bool exclusive = node.get<bool>("exclusive"), reverse = node.get<bool>("reverse");
  const std::string store = store_text(dtype, "a.out", "at", "sum");
  const std::string body = str(
      "    ", is_integer(dtype) ? "ls_word" : "T", " sum = 0;\n    for (long long j = 0; j < a.n; ++j) {\n",
      "      const long long at = base + ", reverse ? "(a.n - 1 - j)" : "j",
      " * a.inner;\n      const T x = X(at);\n",
      exclusive ? str("      ", store, ";\n      sum += x;\n") : str("      sum += x;\n      ", store, ";\n"),
      "    }\n");
  return rows_kernel(rows_source(dtype, "", body), items_of(node), 0);
}

// What the CPU does: the products of the elements before, then times those of the elements behind. 16-bit values keep the first
// in scratch memory, as float.
KernelFn prod_of_others_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  const DType dtype = outputs[0].dtype;
  const std::string kept = size_of(dtype) == 2 ? "a.other" : "a.out";
  const std::string others = str("((T*)", kept, ")[at]");
  const std::string body =
      str("    T before = 1, behind = 1;\n    for (long long j = 0; j < a.n; ++j) {\n"
          "      const long long at = base + j * a.inner;\n      ",
          others,
          " = before;\n      before *= X(at);\n    }\n    for (long long j = a.n; j-- > 0;) {\n"
          "      const long long at = base + j * a.inner;\n      const T x = X(at);\n      ",
          store_text(dtype, "a.out", "at", str(others, " * behind")), ";\n      behind *= x;\n    }\n");
  return rows_kernel(rows_source(dtype, "", body), items_of(node), 0);
}

// A heap of the best so far, of which the last in order is on top; then sorted.
constexpr const char* kHeap = R"(
__device__ inline bool beats(T x, T y) { return x > y || (x != x && y == y); }
__device__ inline bool before(const Args& a, long long base, long long i, long long j) {
  const T x = X(base + i), y = X(base + j);
  return beats(x, y) || (!beats(y, x) && i < j);
}
__device__ inline void sink(const Args& a, long long base, long long* heap, long long at, long long size) {
  const long long item = heap[at];
  for (long long child = 2 * at + 1; child < size; child = 2 * at + 1) {
    if (child + 1 < size && before(a, base, heap[child], heap[child + 1])) ++child;
    if (before(a, base, heap[child], item)) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = item;
}
)";

KernelFn top_k_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  const DType dtype = node.input(0).dtype;
  const std::int64_t k = node.get<std::int64_t>("k");
  if (k == 0) return [](KernelContext&) {};
  const Shape& shape = node.input(0).shape;
  const std::string body =
      str("    long long* const heap = (long long*)a.other + row * a.k;\n"
          "    for (long long i = 0; i < a.k; ++i) heap[i] = i;\n"
          "    for (long long i = a.k / 2; i-- > 0;) sink(a, base, heap, i, a.k);\n"
          "    for (long long i = a.k; i < a.n; ++i) {\n"
          "      if (!beats(X(base + i), X(base + heap[0]))) continue;\n"
          "      heap[0] = i;\n      sink(a, base, heap, 0, a.k);\n    }\n"
          "    for (long long size = a.k - 1; size > 0; --size) {\n"
          "      const long long first = heap[0];\n      heap[0] = heap[size];\n      heap[size] = first;\n"
          "      sink(a, base, heap, 0, size);\n    }\n"
          "    for (long long i = 0; i < a.k; ++i) ",
          store_text(outputs[0].dtype, "a.out", "row * a.k + i", "X(base + heap[i])"), ";\n");
  return rows_kernel(rows_source(dtype, kHeap, body),
                     items_along(shape, static_cast<std::int64_t>(shape.rank()) - 1), k);
}

}  // namespace

void add_scan_kernels(OpRegistry& registry) {
  registry.add_kernel("cumsum", "cuda", cumsum_kernel);
  registry.add_kernel("top_k", "cuda", top_k_kernel);
  KernelDef others(prod_of_others_kernel);
  others.split = [](const NodeView& node, std::span<const TensorSpec>) {
    return Split{1, kernels::prod_of_others_scratch(node.input(0).dtype, node.input(0).shape.num_elements()),
                 false};
  };
  registry.add_kernel("prod_of_others", "cuda", std::move(others));
}

}  // namespace lockstep::internal::cuda
