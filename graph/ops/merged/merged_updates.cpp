// graph/ops/merged/merged_updates.cpp - updates of many variables that run as one node.
#include "lockstep/graph/ops/merged/internal/merged_updates.h"

#include <algorithm>
#include <string>

#include "lockstep/graph/ops/internal/builtin_ops.h"

namespace lockstep {

namespace internal {

namespace {

bool names_updated_variable(const OpTraits::Update& update, std::string_view attribute) {
  return attribute == update.attribute || std::ranges::find(update.slots, attribute) != update.slots.end();
}

[[noreturn]] void refuse(const Node& node, std::string_view why) {
  NodeView::fail(str("'", node.name(), "' (", node.op().name, ") in the region ", why,
                     "; the pass split-updates gives the updates back as nodes of their own"));
}

void check_region(const NodeView& node, const Graph& region) {
  const std::size_t parameters = region.parameters().size();
  if (parameters != node.num_inputs()) {
    NodeView::fail(
        str("the region takes ", parameters, " parameters, the node gives it ", node.num_inputs()));
  }
  for (std::size_t i = 0; i < parameters; ++i) {
    const TensorSpec& wanted = region.spec({region.parameters()[i], 0});
    if (wanted.may_equal(node.input(i))) continue;
    NodeView::fail(str("parameter ", i, " of the region is ", wanted, ", the node gives it ", node.input(i)));
  }
}

// The nodes of the results, if the results are all outputs of each in turn.
std::vector<const Node*> nodes_of_results(const Graph& region) {
  std::vector<const Node*> nodes;
  const std::vector<ValueId>& results = region.results();
  for (std::size_t at = 0; at < results.size();) {
    const NodeId id = results[at].node;
    const std::size_t outputs = region.contains(id) ? region.node(id).outputs().size() : 0;
    bool in_turn = outputs > 0 && at + outputs <= results.size();
    for (std::uint32_t i = 0; in_turn && i < outputs; ++i) in_turn = results[at + i] == ValueId{id, i};
    if (!in_turn)
      NodeView::fail(str("result ", at, " of the region does not begin the outputs of an update"));
    nodes.push_back(&region.node(id));
    at += outputs;
  }
  if (nodes.empty()) NodeView::fail("the region must hold at least one update");
  return nodes;
}

void check_update(const Graph& region, std::span<const Node* const> updates, std::size_t i) {
  const Node &node = *updates[i], &first = *updates[0];
  if (!may_merge(node.op())) refuse(node, "is no update that can be merged");
  if (&node.op() != &first.op()) refuse(node, str("is not of op '", first.op().name, "', as the first is"));
  if (node.inputs().size() != first.inputs().size() || !agree_but_for_variables(node, first))
    refuse(node, "has other attributes or inputs than the first update");
  if (!node.controls().empty()) refuse(node, "has control inputs");
  if (node.outputs()[0].dtype != first.outputs()[0].dtype)
    refuse(node, str("updates ", node.outputs()[0], ", the first one ", first.outputs()[0]));
  if (updated_variables(node).size() != node.outputs().size())
    refuse(node, "gives other values than those of its variables");
  const std::size_t operand = node.op().traits.updates_variable->operand;
  if (operand >= node.inputs().size()) refuse(node, "has no operand");
  std::size_t shared = updates.size();
  for (std::size_t k = 0; k < node.inputs().size(); ++k) {
    const std::size_t parameter = k == operand ? i : shared++;
    const bool fits = parameter < region.parameters().size() &&
                      node.inputs()[k] == ValueId{region.parameters()[parameter], 0};
    if (!fits)
      refuse(node, str("reads another value than parameter ", parameter, " of the region as input ", k));
  }
}

}  // namespace

bool may_merge(const OpDef& op) {
  const OpTraits& traits = op.traits;
  return traits.updates_variable && !traits.updates_variable->indices && !traits.reads_variable &&
         traits.infallible && traits.in_place && op.regions == 0 && op.shape_operands.empty();
}

bool agree_but_for_variables(const Node& a, const Node& b) {
  const auto same = [&](const Attribute& x, const Attribute& y) {
    return x.name == y.name &&
           (names_updated_variable(*a.op().traits.updates_variable, x.name) || same_value(x.value, y.value));
  };
  return std::ranges::equal(a.attributes(), b.attributes(), same);
}

MergedUpdates::MergedUpdates(const NodeView& node) {
  const Graph& region = node.regions()[0];
  check_region(node, region);
  updates_ = nodes_of_results(region);
  for (std::size_t i = 0; i < updates_.size(); ++i) check_update(region, updates_, i);
  const std::size_t parameters = updates_.size() + shared();
  if (region.parameters().size() != parameters || region.size() != parameters + updates_.size()) {
    NodeView::fail(str("the region of ", counted(updates_.size(), "update"), " takes ", parameters,
                       " parameters and holds nothing else, got ", region.parameters().size(),
                       " parameters in ", counted(region.size(), "node")));
  }
}

std::vector<TensorSpec> MergedUpdates::inputs_of(std::size_t i, std::span<const TensorSpec> inputs) const {
  std::vector<TensorSpec> own;
  std::size_t next = size();
  for (std::size_t k = 0; k <= shared(); ++k)
    own.push_back(inputs[k == op().traits.updates_variable->operand ? i : next++]);
  return own;
}

KernelMaker merged_kernel(std::string_view kernel_set) {
  return [set = std::string(kernel_set)](const NodeView& node, std::span<const TensorSpec> outputs) {
    const MergedUpdates merged(node);
    const KernelDef* const kernel = OpRegistry::global().kernel(merged.op(), set);
    if (kernel == nullptr || !kernel->merge) {
      NodeView::fail(str("op '", merged.op().name, "' has no kernel of the set '", set,
                         "' for merged updates (KernelDef::merge): run the pass split-updates"));
    }
    return kernel->merge(node, outputs);
  };
}

namespace {

void infer_merged(InferContext& c) {
  const MergedUpdates merged(c);
  const NodeView::VariableSpecs variables = [&](std::string_view name) { return &c.variable(name); };
  for (std::size_t i = 0; i < merged.size(); ++i) {
    const std::vector<TensorSpec> inputs = merged.inputs_of(i, c.inputs());
    for (const TensorSpec& output : infer_outputs(merged.update(i), inputs, variables)) c.add_output(output);
  }
}

Cost merged_cost(const NodeView& node, std::span<const TensorSpec> outputs) {
  const MergedUpdates merged(node);
  const NodeView::VariableSpecs variables = [&](std::string_view name) { return &node.variable(name); };
  Cost cost;
  for (std::size_t i = 0; i < merged.size(); ++i) {
    const std::vector<TensorSpec> inputs = merged.inputs_of(i, node.inputs());
    const auto own = outputs.subspan(merged.state(i, 0), merged.variables());
    if (merged.op().cost) {
      const Cost one = merged.op().cost(view_of(merged.update(i), inputs, variables), own);
      cost.flops += one.flops;
      cost.bytes += one.bytes;
      cost.seconds += one.seconds;
      continue;
    }
    for (const TensorSpec& output : own) cost.bytes += 2 * static_cast<double>(num_bytes(output));
    for (const TensorSpec& input : inputs) cost.bytes += static_cast<double>(num_bytes(input));
  }
  return cost;
}

Split merged_split(const NodeView&, std::span<const TensorSpec> outputs) {
  constexpr std::int64_t kBytesPerShard = std::int64_t{256}
                                          << 10;  // of new values, as in updates by themselves
  std::int64_t bytes = 0;
  for (const TensorSpec& output : outputs) bytes += num_bytes(output);
  return {shards_for(bytes, kBytesPerShard), 0, false};
}

}  // namespace

void register_merged_ops(OpRegistry& registry) {
  OpDef def;
  def.name = "merged_updates";
  def.summary = "updates of many variables by one op, as one node";
  def.inputs = Arity::at_least(1);
  def.regions = 1;
  def.effects = Effect::kReadsVariable | Effect::kWritesVariable;
  def.traits.infallible = true;
  def.traits.in_place = true;
  def.traits.merges_updates = true;
  def.infer = infer_merged;
  def.cost = merged_cost;
  def.split = merged_split;
  def.kernels["cpu"] = merged_kernel("cpu");
  registry.add(std::move(def));
}

}  // namespace internal

}  // namespace lockstep
