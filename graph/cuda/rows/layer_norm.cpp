// graph/cuda/rows/layer_norm.cpp - normalisation over the last axes, and what flows back.
//
// Threads keep a row in registers, so that it is read once. What flows into gamma and beta is added up on the way: each block has
// a sum of its own, in the order of its rows, and a second kernel adds these. Rows that are too long are gone through as often as
// needed, a block of threads each, and once more by columns.
#include <algorithm>
#include <optional>
#include <string>

#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/internal/elementwise.h"
#include "lockstep/graph/cuda/internal/jit.h"
#include "lockstep/graph/cuda/internal/kernel_set.h"
#include "lockstep/graph/cuda/internal/prelude.h"
#include "lockstep/graph/cuda/internal/types.h"
#include "lockstep/graph/cuda/rows/internal/rows.h"
#include "lockstep/graph/ops/rules/internal/items.h"

namespace lockstep::internal::cuda {

namespace {

std::string norm_header(const NodeView& node) {
  const DType dtype = node.input(0).dtype;
  return str(kPrelude, "typedef ", names_of(dtype).computed,
             " T;\nstruct Args { const void* in[5]; void* out[3]; long long rows, width; };\n#define X(at) ",
             load_text(dtype, "a.in[0]", "at"), "\n#define GAMMA(at) ", load_text(dtype, "a.in[1]", "at"),
             "\n");
}

KernelFn norm_kernel(const JitKernel& kernel, const NormRows& rows, std::size_t inputs, std::size_t outputs,
                     bool by_column) {
  return [kernel, rows, inputs, outputs, by_column](KernelContext& c) {
    Arguments arguments;
    for (std::size_t i = 0; i < 5; ++i) arguments.add(i < inputs ? c.input(i) : nullptr);
    for (std::size_t i = 0; i < 3; ++i)
      arguments.add(static_cast<const void*>(i < outputs ? c.output(i) : nullptr));
    arguments.add(rows.count).add(rows.width);
    const unsigned blocks = by_column ? blocks_for(rows.width, kThreads) : blocks_for(rows.count, 1);
    kernel.launch(*c.stream(), blocks, kThreads, arguments);
  };
}

constexpr const char* kByRow =
    "extern \"C\" __global__ void kernel(const Args a) {\n  __shared__ T shared[256];\n"
    "  for (long long row = blockIdx.x; row < a.rows; row += gridDim.x) {\n    const long long base = row * "
    "a.width;\n";

std::optional<RowGroup> group_of(const NodeView& node, int kept) {
  const DType dtype = node.input(0).dtype;
  return RowGroup::find({.length = norm_rows(node).width,
                         .largest = size_of(dtype),
                         .kept = kept,
                         .in_f64 = dtype == DType::kF64});
}

std::string registers_header(const RowGroup& group, DType dtype) {
  return str(kPrelude, group.header(dtype),
             "struct Args { const void* in[5]; void *out[3], *partial; long long rows, length; };\n");
}

void add_arguments(Arguments& arguments, const KernelContext& c, std::size_t inputs, std::size_t outputs) {
  for (std::size_t i = 0; i < 5; ++i) arguments.add(i < inputs ? c.input(i) : nullptr);
  for (std::size_t i = 0; i < 3; ++i)
    arguments.add(static_cast<const void*>(i < outputs ? c.output(i) : nullptr));
}

// The first of both, where addresses allow it.
KernelFn one_of(KernelFn in_registers, KernelFn otherwise) {
  return [in_registers = std::move(in_registers), otherwise = std::move(otherwise)](KernelContext& c) {
    (are_aligned(c) ? in_registers : otherwise)(c);
  };
}

KernelFn norm_in_registers(const NodeView& node, std::span<const TensorSpec> outputs, const RowGroup& group) {
  const NormRows rows = norm_rows(node);
  const DType dtype = node.input(0).dtype, statistics = outputs[1].dtype;
  const std::string source = str(
      registers_header(group, dtype),
      group.kernel(
          {},
          str(group.load("x", dtype, "a.in[0]", "0"),
              "    T sum = 0, squares = 0;\n#pragma unroll\n    for (int j = 0; j < E; ++j) sum += x[j];\n"
              "    const T mean = across(sum, add) / T(a.length);\n"
              "#pragma unroll\n    for (int j = 0; j < E; ++j) {\n"
              "      const T d = IS_IN(j) ? x[j] - mean : T(0);\n      squares += d * d;\n    }\n"
              "    const T rstd = T(1) / sqrt(across(squares, add) / T(a.length) + T(",
              literal_of(node.get<double>("epsilon")), "));\n",
              group.store(dtype, "a.out[0]", "(x[j] - mean) * rstd * gamma + beta",
                          {{"gamma", dtype, "a.in[1]"}, {"beta", dtype, "a.in[2]"}}),
              "    if (lane == 0 && is_row) { ", store_text(statistics, "a.out[1]", "row", "mean"), "; ",
              store_text(statistics, "a.out[2]", "row", "rstd"), "; }\n")));
  return [kernel = JitKernel(source), rows, group](KernelContext& c) {
    Arguments arguments;
    add_arguments(arguments, c, 3, 3);
    arguments.add(nullptr).add(rows.count).add(rows.width);
    kernel.launch(*c.stream(), group.blocks(rows.count), group.block(), arguments);
  };
}

// The blocks that go through all rows, each with a sum of its own for what flows into gamma and beta.
constexpr std::int64_t kParts = 264;
std::int64_t parts_of(const NormRows& rows, const RowGroup& group) {
  return std::clamp<std::int64_t>((rows.count + group.rows() - 1) / group.rows(), 1, kParts);
}
constexpr int kKeptForGradients = 4;  // x, g, and both sums

KernelFn norm_grad_in_registers(const NodeView& node, std::span<const TensorSpec> outputs,
                                const RowGroup& group) {
  const NormRows rows = norm_rows(node);
  const DType dtype = node.input(0).dtype, statistics = node.input(2).dtype;
  const std::string by_row = str(
      registers_header(group, dtype),
      group.kernel(
          str(group.load("gamma", dtype, "a.in[1]", "0", true), "    T gammas[E] = {}, betas[E] = {};\n"),
          str(group.load("x", dtype, "a.in[0]", "0"), group.load("g", dtype, "a.in[4]", "0"),
              "    const T mean = is_row ? T(", load_text(statistics, "a.in[2]", "row"),
              ") : T(0), rstd = is_row ? T(", load_text(statistics, "a.in[3]", "row"),
              ") : T(0);\n    T along = 0, total = 0;\n#pragma unroll\n    for (int j = 0; j < E; ++j) {\n"
              "      x[j] = (x[j] - mean) * rstd;\n"
              "      betas[j] += g[j];\n      gammas[j] += g[j] * x[j];\n"
              "      g[j] *= gamma[j];\n      total += g[j];\n      along += g[j] * x[j];\n    }\n"
              "    sums_across(total, along);\n    total /= T(a.length);\n    along /= T(a.length);\n",
              group.store(dtype, "a.out[0]", "rstd * (g[j] - total - x[j] * along)")),
          // The sums of the rows that a block has at a time, then those of the block.
          str("  __shared__ T others[", group.block(),
              "];\n#pragma unroll\n  for (int j = 0; j < E; ++j) {\n    for (int which = 0; which < 2; "
              "++which) {\n      __syncthreads();\n      others[threadIdx.x] = which == 0 ? gammas[j] : "
              "betas[j];\n      __syncthreads();\n      if (part != 0 || !IS_IN(j)) continue;\n"
              "      T sum = 0;\n      for (int i = lane; i < ",
              group.block(), "; i += ", group.block() / group.rows(),
              ") sum += others[i];\n      ((T*)a.partial)[(blockIdx.x * 2LL + which) * a.length + "
              "PLACE(j)] = sum;\n    }\n  }\n")));
  // 32 columns, and 32 threads for each of them.
  const std::string joining =
      str(kPrelude, "typedef ", names_of(dtype).computed,
          " T;\nstruct Args { const T* partial; void* out[2]; long long parts, length; };\n"
          "extern \"C\" __global__ void __launch_bounds__(1024) kernel(const Args a) {\n"
          "  __shared__ T sums[32][33];\n"
          "  const int column = threadIdx.x % 32, own = threadIdx.x / 32;\n"
          "  const long long at = blockIdx.x * 32LL + column;\n  T sum = 0;\n"
          "  if (at < 2 * a.length) {\n#pragma unroll 4\n"
          "    for (long long part = own; part < a.parts; part += 32) sum += a.partial[part * 2 * a.length + "
          "at];\n  }\n"
          "  sums[own][column] = sum;\n  __syncthreads();\n  if (own != 0 || at >= 2 * a.length) return;\n"
          "  for (int i = 1; i < 32; ++i) sum += sums[i][column];\n  if (at < a.length) ",
          store_text(outputs[1].dtype, "a.out[0]", "at", "sum"), ";\n  else ",
          store_text(outputs[2].dtype, "a.out[1]", "at - a.length", "sum"), ";\n}\n");
  return [each = JitKernel(by_row), join = JitKernel(joining), rows, group,
          parts = parts_of(rows, group)](KernelContext& c) {
    Arguments arguments;
    add_arguments(arguments, c, 5, 3);
    arguments.add(c.scratch()).add(rows.count).add(rows.width);
    each.launch(*c.stream(), static_cast<unsigned>(parts), group.block(), arguments);
    Arguments sums;
    sums.add(c.scratch()).add(c.output(1)).add(c.output(2)).add(parts).add(rows.width);
    join.launch(*c.stream(), static_cast<unsigned>((2 * rows.width + 31) / 32), 1024, sums);
  };
}

KernelFn layer_norm_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  const NormRows rows = norm_rows(node);
  if (rows.count == 0) return [](KernelContext&) {};
  const DType dtype = node.input(0).dtype, statistics = outputs[1].dtype;
  const std::string source =
      str(norm_header(node), "#define BETA(at) ", load_text(dtype, "a.in[2]", "at"), "\n", kByRow,
          "    T sum = 0;\n    for (long long j = threadIdx.x; j < a.width; j += blockDim.x) sum += X(base + "
          "j);\n"
          "    const T mean = ls_block_sum(sum, shared) / T(a.width);\n"
          "    T squares = 0;\n    for (long long j = threadIdx.x; j < a.width; j += blockDim.x) {\n"
          "      const T d = X(base + j) - mean;\n      squares += d * d;\n    }\n"
          "    const T rstd = T(1) / sqrt(ls_block_sum(squares, shared) / T(a.width) + T(",
          literal_of(node.get<double>("epsilon")),
          "));\n    for (long long j = threadIdx.x; j < a.width; j += blockDim.x) ",
          store_text(dtype, "a.out[0]", "base + j", "(X(base + j) - mean) * rstd * GAMMA(j) + BETA(j)"),
          ";\n    if (threadIdx.x == 0) { ", store_text(statistics, "a.out[1]", "row", "mean"), "; ",
          store_text(statistics, "a.out[2]", "row", "rstd"), "; }\n  }\n}\n");
  KernelFn kernel = norm_kernel(JitKernel(source), rows, 3, 3, false);
  const std::optional<RowGroup> group = group_of(node, 1);
  return group && rows.width > 0 ? one_of(norm_in_registers(node, outputs, *group), std::move(kernel))
                                 : kernel;
}

// Inputs: x, gamma, mean, rstd, g. Outputs: what flows into x, gamma and beta.
KernelFn layer_norm_grad_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  const NormRows rows = norm_rows(node);
  const DType dtype = node.input(0).dtype, statistics = node.input(2).dtype;
  const std::string header = str(
      norm_header(node), "#define MEAN(at) ", load_text(statistics, "a.in[2]", "at"), "\n#define RSTD(at) ",
      load_text(statistics, "a.in[3]", "at"), "\n#define G(at) ", load_text(dtype, "a.in[4]", "at"), "\n");
  const std::string by_row =
      str(header, kByRow,
          "    const T mean = MEAN(row), rstd = RSTD(row);\n    T along = 0, total = 0;\n"
          "    for (long long j = threadIdx.x; j < a.width; j += blockDim.x) {\n"
          "      const T g = G(base + j) * GAMMA(j);\n      total += g;\n      along += g * ((X(base + j) - "
          "mean) * rstd);\n    }\n"
          "    total = ls_block_sum(total, shared) / T(a.width);\n    along = ls_block_sum(along, shared) / "
          "T(a.width);\n"
          "    for (long long j = threadIdx.x; j < a.width; j += blockDim.x) ",
          store_text(dtype, "a.out[0]", "base + j",
                     "rstd * (G(base + j) * GAMMA(j) - total - (X(base + j) - mean) * rstd * along)"),
          ";\n  }\n}\n");
  const std::string by_column =
      str(header,
          "extern \"C\" __global__ void kernel(const Args a) {\n"
          "  const long long step = (long long)gridDim.x * blockDim.x;\n"
          "  for (long long j = (long long)blockIdx.x * blockDim.x + threadIdx.x; j < a.width; j += step) {\n"
          // Some rows at a time, so that errors of rounding do not add up.
          "    T gamma = 0, beta = 0;\n    for (long long some = 0; some < a.rows; some += 32) {\n"
          "      T gammas = 0, betas = 0;\n"
          "      for (long long row = some; row < a.rows && row < some + 32; ++row) {\n"
          "        const T g = G(row * a.width + j);\n        betas += g;\n"
          "        gammas += g * ((X(row * a.width + j) - MEAN(row)) * RSTD(row));\n      }\n"
          "      gamma += gammas;\n      beta += betas;\n    }\n    ",
          store_text(outputs[1].dtype, "a.out[1]", "j", "gamma"), ";\n    ",
          store_text(outputs[2].dtype, "a.out[2]", "j", "beta"), ";\n  }\n}\n");
  // What flows into x may lie in the memory of x or g, so that it is written last.
  const KernelFn columns = norm_kernel(JitKernel(by_column), rows, 5, 3, true);
  const KernelFn each = norm_kernel(JitKernel(by_row), rows, 5, 3, false);
  KernelFn kernel = [columns, each, rows](KernelContext& c) {
    if (rows.width > 0) columns(c);
    if (rows.count > 0) each(c);
  };
  const std::optional<RowGroup> group = group_of(node, kKeptForGradients);
  return group && rows.width > 0 && rows.count > 0
             ? one_of(norm_grad_in_registers(node, outputs, *group), std::move(kernel))
             : kernel;
}

}  // namespace

void add_layer_norm_kernels(OpRegistry& registry) {
  registry.add_kernel("layer_norm", "cuda", layer_norm_kernel);
  KernelDef grad(layer_norm_grad_kernel);
  grad.split = [](const NodeView& node, std::span<const TensorSpec>) {
    const std::optional<RowGroup> group = group_of(node, kKeptForGradients);
    const NormRows rows = norm_rows(node);
    const std::size_t word = node.input(0).dtype == DType::kF64 ? sizeof(double) : sizeof(float);
    return Split{1, group ? static_cast<std::size_t>(parts_of(rows, *group) * 2 * rows.width) * word : 0,
                 false};
  };
  registry.add_kernel("layer_norm_grad", "cuda", std::move(grad));
}

}  // namespace lockstep::internal::cuda
