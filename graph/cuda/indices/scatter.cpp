// graph/cuda/indices/scatter.cpp - rows added to, set and updated where indices name them (core/kernels/updates.h, scatter.h).
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/indices/internal/sorted_rows.h"
#include "lockstep/graph/cuda/internal/elementwise.h"
#include "lockstep/graph/cuda/internal/kernel_set.h"
#include "lockstep/graph/cuda/internal/moves.h"
#include "lockstep/graph/cuda/internal/types.h"
#include "lockstep/graph/cuda/updates/internal/update_formulas.h"

namespace lockstep::internal::cuda {

namespace {

std::int64_t columns_of(const TensorSpec& tensor) {
  std::int64_t columns = 1;
  for (std::size_t axis = 1; axis < tensor.shape.rank(); ++axis) columns *= tensor.shape[axis];
  return columns;
}

// As the CPU sums: integers around, 16-bit values as float.
const char* sum_type(DType dtype) { return is_integer(dtype) ? "ls_word" : names_of(dtype).computed; }

KernelFn scatter_add_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  const TensorSpec& out = outputs[0];
  const auto bytes = static_cast<std::size_t>(num_bytes(out));
  if (node.input(0).shape.num_elements() == 0)
    return [bytes](KernelContext& c) { c.stream()->fill(c.output(0), std::byte{0}, bytes); };
  const JitKernel sums =
      row_kernel(str("typedef ", sum_type(out.dtype), " Sum;\n"),
                 str("    Sum sum = 0;\n    for (long long j = first; LS_SAME(j); ++j) sum += Sum(",
                     load_text(out.dtype, "a.in[0]", "LS_PLACE(j)"), ");\n    ",
                     store_text(out.dtype, "a.out[0]", "at", "sum"), ";\n"),
                 1, 1);
  return [sums, rows = SortedRows(node.input(0), out.shape[0], true), columns = columns_of(out),
          bytes](KernelContext& c) {
    const SortedRows::Sorted sorted = rows.sort(c, c.input(0));
    c.stream()->fill(c.output(0), std::byte{0}, bytes);
    constexpr std::size_t kValues[] = {1};
    launch_rows(sums, c, rows, sorted, columns, kValues);
  };
}

// Rows that are not named stay: what is not changed where it lies is copied first.
void keep_rows(KernelContext& c, std::span<const std::size_t> bytes) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (c.blocks().decision == nullptr) {
      copy_bytes(*c.stream(), c.output(i), c.input(i), bytes[i]);
    } else if (c.output(i) != c.input(i) && bytes[i] > 0) {
      c.stream()->copy_unless(c.blocks().decision, c.output(i), c.input(i), bytes[i]);
    }
  }
}

// The kernel's inputs are the variable, its slots, the indices, the rows of the gradient, the learning rate, and for some the
// step.
KernelFn row_update_kernel(const UpdateFormula& formula, const NodeView& node,
                           std::span<const TensorSpec> outputs) {
  const TensorSpec& variable = outputs[0];
  const std::size_t slots = formula.slots.size();
  const std::string a = variable.dtype == DType::kF64 ? "double" : "float";
  const auto in = [](std::size_t i) { return str("a.in[", i, "]"); };
  std::string body = str("    A g = 0;\n    for (long long j = first; LS_SAME(j); ++j) g += A(",
                         load_text(variable.dtype, in(slots + 1), "LS_PLACE(j)"), ");\n");
  body += str("    A w = ", load_text(variable.dtype, in(0), "at"), ";\n");
  for (std::size_t s = 0; s < slots; ++s)
    body += str("    A ", formula.slots[s], " = ", load_text(outputs[1 + s].dtype, in(1 + s), "at"), ";\n");
  body += str("    const ", names_of(node.input(2).dtype).computed,
              " lr = ", load_text(node.input(2).dtype, in(slots + 2), "0"), ";\n");
  if (node.num_inputs() > 3)
    body += str("    const long long t = ", load_text(DType::kI64, in(slots + 3), "0"), ";\n");
  for (const auto& [name, expression] : formula.lines) {
    const bool is_scalar = name == "rate" || name == "scale";
    body +=
        str("    ", is_scalar ? "const double " : "", name, " = ", with_attributes(expression, node), ";\n");
  }
  body += str("    ", store_text(variable.dtype, "a.out[0]", "at", "w"), ";\n");
  for (std::size_t s = 0; s < slots; ++s)
    body += str("    ", store_text(outputs[1 + s].dtype, str("a.out[", 1 + s, "]"), "at", formula.slots[s]),
                ";\n");
  std::vector<std::size_t> inputs;  // all but the indices
  for (std::size_t i = 0; i < 1 + slots + node.num_inputs(); ++i) {
    if (i != slots + 1) inputs.push_back(i);
  }
  const JitKernel kernel = row_kernel(str("typedef ", a, " A;\n"), body, inputs.size(), 1 + slots);
  std::vector<std::size_t> bytes;
  for (const TensorSpec& output : outputs) bytes.push_back(static_cast<std::size_t>(num_bytes(output)));
  return [kernel, slots, bytes, inputs, rows = SortedRows(node.input(0), variable.shape[0], false),
          columns = columns_of(variable)](KernelContext& c) {
    keep_rows(c, bytes);
    if (rows.count() == 0) return;
    const SortedRows::Sorted sorted = rows.sort(c, c.input(slots + 1));
    launch_rows(kernel, c, rows, sorted, columns, inputs);
  };
}

// What a row becomes by one row that is given; a row that is named twice is changed twice, in order.
std::string row_change(const std::string& how, DType dtype) {
  if (how == "set") return "x";
  if (how == "add") return is_integer(dtype) ? "T(ls_word(w) + ls_word(x))" : "w + x";
  if (how == "mul") return is_integer(dtype) ? "T(ls_word(w) * ls_word(x))" : "w * x";
  if (how == "div") return "ls_div(w, x, [] {})";
  if (how == "min") return "ls_min(w, x)";
  return "ls_max(w, x)";
}

// The kernel's inputs are the variable, the indices and the rows.
KernelFn assign_rows_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  const TensorSpec& variable = outputs[0];
  const TypeNames names = names_of(variable.dtype);
  const JitKernel kernel =
      row_kernel(str("typedef ", names.computed, " T;\ntypedef ", names.result, " R;\n"),
                 str("    T w = ", load_text(variable.dtype, "a.in[0]", "at"),
                     ";\n    for (long long j = first; LS_SAME(j); ++j) {\n      const T x = ",
                     load_text(variable.dtype, "a.in[1]", "LS_PLACE(j)"), ";\n      w = ls_round(",
                     row_change(node.get<std::string>("how"), variable.dtype), ", (R*)nullptr);\n    }\n    ",
                     store_text(variable.dtype, "a.out[0]", "at", "w"), ";\n"),
                 2, 1);
  return [kernel, bytes = static_cast<std::size_t>(num_bytes(variable)),
          rows = SortedRows(node.input(0), variable.shape[0], false),
          columns = columns_of(variable)](KernelContext& c) {
    keep_rows(c, {&bytes, 1});
    if (rows.count() == 0) return;
    const SortedRows::Sorted sorted = rows.sort(c, c.input(1));
    constexpr std::size_t kVariableAndRows[] = {0, 2};
    launch_rows(kernel, c, rows, sorted, columns, kVariableAndRows);
  };
}

}  // namespace

void add_scatter_kernels(OpRegistry& registry) {
  const auto add = [&](const std::string& op, KernelMaker make) {
    KernelDef def(std::move(make));
    def.split = [](const NodeView& node, std::span<const TensorSpec>) {
      return Split{1, SortedRows::room_for(node.input(0).shape.num_elements()), false};
    };
    registry.add_kernel(op, "cuda", std::move(def));
  };
  add("scatter_add", scatter_add_kernel);
  add("assign_rows", assign_rows_kernel);
  for (const UpdateFormula& formula : update_formulas()) {
    add(str(formula.op, "_sparse"), [&formula](const NodeView& node, std::span<const TensorSpec> outputs) {
      return row_update_kernel(formula, node, outputs);
    });
  }
}

}  // namespace lockstep::internal::cuda
