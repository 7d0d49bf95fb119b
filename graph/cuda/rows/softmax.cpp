// graph/cuda/rows/softmax.cpp - softmax along an axis, cross-entropy, and what flows back.
//
// Threads keep a row of neighbours in registers, so that it is read once. Longer rows, and rows along another axis than the last,
// are gone through as often as needed, a block of threads each.
#include <optional>
#include <string>

#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/internal/jit.h"
#include "lockstep/graph/cuda/internal/kernel_set.h"
#include "lockstep/graph/cuda/internal/prelude.h"
#include "lockstep/graph/cuda/internal/types.h"
#include "lockstep/graph/cuda/rows/internal/rows.h"
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

// The kernel of rows in registers, if there is one, where addresses allow it.
KernelFn row_kernel(const std::string& source, const Items& items, std::size_t inputs, std::size_t outputs,
                    const std::optional<RowGroup>& group, const std::string& in_registers) {
  if (items.count == 0) return [](KernelContext&) {};
  std::optional<JitKernel> fast;
  if (group) fast.emplace(in_registers);
  return [kernel = JitKernel(source), fast, group, items, inputs, outputs](KernelContext& c) {
    Arguments arguments;
    for (std::size_t i = 0; i < 3; ++i) arguments.add(i < inputs ? c.input(i) : nullptr);
    for (std::size_t i = 0; i < 2; ++i)
      arguments.add(static_cast<const void*>(i < outputs ? c.output(i) : nullptr));
    arguments.add(items.count).add(items.n).add(items.inner).add(c.blocks().refusal).add(c.blocks().number);
    if (fast && are_aligned(c)) {
      fast->launch(*c.stream(), group->blocks(items.count), group->block(), arguments);
    } else {
      kernel.launch(*c.stream(), blocks_for(items.count, 1), kThreads, arguments);
    }
  };
}

// `kept`: what RowShape says.
std::optional<RowGroup> group_of(const Items& items, DType dtype, int kept) {
  if (items.inner != 1) return std::nullopt;
  return RowGroup::find(
      {.length = items.n, .largest = size_of(dtype), .kept = kept, .in_f64 = dtype == DType::kF64});
}

std::string registers_source(const std::optional<RowGroup>& group, DType dtype, const std::string& macros,
                             const std::string& body) {
  if (!group) return {};
  return str(
      kPrelude, group->header(dtype), macros,
      "struct Args { const void* in[3]; void* out[2]; long long rows, length, inner; ls_word* refusal; "
      "ls_word number; };\n",
      group->kernel("  const auto larger = [](T x, T y) { return ls_max(x, y); };\n  (void)larger;\n", body));
}

// As kSums, with the exponentials in place of the distances; those behind the end of the row are 0.
constexpr const char* kSumsInRegisters =
    "    T most = x[0];\n"
    "#pragma unroll\n    for (int j = 1; j < E; ++j) most = ls_max(most, x[j]);\n"
    "    most = across(most, larger);\n"
    "    T total = 0;\n"
    "#pragma unroll\n    for (int j = 0; j < E; ++j) {\n"
    "      KEEP;\n      x[j] = IS_IN(j) ? exp(x[j] - most) : T(0);\n      total += x[j];\n    }\n"
    "    total = across(total, add);\n    const T share = T(1) / total;\n    (void)share;\n";

KernelFn softmax_kernel(const NodeView& node, bool log) {
  const DType dtype = node.input(0).dtype;
  const Items items = items_of(node);
  const std::string body =
      str(kSums, "    for (long long j = threadIdx.x; j < a.n; j += blockDim.x) ",
          log ? "OUT(j, X(j) - most - log(total));\n" : "OUT(j, exp(X(j) - most) / total);\n");
  const std::optional<RowGroup> group = group_of(items, dtype, log ? 2 : 1);
  std::string fast;
  if (group) {
    fast = registers_source(
        group, dtype, log ? "#define KEEP kept[j] = x[j]\n" : "#define KEEP\n",
        str(group->load("x", dtype, "a.in[0]", "ls_lowest<T>()"), log ? "    T kept[E];\n" : "",
            kSumsInRegisters,
            group->store(dtype, "a.out[0]", log ? "kept[j] - most - log(total)" : "x[j] * share")));
  }
  return row_kernel(row_source(type(dtype) + element("X", dtype, 0) + result("OUT", dtype, 0), body), items,
                    1, 1, group, fast);
}

KernelFn softmax_grad_kernel(const NodeView& node, std::span<const TensorSpec>) {
  const DType dtype = node.input(0).dtype;
  const Items items = items_of(node);
  const std::string body =
      "    T total = 0;\n"
      "    for (long long j = threadIdx.x; j < a.n; j += blockDim.x) total += Y(j) * G(j);\n"
      "    total = ls_block_sum(total, shared);\n"
      "    for (long long j = threadIdx.x; j < a.n; j += blockDim.x) OUT(j, Y(j) * (G(j) - total));\n";
  const std::optional<RowGroup> group = group_of(items, dtype, 2);
  std::string fast;
  if (group) {
    fast =
        registers_source(group, dtype, {},
                         str(group->load("y", dtype, "a.in[0]", "0"), group->load("g", dtype, "a.in[1]", "0"),
                             "    T total = 0;\n#pragma unroll\n    for (int j = 0; j < E; ++j) total += "
                             "y[j] * g[j];\n    total = across(total, add);\n",
                             group->store(dtype, "a.out[0]", "y[j] * (g[j] - total)")));
  }
  return row_kernel(
      row_source(type(dtype) + element("Y", dtype, 0) + element("G", dtype, 1) + result("OUT", dtype, 0),
                 body),
      items, 2, 1, group, fast);
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

// How the weight of all labels is found, and what they say of x: before the loop over elements, in it, and after it. Labels are
// weights for each class, or one class has all of it.
struct LabelsInRegisters {
  std::string macros, before, after;
  const char* of_element;
};
LabelsInRegisters labels_in_registers(const RowGroup& group, DType dtype, DType labels) {
  if (labels == dtype) {
    return {"#define KEEP weight += label[j]; if (label[j] != T(0)) distance += label[j] * (x[j] - most)\n",
            group.load("label", labels, "a.in[1]", "0") + "    T weight = 0, distance = 0;\n",
            "    sums_across(weight, distance);\n", "label[j]"};
  }
  return {"#define KEEP\n",
          str("    const ", names_of(labels).stored,
              " label = is_row ? CLASS : 0;\n    const bool is_class = label >= 0 && label < a.length;\n"
              "    const T weight = T(is_class), own = is_row && is_class ? T(",
              load_text(dtype, "a.in[0]", "row * a.length + label"), ") : T(0);\n"),
          "    const T distance = is_class ? own - most : T(0);\n", "T(PLACE(j) == label)"};
}
std::string check_in_registers(DType dtype, DType labels) {
  if (labels == dtype) return {};
  return "    if (lane == 0 && is_row && (CLASS < 0 || CLASS >= a.length)) ls_refuse(a.refusal, a.number, "
         "row);\n";
}

KernelFn cross_entropy_kernel(const NodeView& node, std::span<const TensorSpec>) {
  const DType dtype = node.input(0).dtype, labels = node.input(1).dtype;
  const Items items = rows_of(node.input(0));
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
  const std::string macros = labels_of(dtype, labels, 1);
  const std::optional<RowGroup> group = group_of(items, dtype, labels == dtype ? 2 : 1);
  std::string fast;
  if (group) {
    const LabelsInRegisters own = labels_in_registers(*group, dtype, labels);
    fast = registers_source(
        group, dtype, macros + own.macros,
        str(check_in_registers(dtype, labels), group->load("x", dtype, "a.in[0]", "ls_lowest<T>()"),
            own.before, kSumsInRegisters, own.after, "    if (lane == 0 && is_row) ", loss, ";\n",
            group->store(dtype, "a.out[1]", "x[j] * share")));
  }
  return row_kernel(row_source(type(dtype) + element("X", dtype, 0) + macros + result("OUT", dtype, 1), body),
                    items, 2, 2, group, fast);
}

KernelFn cross_entropy_grad_kernel(const NodeView& node, std::span<const TensorSpec>) {
  const DType dtype = node.input(0).dtype, labels = node.input(1).dtype;
  const Items items = rows_of(node.input(0));
  const std::string flowing = load_text(dtype, "a.in[2]", "row"), macros = labels_of(dtype, labels, 1);
  const std::string body =
      str(check_of(dtype, labels),
          "    T weight = 0;\n"
          "    for (long long j = threadIdx.x; j < a.n; j += blockDim.x) weight += LABEL(j);\n"
          "    weight = ls_block_sum(weight, shared);\n"
          "    const T g = ",
          flowing,
          ";\n    for (long long j = threadIdx.x; j < a.n; j += blockDim.x) OUT(j, (P(j) * weight - "
          "LABEL(j)) * g);\n");
  const std::optional<RowGroup> group = group_of(items, dtype, labels == dtype ? 2 : 1);
  std::string fast;
  if (group) {
    const LabelsInRegisters own = labels_in_registers(*group, dtype, labels);
    const char* const weight = labels == dtype
                                   ? "#pragma unroll\n    for (int j = 0; j < E; ++j) weight += label[j];\n"
                                     "    weight = across(weight, add);\n"
                                   : "";
    fast = registers_source(
        group, dtype, macros,
        str(check_in_registers(dtype, labels), group->load("p", dtype, "a.in[0]", "0"), own.before, weight,
            "    const T g = is_row ? T(", flowing, ") : T(0);\n",
            group->store(dtype, "a.out[0]", str("(p[j] * weight - ", own.of_element, ") * g"))));
  }
  return row_kernel(row_source(type(dtype) + element("P", dtype, 0) + macros + result("OUT", dtype, 0), body),
                    items, 3, 1, group, fast);
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
