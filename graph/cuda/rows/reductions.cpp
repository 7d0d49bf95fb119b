// graph/cuda/rows/reductions.cpp - sums, means, extremes over axes.
//
// The rows of a matrix, to one row: a block takes 32 columns, some rows at a time. Few elements a result, or many results beside
// each other: a thread computes each. Otherwise a block of threads does. If that gives few blocks, several take a part each, which
// a second kernel joins. Who takes which elements follows from shapes alone, so that a sum is the same each time.
#include "lockstep/graph/cuda/rows/internal/reductions.h"

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/internal/jit.h"
#include "lockstep/graph/cuda/internal/kernel_set.h"
#include "lockstep/graph/cuda/internal/prelude.h"
#include "lockstep/graph/cuda/internal/types.h"
#include "lockstep/graph/ops/rules/internal/axes.h"

namespace lockstep::internal::cuda {

namespace {

constexpr std::size_t kAccBytes = 24;        // of one that is not finished
constexpr std::int64_t kShort = 32;          // so few elements that a block would be idle
constexpr std::int64_t kManyResults = 4096;  // enough for a thread each
constexpr std::int64_t kPart = 8192;         // elements that a block should have at least
constexpr std::int64_t kPartOfRows = 64;     // rows, likewise
constexpr std::int64_t kMostParts = 256;
constexpr std::int64_t kTile = 32;             // of a block that takes columns
constexpr std::int64_t kManyBlocks = 4 * 132;  // as many as keep a card busy

// Axes that are walked together: neighbours are one axis where memory allows it.
struct Axes {
  std::vector<std::int64_t> extents, strides;
  std::int64_t count = 1;

  void add(std::int64_t extent, std::int64_t stride) {
    count *= extent;
    if (extent == 1) return;
    if (!extents.empty() && strides.back() == stride * extent) {
      extents.back() *= extent;
      strides.back() = stride;
    } else {
      extents.push_back(extent);
      strides.push_back(stride);
    }
  }
};

struct Walk {
  Axes kept, reduced;
  enum class Way : std::uint8_t { kThread, kColumns, kBlock };
  std::int64_t parts = 1;
  Way way = Way::kBlock;

  std::int64_t column_blocks() const { return (kept.count + kTile - 1) / kTile; }
};

Walk walk_of(const Shape& shape, const std::vector<std::int64_t>& axes) {
  Walk walk;
  std::vector<std::int64_t> strides(shape.rank(), 1);
  for (std::size_t i = shape.rank(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  bool inner_is_reduced = false;
  for (std::size_t i = 0; i < shape.rank(); ++i) {
    const bool reduced = std::ranges::find(axes, static_cast<std::int64_t>(i)) != axes.end();
    (reduced ? walk.reduced : walk.kept).add(shape[i], strides[i]);
    if (shape[i] != 1) inner_is_reduced = reduced;
  }
  const std::int64_t results = std::max<std::int64_t>(walk.kept.count, 1);
  const bool is_matrix = !inner_is_reduced && walk.kept.extents.size() == 1 &&
                         walk.reduced.extents.size() == 1 && walk.reduced.strides[0] == walk.kept.count;
  if (is_matrix && walk.reduced.count > kShort) {
    walk.way = Walk::Way::kColumns;
    walk.parts = std::clamp<std::int64_t>(
        kManyBlocks / walk.column_blocks(), 1,
        std::min(kMostParts, std::max<std::int64_t>(walk.reduced.count / kPartOfRows, 1)));
  } else if (walk.reduced.count <= kShort || (!inner_is_reduced && results >= kManyResults)) {
    walk.way = Walk::Way::kThread;
  } else if (results < kMostParts) {
    walk.parts = std::clamp<std::int64_t>(walk.reduced.count / kPart, 1, kMostParts / results);
  }
  return walk;
}

// What a reduction does, as text: T is what an element is computed as, Acc what is kept.
struct Rule {
  std::string acc, init, take, join, finish;
  std::string second = {};  // of a second output
  bool is_short = true;     // so that a loop over elements is worth unrolling
};

Rule rule_of(const std::string& op, DType dtype) {
  const std::string type = names_of(dtype).computed;
  const bool whole = is_integer(dtype);
  const std::string wide = whole ? "ls_word" : type;  // sums of whole numbers wrap
  if (op == "sum") return {wide, "0", "acc += Acc(x);", "acc += other;", "acc"};
  if (op == "mean") return {wide, "0", "acc += Acc(x);", "acc += other;", "acc / Acc(count)"};
  if (op == "prod") return {wide, "1", "acc *= Acc(x);", "acc *= other;", "acc"};
  if (op == "any") return {"bool", "false", "acc = acc || x;", "acc = acc || other;", "acc"};
  if (op == "all") return {"bool", "true", "acc = acc && x;", "acc = acc && other;", "acc"};
  if (op == "max")
    return {type, "ls_lowest<Acc>()", "acc = ls_max(acc, x);", "acc = ls_max(acc, other);", "acc"};
  if (op == "min")
    return {type, "ls_highest<Acc>()", "acc = ls_min(acc, x);", "acc = ls_min(acc, other);", "acc"};
  if (op == "moments") {
    return {"ls_moments<" + type + ">",
            "ls_moments<" + type + ">()",
            "acc.take(x);",
            "acc.join(other);",
            "acc.mean",
            "acc.squares / T(count)",
            false};
  }
  // The mean of this replica's part by its weight among all elements, whose number is the second input.
  if (op == "global_mean")
    return {wide, "0", "acc += Acc(x);", "acc += other;",
            "count == 0 ? T(0) : T(double(T(acc / Acc(count))) * (double(count) / double(*a.all < 1 ? 1 : "
            "*a.all)))"};
  return {"ls_logsum<" + type + ">",
          "ls_logsum<" + type + ">()",
          "acc.take(x);",
          "acc.join(other);",
          "acc.finish()",
          {},
          false};
}

std::string axes_text(const Axes& axes, const std::string& name) {
  std::string text =
      str("__device__ inline long long ", name, "_at(const Args& a, long long i) {\n  long long at = 0;\n");
  for (std::size_t axis = axes.extents.size(); axis-- > 0;) {
    if (axis > 0) {
      text += str("  at += i % a.", name, "_extents[", axis, "] * a.", name, "_strides[", axis, "]; i /= a.",
                  name, "_extents[", axis, "];\n");
    } else {
      text += str("  at += i * a.", name, "_strides[0];\n");
    }
  }
  return text + "  return at;\n}\n";
}

std::string header_of(const Rule& rule, DType dtype, const Walk& walk) {
  std::string text = kPrelude;
  text +=
      "struct Args {\n  const void* in; void *out, *second, *partial; const long long* all; long long "
      "results, "
      "count, parts;\n";
  const auto declare = [&](const Axes& axes, const char* name) {
    if (axes.extents.empty()) return;
    text += str("  long long ", name, "_extents[", axes.extents.size(), "], ", name, "_strides[",
                axes.extents.size(), "];\n");
  };
  declare(walk.kept, "kept");
  declare(walk.reduced, "reduced");
  text += "};\n" + axes_text(walk.kept, "kept") + axes_text(walk.reduced, "reduced");
  text += str("typedef ", names_of(dtype).computed, " T;\ntypedef ", rule.acc, " Acc;\n");
  text += str("__device__ inline void take(Acc& acc, T x) { ", rule.take, " }\n");
  text += str("__device__ inline void join(Acc& acc, const Acc& other) { ", rule.join, " }\n");
  text += "__device__ inline void finish(const Args& a, long long result, const Acc& acc) {\n";
  text += "  const long long count = a.count; (void)count;\n  ";
  text += store_text(dtype, "a.out", "result", rule.finish) + ";\n";
  if (!rule.second.empty()) text += "  " + store_text(dtype, "a.second", "result", rule.second) + ";\n";
  text += "}\n";
  return text;
}

const char* unroll_of(const Rule& rule, std::size_t axes = 1) {
  return rule.is_short && axes <= 1 ? "#pragma unroll 4\n" : "#pragma unroll 1\n";
}

std::string by_thread_text(const Rule& rule, DType dtype) {
  return str(
      "extern \"C\" __global__ void kernel(const Args a) {\n"
      "  const long long step = (long long)gridDim.x * blockDim.x;\n"
      "  for (long long r = (long long)blockIdx.x * blockDim.x + threadIdx.x; r < a.results; r += step) {\n"
      "    Acc acc = ",
      rule.init, ";\n    const long long base = kept_at(a, r);\n",
      "    for (long long j = 0; j < a.count; ++j) take(acc, ",
      load_text(dtype, "a.in", "base + reduced_at(a, j)"), ");\n    finish(a, r, acc);\n  }\n}\n");
}

// Columns side by side, so that neighbours are read by neighbours; `rows` threads for each, of which the first joins what the
// others have and goes on to `done` with the column as r.
std::string columns_text(const Rule& rule, std::int64_t rows, const std::string& take,
                         const std::string& done) {
  return str(
      "  __shared__ unsigned long long room[", rows, " * ", kTile,
      " * sizeof(Acc) / 8 + 1];\n  Acc* const shared = (Acc*)room;\n  const int column = threadIdx.x % ",
      kTile, ", own = threadIdx.x / ", kTile, ";\n    const long long r = tile * ", kTile,
      " + column;\n    Acc acc = ", rule.init, ";\n    if (r < a.results) {\n", take,
      "    }\n    shared[threadIdx.x] = acc;\n    __syncthreads();\n"
      "    if (own == 0 && r < a.results) {\n      for (int i = 1; i < ",
      rows, "; ++i) join(acc, shared[i * ", kTile, " + column]);\n      ", done, "\n    }\n");
}

std::string by_columns_text(const Rule& rule, DType dtype) {
  return str(
      "extern \"C\" __global__ void kernel(const Args a) {\n"
      "  const long long tile = blockIdx.x / a.parts, part = blockIdx.x % a.parts;\n"
      "  const long long begin = a.count * part / a.parts, end = a.count * (part + 1) / a.parts;\n",
      columns_text(
          rule, kThreads / kTile,
          str(unroll_of(rule), "      for (long long j = begin + own; j < end; j += ", kThreads / kTile,
              ") take(acc, ", load_text(dtype, "a.in", "j * a.results + r"), ");\n"),
          "if (a.parts == 1) finish(a, r, acc); else ((Acc*)a.partial)[part * a.results + r] = acc;"),
      "}\n");
}

// What the parts of all results have come to: one row of results for each part.
constexpr unsigned kJoiningThreads = 1024;
std::string joining_text(const Rule& rule) {
  const std::int64_t rows = kJoiningThreads / kTile;
  return str("extern \"C\" __global__ void kernel(const Args a) {\n  const long long tile = blockIdx.x;\n",
             columns_text(rule, rows,
                          str(unroll_of(rule), "      for (long long j = own; j < a.parts; j += ", rows,
                              ") join(acc, ((const Acc*)a.partial)[j * a.results + r]);\n"),
                          "finish(a, r, acc);"),
             "}\n");
}

std::string by_block_text(const Rule& rule, DType dtype, std::size_t axes) {
  return str(
      "extern \"C\" __global__ void kernel(const Args a) {\n"
      "  __shared__ unsigned long long room[",
      kThreads,
      " * sizeof(Acc) / 8 + 1];\n  Acc* const shared = (Acc*)room;\n"
      "  for (long long job = blockIdx.x; job < a.results * a.parts; job += gridDim.x) {\n"
      "    const long long r = job / a.parts, part = job % a.parts, base = kept_at(a, r);\n"
      "    const long long begin = a.count * part / a.parts, end = a.count * (part + 1) / a.parts;\n"
      "    Acc acc = ",
      rule.init, ";\n", unroll_of(rule, axes),
      "    for (long long j = begin + threadIdx.x; j < end; j += blockDim.x) take(acc, ",
      load_text(dtype, "a.in", "base + reduced_at(a, j)"),
      ");\n"
      "    shared[threadIdx.x] = acc;\n    __syncthreads();\n"
      "    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {\n"
      "      if (threadIdx.x < half) join(shared[threadIdx.x], shared[threadIdx.x + half]);\n      "
      "__syncthreads();\n    }\n"
      "    if (threadIdx.x == 0) {\n"
      "      if (a.parts == 1) finish(a, r, shared[0]); else ((Acc*)a.partial)[part * a.results + r] = "
      "shared[0];\n"
      "    }\n"
      "    __syncthreads();\n  }\n}\n");
}

KernelFn reduction_kernel(const std::string& op, const TensorSpec& input,
                          const std::vector<std::int64_t>& axes) {
  const Walk walk = walk_of(input.shape, axes);
  const Rule rule = rule_of(op, input.dtype);
  const std::string header = header_of(rule, input.dtype, walk);
  const auto pass = [walk](const JitKernel& kernel, KernelContext& c, std::int64_t blocks, unsigned threads) {
    Arguments arguments;
    arguments.add(c.input(0))
        .add(c.output(0))
        .add(c.num_outputs() > 1 ? c.output(1) : nullptr)
        .add(c.scratch())
        .add(c.num_inputs() > 1 ? c.input(1) : nullptr)
        .add(walk.kept.count)
        .add(walk.reduced.count)
        .add(walk.parts);
    for (const Axes* each : {&walk.kept, &walk.reduced}) arguments.add(each->extents).add(each->strides);
    kernel.launch(*c.stream(), static_cast<unsigned>(blocks), threads, arguments);
  };
  if (walk.kept.count == 0) return [](KernelContext&) {};
  std::string text;
  std::int64_t blocks = 0;
  switch (walk.way) {
    case Walk::Way::kThread:
      text = by_thread_text(rule, input.dtype);
      blocks = blocks_for(walk.kept.count, kThreads);
      break;
    case Walk::Way::kColumns:
      text = by_columns_text(rule, input.dtype);
      blocks = walk.column_blocks() * walk.parts;
      break;
    case Walk::Way::kBlock:
      text = by_block_text(rule, input.dtype, walk.reduced.extents.size());
      blocks = blocks_for(walk.kept.count * walk.parts, 1);
      break;
  }
  const JitKernel kernel(header + text);
  if (walk.parts == 1) return [pass, blocks, kernel](KernelContext& c) { pass(kernel, c, blocks, kThreads); };
  return [pass, walk, blocks, kernel, joining = JitKernel(header + joining_text(rule))](KernelContext& c) {
    pass(kernel, c, blocks, kThreads);
    pass(joining, c, walk.column_blocks(), kJoiningThreads);
  };
}

using AxesOf = std::function<std::vector<std::int64_t>(const NodeView&, std::span<const TensorSpec> outputs)>;

void add(OpRegistry& registry, const char* name, const char* op, const AxesOf& axes_of) {
  KernelDef def([op, axes_of](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return reduction_kernel(op, node.input(0), axes_of(node, outputs));
  });
  def.split = [axes_of](const NodeView& node, std::span<const TensorSpec> outputs) {
    return Split{1, sum_room(node.input(0).shape, axes_of(node, outputs)), false};
  };
  registry.add_kernel(name, "cuda", std::move(def));
}

}  // namespace

KernelFn make_sum_kernel(const TensorSpec& input, const std::vector<std::int64_t>& axes) {
  return reduction_kernel("sum", input, axes);
}

std::size_t sum_room(const Shape& input, const std::vector<std::int64_t>& axes) {
  const Walk walk = walk_of(input, axes);
  return walk.parts == 1 ? 0 : static_cast<std::size_t>(walk.kept.count * walk.parts) * kAccBytes;
}

void add_reduction_kernels(OpRegistry& registry) {
  for (const char* op : {"sum", "mean", "max", "min", "prod", "any", "all", "logsumexp", "moments"})
    add(registry, op, op,
        [](const NodeView& node, std::span<const TensorSpec>) { return reduced_axes(node); });
  for (const char* op : {"global_sum", "global_mean"}) {
    add(registry, op, std::string_view(op) == "global_sum" ? "sum" : op,
        [](const NodeView& node, std::span<const TensorSpec>) {
          return reduced_axes({}, node.input(0).shape.rank());
        });
  }
  add(registry, "sum_to", "sum", [](const NodeView& node, std::span<const TensorSpec> outputs) {
    return summed_axes(node.input(0).shape, outputs[0].shape);
  });
}

}  // namespace lockstep::internal::cuda
