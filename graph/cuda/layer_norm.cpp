// graph/cuda/layer_norm.cpp - normalisation over the last axes, and what flows back: a block of threads for each row; a thread for
// each column of what flows into gamma and beta, over all rows in their order.
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
  return norm_kernel(JitKernel(source), rows, 3, 3, false);
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
  return [columns, each, rows](KernelContext& c) {
    if (rows.width > 0) columns(c);
    if (rows.count > 0) each(c);
  };
}

}  // namespace

void add_layer_norm_kernels(OpRegistry& registry) {
  registry.add_kernel("layer_norm", "cuda", layer_norm_kernel);
  registry.add_kernel("layer_norm_grad", "cuda", layer_norm_grad_kernel);
}

}  // namespace lockstep::internal::cuda
