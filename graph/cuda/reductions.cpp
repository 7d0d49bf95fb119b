// graph/cuda/reductions.cpp - sums, means, extremes over axes.
//
// Where an axis that is kept lies innermost and there are many results, a thread computes each of them, beside its neighbours.
// Otherwise a block of threads does, and where results are few, several blocks a part each, which a second kernel joins. Who takes
// which elements follows from shapes alone, so that a sum is the same each time.
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
constexpr std::int64_t kManyResults = 4096;  // enough for a thread each
constexpr std::int64_t kShort = 32;          // so few elements that a block would be idle
constexpr std::int64_t kPart = 8192;         // elements that a block should have at least
constexpr std::int64_t kMostParts = 256;

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
  std::int64_t parts = 1;
  bool by_thread = false;
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
  walk.by_thread = walk.reduced.count <= kShort || (!inner_is_reduced && results >= kManyResults);
  if (!walk.by_thread && results < kMostParts)
    walk.parts = std::clamp<std::int64_t>(walk.reduced.count / kPart, 1, kMostParts / results);
  return walk;
}

// What a reduction does, as text: T is what an element is computed as, Acc what is kept.
struct Rule {
  std::string acc, init, take, join, finish;
  std::string second = {};  // of a second output
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
            "acc.squares / T(count)"};
  }
  // The mean of this replica's part by its weight among all elements, whose number is the second input.
  if (op == "global_mean")
    return {wide, "0", "acc += Acc(x);", "acc += other;",
            "count == 0 ? T(0) : T(double(T(acc / Acc(count))) * (double(count) / double(*a.all < 1 ? 1 : "
            "*a.all)))"};
  return {"ls_logsum<" + type + ">", "ls_logsum<" + type + ">()", "acc.take(x);", "acc.join(other);",
          "acc.finish()"};
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

// A thread for each result: of the elements, or of the parts.
std::string by_thread_text(const Rule& rule, DType dtype, bool of_parts) {
  return str(
      "extern \"C\" __global__ void kernel(const Args a) {\n"
      "  const long long step = (long long)gridDim.x * blockDim.x;\n"
      "  for (long long r = (long long)blockIdx.x * blockDim.x + threadIdx.x; r < a.results; r += step) {\n"
      "    Acc acc = ",
      rule.init, ";\n",
      of_parts ? std::string("    for (long long j = 0; j < a.parts; ++j) join(acc, ((const "
                             "Acc*)a.partial)[r * a.parts + j]);\n")
               : str("    const long long base = kept_at(a, r);\n"
                     "    for (long long j = 0; j < a.count; ++j) take(acc, ",
                     load_text(dtype, "a.in", "base + reduced_at(a, j)"), ");\n"),
      "    finish(a, r, acc);\n  }\n}\n");
}

std::string by_block_text(const Rule& rule, DType dtype) {
  return str(
      "extern \"C\" __global__ void kernel(const Args a) {\n"
      "  __shared__ unsigned long long room[",
      kThreads,
      " * sizeof(Acc) / 8 + 1];\n  Acc* const shared = (Acc*)room;\n"
      "  for (long long job = blockIdx.x; job < a.results * a.parts; job += gridDim.x) {\n"
      "    const long long r = job / a.parts, part = job % a.parts, base = kept_at(a, r);\n"
      "    const long long begin = a.count * part / a.parts, end = a.count * (part + 1) / a.parts;\n"
      "    Acc acc = ",
      rule.init, ";\n    for (long long j = begin + threadIdx.x; j < end; j += blockDim.x) take(acc, ",
      load_text(dtype, "a.in", "base + reduced_at(a, j)"),
      ");\n"
      "    shared[threadIdx.x] = acc;\n    __syncthreads();\n"
      "    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {\n"
      "      if (threadIdx.x < half) join(shared[threadIdx.x], shared[threadIdx.x + half]);\n      "
      "__syncthreads();\n    }\n"
      "    if (threadIdx.x == 0) {\n"
      "      if (a.parts == 1) finish(a, r, shared[0]); else ((Acc*)a.partial)[job] = shared[0];\n    }\n"
      "    __syncthreads();\n  }\n}\n");
}

KernelFn reduction_kernel(const std::string& op, const TensorSpec& input,
                          const std::vector<std::int64_t>& axes) {
  const Walk walk = walk_of(input.shape, axes);
  const Rule rule = rule_of(op, input.dtype);
  const std::string header = header_of(rule, input.dtype, walk);
  const auto pass = [walk](const JitKernel& kernel, KernelContext& c, std::int64_t jobs,
                           unsigned threads_a_job) {
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
    const unsigned blocks = threads_a_job == 1 ? blocks_for(jobs, kThreads) : blocks_for(jobs, 1);
    kernel.launch(*c.stream(), blocks, kThreads, arguments);
  };
  if (walk.kept.count == 0) return [](KernelContext&) {};
  if (walk.by_thread) {
    return [pass, walk, kernel = JitKernel(header + by_thread_text(rule, input.dtype, false))](
               KernelContext& c) { pass(kernel, c, walk.kept.count, 1); };
  }
  const JitKernel kernel(header + by_block_text(rule, input.dtype));
  if (walk.parts == 1)
    return [pass, walk, kernel](KernelContext& c) { pass(kernel, c, walk.kept.count, kThreads); };
  return [pass, walk, kernel,
          joining = JitKernel(header + by_thread_text(rule, input.dtype, true))](KernelContext& c) {
    pass(kernel, c, walk.kept.count * walk.parts, kThreads);
    pass(joining, c, walk.kept.count, 1);
  };
}

using AxesOf = std::function<std::vector<std::int64_t>(const NodeView&, std::span<const TensorSpec> outputs)>;

void add(OpRegistry& registry, const char* name, const char* op, const AxesOf& axes_of) {
  KernelDef def([op, axes_of](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return reduction_kernel(op, node.input(0), axes_of(node, outputs));
  });
  def.split = [axes_of](const NodeView& node, std::span<const TensorSpec> outputs) {
    const Walk walk = walk_of(node.input(0).shape, axes_of(node, outputs));
    return Split{1, walk.parts == 1 ? 0 : static_cast<std::size_t>(walk.kept.count * walk.parts) * kAccBytes,
                 false};
  };
  registry.add_kernel(name, "cuda", std::move(def));
}

}  // namespace

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
