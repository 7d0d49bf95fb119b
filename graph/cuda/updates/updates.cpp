// graph/cuda/updates/updates.cpp - variables and their slots, set and changed by optimizers (core/kernels/updates.cpp has the formulas).
#include <algorithm>
#include <cctype>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/internal/elementwise.h"
#include "lockstep/graph/cuda/internal/kernel_set.h"
#include "lockstep/graph/cuda/updates/internal/update_formulas.h"
#include "lockstep/graph/ops/merged/internal/merged_updates.h"

namespace lockstep::internal::cuda {

const std::vector<UpdateFormula>& update_formulas() {
  static const std::vector<UpdateFormula> all = {
      {"sgd", {}, {{"w", "w - A(lr) * g"}}},
      {"momentum",
       {"m"},
       {{"m", "A($momentum) * m + g"}, {"w", "w - A(lr) * ($nesterov != 0 ? g + A($momentum) * m : m)"}}},
      {"adagrad", {"s"}, {{"s", "s + g * g"}, {"w", "w - A(lr) * g / (sqrt(s) + A($epsilon))"}}},
      {"rmsprop",
       {"s"},
       {{"s", "A($decay) * s + A(1 - $decay) * (g * g)"}, {"w", "w - A(lr) * g / sqrt(s + A($epsilon))"}}},
      {"rmsprop_momentum",
       {"s", "m"},
       {{"s", "A($decay) * s + A(1 - $decay) * (g * g)"},
        {"m", "A($momentum) * m + A(lr) * g / sqrt(s + A($epsilon))"},
        {"w", "w - m"}}},
      {"rmsprop_centered",
       {"s", "mean", "m"},
       {{"s", "A($decay) * s + A(1 - $decay) * (g * g)"},
        {"mean", "A($decay) * mean + A(1 - $decay) * g"},
        {"m",
         "A($momentum) * m + A(lr) * g / sqrt((s - mean * mean > A(0) ? s - mean * mean : A(0)) + "
         "A($epsilon))"},
        {"w", "w - m"}}},
      {"adam",
       {"m", "v"},
       {{"m", "A($beta1) * m + A(1 - $beta1) * g"},
        {"v", "A($beta2) * v + A(1 - $beta2) * (g * g)"},
        {"rate", "double(lr) / (1 - pow($beta1, double(t < 1 ? 1 : t)))"},
        {"scale", "1 / sqrt(1 - pow($beta2, double(t < 1 ? 1 : t)))"},
        {"w", "w - A(rate) * m / (sqrt(v) * A(scale) + A($epsilon))"}}},
      {"adamw",
       {"m", "v"},
       {{"m", "A($beta1) * m + A(1 - $beta1) * g"},
        {"v", "A($beta2) * v + A(1 - $beta2) * (g * g)"},
        {"rate", "double(lr) / (1 - pow($beta1, double(t < 1 ? 1 : t)))"},
        {"scale", "1 / sqrt(1 - pow($beta2, double(t < 1 ? 1 : t)))"},
        {"w", "w * A(1 - double(lr) * $weight_decay) - A(rate) * m / (sqrt(v) * A(scale) + A($epsilon))"}}},
  };
  return all;
}

namespace {

bool is_name_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// The expression with names of values as x0, x1, ...; `inputs` gets the values in that order.
std::string with_values(const std::string& expression,
                        const std::vector<std::pair<std::string, std::size_t>>& values,
                        std::vector<std::size_t>& inputs) {
  std::string text;
  for (std::size_t i = 0; i < expression.size();) {
    if (!is_name_char(expression[i]) || (i > 0 && expression[i - 1] == '$')) {
      text += expression[i++];
      continue;
    }
    std::size_t end = i;
    while (end < expression.size() && is_name_char(expression[end])) ++end;
    const std::string name = expression.substr(i, end - i);
    i = end;
    const auto found =
        std::ranges::find(values.rbegin(), values.rend(), name, &std::pair<std::string, std::size_t>::first);
    if (found == values.rend()) {
      text += name;
      continue;
    }
    auto place = std::ranges::find(inputs, found->second);
    if (place == inputs.end()) place = inputs.insert(inputs.end(), found->second);
    text += "x" + std::to_string(place - inputs.begin());
  }
  return text;
}

// The kernel's inputs are the variable, its slots, the gradient, the learning rate, and for some the step.
KernelFn update_kernel(const UpdateFormula& formula, const NodeView& node,
                       std::span<const TensorSpec> outputs) {
  ElementSteps steps;
  steps.shape = outputs[0].shape;
  std::vector<std::pair<std::string, std::size_t>> values;
  const auto read = [&](const std::string& name, const TensorSpec& spec) {
    values.emplace_back(name, steps.reads.size());
    steps.reads.push_back({spec.dtype, spec.shape, steps.reads.size(), {}});
  };
  read("w", outputs[0]);
  for (std::size_t i = 0; i < formula.slots.size(); ++i) read(formula.slots[i], outputs[1 + i]);
  const char* const names[] = {"g", "lr", "t"};
  for (std::size_t i = 0; i < node.num_inputs(); ++i) read(names[i], node.input(i));
  const std::string arithmetic = outputs[0].dtype == DType::kF64 ? "double" : "float";
  std::size_t next = steps.reads.size();
  for (const auto& [name, expression] : formula.lines) {
    ElementSteps::Step step;
    std::string text = with_values(with_attributes(expression, node), values, step.inputs);
    step.expressions = {str("[&] { typedef ", arithmetic, " A; return ", text, "; }()")};
    const bool is_scalar = name == "rate" || name == "scale";
    const auto slot = std::ranges::find(formula.slots, name);
    const std::size_t output =
        slot == formula.slots.end() ? 0 : 1 + static_cast<std::size_t>(slot - formula.slots.begin());
    step.outputs = {is_scalar ? DType::kF64 : outputs[output].dtype};
    values.emplace_back(name, next);
    if (!is_scalar) steps.writes.push_back({next, output, outputs[output].dtype});
    ++next;
    steps.steps.push_back(std::move(step));
  }
  return make_element_kernel(steps);
}

}  // namespace

void add_update_kernels(OpRegistry& registry) {
  for (const UpdateFormula& formula : update_formulas()) {
    KernelDef def([&formula](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
      return update_kernel(formula, node, outputs);
    });
    def.merge = [&formula](const NodeView& node, std::span<const TensorSpec> outputs) {
      return merged_update_kernel(formula, node, outputs);
    };
    registry.add_kernel(formula.op, "cuda", std::move(def));
  }
  registry.add_kernel("merged_updates", "cuda", merged_kernel("cuda"));
  const auto add = [&](const char* op, const char* expression) {
    registry.add_kernel(op, "cuda",
                        [expression](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
                          const TensorSpec inputs[] = {outputs[0], node.input(0)};  // the variable, the value
                          return make_element_kernel(inputs, outputs, {expression});
                        });
  };
  add("assign", "x1");
  add("assign_add", "x0 + x1");
}

}  // namespace lockstep::internal::cuda
