// graph/cuda/rows/scans.cpp - sums up to each element, products of all others, and the largest elements.
//
// Sums up to each element, of rows that are long enough, are computed by blocks of threads: one for each row, or for each chunk of a
// row where there are few rows, whose sums a kernel before finds. A few of the largest of a long row are looked for by a block,
// one after another. All else is done by a thread for each row. How a row is cut follows from the shape alone, so that results are the
// same on each card.
#include <algorithm>
#include <cstdint>
#include <optional>
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

// A thread for each row: rows side by side, whose elements neighbours read together, and short ones.
KernelFn cumsum_by_threads(const NodeView& node, const Items& items) {
  const DType dtype = node.input(0).dtype;
  const bool exclusive = node.get<bool>("exclusive"), reverse = node.get<bool>("reverse");
  const std::string store = store_text(dtype, "a.out", "at", "sum");
  const std::string body = str(
      "    ", is_integer(dtype) ? "ls_word" : "T", " sum = 0;\n    for (long long j = 0; j < a.n; ++j) {\n",
      "      const long long at = base + ", reverse ? "(a.n - 1 - j)" : "j",
      " * a.inner;\n      const T x = X(at);\n",
      exclusive ? str("      ", store, ";\n      sum += x;\n") : str("      sum += x;\n      ", store, ";\n"),
      "    }\n");
  return rows_kernel(rows_source(dtype, "", body), items, 0);
}

// How rows are cut for blocks of threads.
struct Chunks {
  std::int64_t length = 0;  // elements of a chunk
  std::int64_t count = 1;   // of a row
};
constexpr std::int64_t kTogether = 4;  // elements that follow each other, of one thread

Chunks chunks_of(const Items& items) {
  constexpr std::int64_t kBlocks = 512, kLeast = kTogether * kThreads * 4, kMost = 1024;
  const std::int64_t rows = std::max<std::int64_t>(items.count, 1);
  const std::int64_t wanted =
      std::clamp<std::int64_t>(kBlocks / rows, 1, std::min(kMost, (items.n + kLeast - 1) / kLeast));
  const std::int64_t tile = kTogether * kThreads;
  const std::int64_t length = ((items.n + wanted - 1) / wanted + tile - 1) / tile * tile;
  return {length, (items.n + length - 1) / length};
}

bool goes_by_blocks(const Items& items) {
  constexpr std::int64_t kRowOfABlock = 64, kManyRows = 4096;
  return items.n >= kRowOfABlock && (items.inner == 1 || items.count < kManyRows);
}

// The block of each chunk runs `body`; ELEMENT(j) is where element j of the row lies, in the order of the sum.
std::string chunks_source(DType dtype, bool reverse, const std::string& functions, const std::string& body) {
  return str(kPrelude, "typedef ", names_of(dtype).computed, " T;\ntypedef ",
             is_integer(dtype) ? "ls_word" : "T",
             " S;\nstruct Args { const void* in; void* out; void* sums; long long rows, n, inner, length, "
             "chunks; };\n",
             "#define X(at) ", load_text(dtype, "a.in", "at"), "\n#define ELEMENT(j) (base + ",
             reverse ? "(a.n - 1 - (j))" : "(j)", " * a.inner)\n", functions,
             "extern \"C\" __global__ void kernel(const Args a) {\n  __shared__ S shared[", kThreads,
             "];\n  S* const sums = (S*)a.sums;\n  (void)sums;\n"
             "  for (long long item = blockIdx.x; item < a.rows * a.chunks; item += gridDim.x) {\n"
             "    const long long row = item / a.chunks, chunk = item % a.chunks;\n"
             "    const long long base = row / a.inner * a.n * a.inner + row % a.inner;\n"
             "    const long long begin = chunk * a.length;\n"
             "    const long long end = begin + a.length < a.n ? begin + a.length : a.n;\n",
             body, "  }\n}\n");
}

constexpr const char* kChunkSums = R"(
    S mine = 0;
    for (long long j = begin + threadIdx.x; j < end; j += blockDim.x) mine += X(ELEMENT(j));
    mine = ls_block_sum(mine, shared);
    if (threadIdx.x == 0) sums[item] = mine;
)";

// What the threads before have, and what all have.
constexpr const char* kSumBefore = R"(
__device__ inline S sum_before(S mine, S* shared, S& all) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  S upto = mine;
  for (unsigned step = 1; step < 32; step *= 2) {
    const S other = __shfl_up_sync(0xFFFFFFFFU, upto, step);
    if (lane >= step) upto += other;
  }
  S before = __shfl_up_sync(0xFFFFFFFFU, upto, 1);
  if (lane == 0) before = 0;
  __syncthreads();
  if (lane == 31) shared[warp] = upto;
  __syncthreads();
  all = 0;
  for (unsigned i = 0; i < blockDim.x / 32; ++i) {
    if (i == warp) before += all;
    all += shared[i];
  }
  return before;
}
)";

KernelFn cumsum_kernel(const NodeView& node, std::span<const TensorSpec>) {
  const Items items = items_of(node);
  if (!goes_by_blocks(items)) return cumsum_by_threads(node, items);
  if (items.count == 0) return [](KernelContext&) {};
  const DType dtype = node.input(0).dtype;
  const bool exclusive = node.get<bool>("exclusive"), reverse = node.get<bool>("reverse");
  const Chunks chunks = chunks_of(items);
  const std::string store = store_text(dtype, "a.out", "ELEMENT(j)", "sum");
  const std::string body = str(
      "    S carry = 0;\n"
      "    if (chunk > 0) {\n"
      "      for (long long i = threadIdx.x; i < chunk; i += blockDim.x) carry += sums[row * a.chunks + i];\n"
      "      carry = ls_block_sum(carry, shared);\n    }\n"
      "    for (long long first = begin; first < end; first += ",
      kTogether * kThreads, ") {\n      const long long mine = first + threadIdx.x * ", kTogether,
      ";\n      S x[", kTogether, "], run = 0;\n#pragma unroll\n      for (int e = 0; e < ", kTogether,
      "; ++e) {\n        x[e] = mine + e < end ? (S)X(ELEMENT(mine + e)) : (S)0;\n        run += x[e];\n     "
      " }\n"
      "      S all, sum = carry + sum_before(run, shared, all);\n"
      "#pragma unroll\n      for (int e = 0; e < ",
      kTogether, "; ++e) {\n        const long long j = mine + e;\n        if (j >= end) break;\n",
      exclusive ? str("        ", store, ";\n        sum += x[e];\n")
                : str("        sum += x[e];\n        ", store, ";\n"),
      "      }\n      carry += all;\n    }\n");
  const JitKernel kernel(chunks_source(dtype, reverse, kSumBefore, body));
  std::optional<JitKernel> first;
  if (chunks.count > 1) first.emplace(chunks_source(dtype, reverse, "", kChunkSums));
  return [kernel, first, items, chunks](KernelContext& c) {
    const auto launch = [&](const JitKernel& what) {
      Arguments arguments;
      arguments.add(c.input(0))
          .add(static_cast<const void*>(c.output(0)))
          .add(static_cast<const void*>(c.scratch()));
      arguments.add(items.count).add(items.n).add(items.inner).add(chunks.length).add(chunks.count);
      what.launch(*c.stream(), blocks_for(items.count * chunks.count, 1), kThreads, arguments);
    };
    if (first) launch(*first);
    launch(kernel);
  };
}

// Room for the sums of chunks.
Split cumsum_split(const NodeView& node, std::span<const TensorSpec>) {
  const Items items = items_of(node);
  if (!goes_by_blocks(items)) return {};
  const std::int64_t count = chunks_of(items).count;
  return Split{1, count > 1 ? static_cast<std::size_t>(items.count * count) * sizeof(double) : 0, false};
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

constexpr const char* kOrder = R"(
__device__ inline bool beats(T x, T y) { return x > y || (x != x && y == y); }
__device__ inline bool before(T x, long long i, T y, long long j) { return beats(x, y) || (!beats(y, x) && i < j); }
)";

// A heap of the best so far, of which the last in order is on top; then sorted.
constexpr const char* kHeap = R"(
__device__ inline bool before(const Args& a, long long base, long long i, long long j) {
  return before(X(base + i), i, X(base + j), j);
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

// A few of a long row: a block looks for each of them, the next behind the last in order.
constexpr std::int64_t kLongRow = 256, kFew = 128, kVeryFew = 8, kManyRowsToSelect = 4096;
constexpr const char* kSelect = R"(
    const long long base = row * a.n;
    T last = 0;
    long long last_at = -1;
    for (long long i = 0; i < a.k; ++i) {
      T best = 0;
      long long best_at = -1;
      for (long long j = threadIdx.x; j < a.n; j += blockDim.x) {
        const T x = X(base + j);
        if (last_at >= 0 && !before(last, last_at, x, j)) continue;
        if (best_at < 0 || before(x, j, best, best_at)) best = x, best_at = j;
      }
      __syncthreads();
      shared[threadIdx.x] = best;
      places[threadIdx.x] = best_at;
      __syncthreads();
      for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        const unsigned other = threadIdx.x + half;
        if (threadIdx.x < half && places[other] >= 0 &&
            (places[threadIdx.x] < 0 || before(shared[other], places[other], shared[threadIdx.x], places[threadIdx.x]))) {
          shared[threadIdx.x] = shared[other];
          places[threadIdx.x] = places[other];
        }
        __syncthreads();
      }
      last = shared[0];
      last_at = places[0];
      if (threadIdx.x == 0) {
        ((long long*)a.other)[row * a.k + i] = last_at;
        STORE;
      }
    }
)";

KernelFn select_kernel(DType dtype, const Items& items, std::int64_t k) {
  if (items.count == 0) return [](KernelContext&) {};
  const std::string source = str(
      kPrelude, "typedef ", names_of(dtype).computed, " T;\n",
      "struct Args { const void* in; void *out, *other; long long rows, n, k; };\n", "#define X(at) ",
      load_text(dtype, "a.in", "at"), "\n#define STORE ", store_text(dtype, "a.out", "row * a.k + i", "last"),
      "\n", kOrder, "extern \"C\" __global__ void kernel(const Args a) {\n  __shared__ T shared[", kThreads,
      "];\n  __shared__ long long places[", kThreads,
      "];\n  for (long long row = blockIdx.x; row < a.rows; row += gridDim.x) {\n", kSelect, "  }\n}\n");
  return [kernel = JitKernel(source), items, k](KernelContext& c) {
    Arguments arguments;
    arguments.add(c.input(0))
        .add(static_cast<const void*>(c.output(0)))
        .add(static_cast<const void*>(c.output(1)));
    arguments.add(items.count).add(items.n).add(k);
    kernel.launch(*c.stream(), blocks_for(items.count, 1), kThreads, arguments);
  };
}

KernelFn top_k_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  const DType dtype = node.input(0).dtype;
  const std::int64_t k = node.get<std::int64_t>("k");
  if (k == 0) return [](KernelContext&) {};
  const Shape& shape = node.input(0).shape;
  const Items items = items_along(shape, static_cast<std::int64_t>(shape.rank()) - 1);
  if (items.n >= kLongRow && k <= (items.count > kManyRowsToSelect ? kVeryFew : kFew))
    return select_kernel(dtype, items, k);
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
  return rows_kernel(rows_source(dtype, str(kOrder, kHeap), body), items, k);
}

}  // namespace

void add_scan_kernels(OpRegistry& registry) {
  KernelDef sums(cumsum_kernel);
  sums.split = cumsum_split;
  registry.add_kernel("cumsum", "cuda", std::move(sums));
  registry.add_kernel("top_k", "cuda", top_k_kernel);
  KernelDef others(prod_of_others_kernel);
  others.split = [](const NodeView& node, std::span<const TensorSpec>) {
    return Split{1, kernels::prod_of_others_scratch(node.input(0).dtype, node.input(0).shape.num_elements()),
                 false};
  };
  registry.add_kernel("prod_of_others", "cuda", std::move(others));
}

}  // namespace lockstep::internal::cuda
