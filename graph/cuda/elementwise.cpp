// graph/cuda/elementwise.cpp - kernels that are generated from the expressions of element-wise ops.
#include "lockstep/graph/cuda/internal/elementwise.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstring>
#include <map>

#include <cuda_runtime_api.h>

#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/internal/jit.h"

namespace lockstep::internal::cuda {

std::string literal_of(double value) {
  if (value != value) return "nan(\"\")";
  if (value > std::numeric_limits<double>::max()) return "(1.0 / 0.0)";
  if (value < std::numeric_limits<double>::lowest()) return "(-1.0 / 0.0)";
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.17g", value);
  const std::string number = text.data();
  const bool is_whole = number.find_first_of(".en") == std::string::npos;
  return str("(", number, is_whole ? ".0)" : ")");
}

namespace {

constexpr std::int64_t kMostLiterals = 4096;

std::vector<std::uint64_t> literals_of(const Tensor& constant) {
  if (constant.num_elements() > kMostLiterals) {
    NodeView::fail(str("a fused node holds a constant of ", constant.spec(),
                       ", and a kernel for cards at most ", kMostLiterals,
                       " elements of one: let it be an input of the node"));
  }
  static_assert(std::endian::native == std::endian::little);
  const std::size_t size = size_of(constant.dtype());
  std::vector<std::uint64_t> literals(static_cast<std::size_t>(constant.num_elements()));
  for (std::size_t i = 0; i < literals.size(); ++i)
    std::memcpy(&literals[i], static_cast<const std::byte*>(constant.raw()) + i * size, size);
  return literals;
}

// With the attributes of the node in the places of their names.
std::string with_numbers(const std::string& expression,
                         const std::function<double(const std::string&)>& get) {
  std::string text;
  for (std::size_t i = 0; i < expression.size();) {
    if (expression[i] != '$') {
      text += expression[i++];
      continue;
    }
    std::size_t end = ++i;
    while (end < expression.size() &&
           (std::isalnum(static_cast<unsigned char>(expression[end])) || expression[end] == '_'))
      ++end;
    text += literal_of(get(expression.substr(i, end - i)));
    i = end;
  }
  return text;
}

template <class View>
std::string attributes_in(const std::string& expression, const View& view) {
  return with_numbers(expression, [&](const std::string& name) -> double {
    if (const auto* number = view.template find<double>(name)) return *number;
    if (const auto* number = view.template find<std::int64_t>(name)) return static_cast<double>(*number);
    if (const auto* flag = view.template find<bool>(name)) return *flag ? 1 : 0;
    return 0;
  });
}

template <class View>
std::vector<std::string> expressions_of(const OpDef& op, const View& view) {
  std::vector<std::string> expressions;
  for (const std::string& expression : op.source) expressions.push_back(attributes_in(expression, view));
  return expressions;
}

}  // namespace

namespace {

ElementSteps one_step(std::span<const TensorSpec> inputs, std::span<const TensorSpec> outputs,
                      std::vector<std::string> expressions) {
  ElementSteps steps;
  steps.shape = outputs[0].shape;
  ElementSteps::Step step;
  step.expressions = std::move(expressions);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    steps.reads.push_back({inputs[i].dtype, inputs[i].shape, i, {}});
    step.inputs.push_back(i);
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    step.outputs.push_back(outputs[i].dtype);
    steps.writes.push_back({inputs.size() + i, i, outputs[i].dtype});
  }
  steps.steps.push_back(std::move(step));
  return steps;
}

}  // namespace

std::string with_attributes(const std::string& expression, const NodeView& node) {
  return attributes_in(expression, node);
}

ElementSteps steps_of(const OpDef& op, const NodeView& node, std::span<const TensorSpec> outputs) {
  return one_step(node.inputs(), outputs, expressions_of(op, node));
}

KernelFn make_element_kernel(std::span<const TensorSpec> inputs, std::span<const TensorSpec> outputs,
                             std::vector<std::string> expressions) {
  return make_element_kernel(one_step(inputs, outputs, std::move(expressions)));
}

// Only what the results need.
ElementSteps steps_of(const Graph& region, std::span<const TensorSpec> specs,
                      std::span<const std::size_t> results) {
  std::vector<bool> needed(specs.size(), false);
  for (const std::size_t result : results) needed[region.results()[result].node.index()] = true;
  std::vector<const Node*> nodes;
  for (const Node& node : region.nodes()) nodes.push_back(&node);
  for (std::size_t i = nodes.size(); i-- > 0;) {
    if (!needed[nodes[i]->id().index()]) continue;
    for (const ValueId input : nodes[i]->inputs()) needed[input.node.index()] = true;
  }
  ElementSteps steps;
  steps.shape = specs[region.results()[results[0]].node.index()].shape;
  std::map<std::size_t, std::size_t> value_of;  // by node
  for (std::size_t p = 0; p < region.parameters().size(); ++p) {
    const std::size_t index = region.parameters()[p].index();
    if (!needed[index]) continue;
    value_of[index] = steps.reads.size();
    steps.reads.push_back({specs[index].dtype, specs[index].shape, p, {}});
  }
  for (const Node* node : nodes) {
    const std::size_t index = node->id().index();
    if (!needed[index] || !node->op().traits.gives_attribute) continue;
    value_of[index] = steps.reads.size();
    steps.reads.push_back({specs[index].dtype, specs[index].shape, 0,
                           literals_of(*node->find<Tensor>(*node->op().traits.gives_attribute))});
  }
  std::size_t next = steps.reads.size();
  for (const Node* node : nodes) {
    const std::size_t index = node->id().index();
    if (!needed[index] || value_of.contains(index)) continue;
    ElementSteps::Step step;
    step.expressions = expressions_of(node->op(), *node);
    for (const ValueId input : node->inputs()) step.inputs.push_back(value_of.at(input.node.index()));
    step.outputs.push_back(specs[index].dtype);
    value_of[index] = next++;
    steps.steps.push_back(std::move(step));
  }
  for (const std::size_t result : results) {
    const std::size_t index = region.results()[result].node.index();
    steps.writes.push_back({value_of.at(index), result, specs[index].dtype});
  }
  return steps;
}

// The arguments are laid out as the struct in the source: 8 bytes each.
KernelFn make_element_kernel(const ElementSteps& steps) {
  const ElementWalk walk = walk_of(steps);
  std::vector<std::size_t> inputs, outputs;
  for (const ElementSteps::Read& read : steps.reads) {
    if (read.literals.empty()) inputs.push_back(read.input);
  }
  for (const ElementSteps::Write& write : steps.writes) outputs.push_back(write.output);
  const std::int64_t n = steps.shape.num_elements();
  std::vector<std::int64_t> tail = walk.extents;
  for (const std::vector<std::int64_t>& strides : walk.strides)
    tail.insert(tail.end(), strides.begin(), strides.end());
  const std::size_t count = inputs.size() + outputs.size() + 4 + tail.size();
  if (count > Arguments::kMost)
    throw Error(ErrorCode::kUnimplemented, str("a kernel with ", count, " words of arguments"));
  const ElementSource source = source_of(steps, walk);
  const std::int64_t groups = (n + source.width - 1) / source.width;
  const unsigned threads = groups <= kWarp ? kWarp : kThreads;  // a small block starts sooner
  return [kernel = JitKernel(source.text), groups, threads, inputs, outputs, n, tail](KernelContext& c) {
    if (n == 0) return;
    Arguments arguments;
    for (const std::size_t i : inputs) arguments.add(c.input(i));
    for (const std::size_t i : outputs) arguments.add(c.output(i));
    arguments.add(n).add(c.blocks().refusal).add(c.blocks().number).add(c.blocks().decision).add(tail);
    kernel.launch(*c.stream(), blocks_for(groups, threads), threads, arguments);
  };
}

}  // namespace lockstep::internal::cuda
