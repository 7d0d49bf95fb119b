// graph/cuda/softmax.cpp - softmax along an axis, cross-entropy, and what flows back: a block of threads for each row.
#include <string>

#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/internal/jit.h"
#include "lockstep/graph/cuda/internal/kernel_set.h"
#include "lockstep/graph/cuda/internal/prelude.h"
#include "lockstep/graph/cuda/internal/types.h"
#include "lockstep/graph/ops/rules/internal/items.h"

namespace lockstep::internal::cuda {

namespace {

// `body` is run by the block of each row; X(j), Y(j) and so on read element j of the row of an input.
std::string row_source(const std::string& macros, const std::string& body) {
  return str(kPrelude, macros,
             "struct Args { const void* in[3]; void* out[2]; long long rows, n, inner; ls_word* refusal; "
             "ls_word number; };\n"
             "extern \"C\" __global__ void kernel(const Args a) {\n"
             "  __shared__ T shared[",
             kThreads,
             "];\n"
             "  for (long long row = blockIdx.x; row < a.rows; row += gridDim.x) {\n"
             "    const long long base = row / a.inner * a.n * a.inner + row % a.inner;\n",
             body, "  }\n}\n");
}

std::string element(const char* name, DType dtype, int input) {
  return str("#define ", name, "(j) ", load_text(dtype, str("a.in[", input, "]"), "base + (j) * a.inner"),
             "\n");
}
std::string result(const char* name, DType dtype, int output) {
  return str("#define ", name, "(j, value) ",
             store_text(dtype, str("a.out[", output, "]"), "base + (j) * a.inner", "value"), "\n");
}
std::string type(DType dtype) { return str("typedef ", names_of(dtype).computed, " T;\n"); }

// The largest of the row, and the sum of the exponentials of the distances from it.
constexpr const char* kSums =
    "    T most = ls_lowest<T>();\n"
    "    for (long long j = threadIdx.x; j < a.n; j += blockDim.x) most = ls_max(most, X(j));\n"
    "    most = ls_block_max(most, shared);\n"
    "    T total = 0;\n"
    "    for (long long j = threadIdx.x; j < a.n; j += blockDim.x) total += exp(X(j) - most);\n"
    "    total = ls_block_sum(total, shared);\n";

KernelFn row_kernel(const std::string& source, const Items& items, std::size_t inputs, std::size_t outputs) {
  if (items.count == 0) return [](KernelContext&) {};
  return [kernel = JitKernel(source), items, inputs, outputs](KernelContext& c) {
    Arguments arguments;
    for (std::size_t i = 0; i < 3; ++i) arguments.add(i < inputs ? c.input(i) : nullptr);
    for (std::size_t i = 0; i < 2; ++i)
      arguments.add(static_cast<const void*>(i < outputs ? c.output(i) : nullptr));
    arguments.add(items.count).add(items.n).add(items.inner).add(c.blocks().refusal).add(c.blocks().number);
    kernel.launch(*c.stream(), blocks_for(items.count, 1), kThreads, arguments);
  };
}

KernelFn softmax_kernel(const NodeView& node, bool log) {
  const DType dtype = node.input(0).dtype;
  const std::string body =
      str(kSums, "    for (long long j = threadIdx.x; j < a.n; j += blockDim.x) ",
          log ? "OUT(j, X(j) - most - log(total));\n" : "OUT(j, exp(X(j) - most) / total);\n");
  return row_kernel(row_source(type(dtype) + element("X", dtype, 0) + result("OUT", dtype, 0), body),
                    items_of(node), 1, 1);
}

KernelFn softmax_grad_kernel(const NodeView& node, std::span<const TensorSpec>) {
  const DType dtype = node.input(0).dtype;
  const std::string body =
      "    T total = 0;\n"
      "    for (long long j = threadIdx.x; j < a.n; j += blockDim.x) total += Y(j) * G(j);\n"
      "    total = ls_block_sum(total, shared);\n"
      "    for (long long j = threadIdx.x; j < a.n; j += blockDim.x) OUT(j, Y(j) * (G(j) - total));\n";
  return row_kernel(
      row_source(type(dtype) + element("Y", dtype, 0) + element("G", dtype, 1) + result("OUT", dtype, 0),
                 body),
      items_of(node), 2, 1);
}

// Labels are weights for the classes, or the number of one class for each row.
std::string labels_of(DType dtype, DType labels, int input) {
  if (labels == dtype) return element("LABEL", labels, input);
  return str("#define CLASS ((const ", names_of(labels).stored, "*)a.in[", input,
             "])[row]\n#define LABEL(j) T((j) == CLASS)\n");
}
// A class that does not exist is refused.
std::string check_of(DType dtype, DType labels) {
  if (labels == dtype) return {};
  return "    if (threadIdx.x == 0 && (CLASS < 0 || CLASS >= a.n)) ls_refuse(a.refusal, a.number, row);\n";
}

Items rows_of(const TensorSpec& spec) {
  return items_along(spec.shape, static_cast<std::int64_t>(spec.shape.rank()) - 1);
}

KernelFn cross_entropy_kernel(const NodeView& node, std::span<const TensorSpec>) {
  const DType dtype = node.input(0).dtype, labels = node.input(1).dtype;
  const std::string loss = store_text(dtype, "a.out[0]", "row", "weight * log(total) - distance");
  const std::string body = str(
      check_of(dtype, labels), kSums,
      "    T weight = 0, distance = 0;\n"
      "    for (long long j = threadIdx.x; j < a.n; j += blockDim.x) {\n"
      "      const T label = LABEL(j);\n      weight += label;\n      ",
      "if (label != T(0)) distance += label * (X(j) - most);\n"  // of no weight, also where it is infinitely far
      "    }\n"
      "    weight = ls_block_sum(weight, shared);\n"
      "    distance = ls_block_sum(distance, shared);\n"
      "    if (threadIdx.x == 0) ",
      loss,
      ";\n    for (long long j = threadIdx.x; j < a.n; j += blockDim.x) OUT(j, exp(X(j) - most) / total);\n");
  return row_kernel(
      row_source(type(dtype) + element("X", dtype, 0) + labels_of(dtype, labels, 1) + result("OUT", dtype, 1),
                 body),
      rows_of(node.input(0)), 2, 2);
}

KernelFn cross_entropy_grad_kernel(const NodeView& node, std::span<const TensorSpec>) {
  const DType dtype = node.input(0).dtype, labels = node.input(1).dtype;
  const std::string body =
      str(check_of(dtype, labels),
          "    T weight = 0;\n"
          "    for (long long j = threadIdx.x; j < a.n; j += blockDim.x) weight += LABEL(j);\n"
          "    weight = ls_block_sum(weight, shared);\n"
          "    const T g = ",
          load_text(dtype, "a.in[2]", "row"),
          ";\n    for (long long j = threadIdx.x; j < a.n; j += blockDim.x) OUT(j, (P(j) * weight - "
          "LABEL(j)) * g);\n");
  return row_kernel(
      row_source(type(dtype) + element("P", dtype, 0) + labels_of(dtype, labels, 1) + result("OUT", dtype, 0),
                 body),
      rows_of(node.input(0)), 3, 1);
}

}  // namespace

void add_softmax_kernels(OpRegistry& registry) {
  const auto softmax = [](bool log) {
    return [log](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
      return softmax_kernel(node, log);
    };
  };
  registry.add_kernel("softmax", "cuda", softmax(false));
  registry.add_kernel("log_softmax", "cuda", softmax(true));
  registry.add_kernel("softmax_grad", "cuda", softmax_grad_kernel);
  registry.add_kernel("softmax_cross_entropy", "cuda", cross_entropy_kernel);
  registry.add_kernel("softmax_cross_entropy_grad", "cuda", cross_entropy_grad_kernel);
}

}  // namespace lockstep::internal::cuda
