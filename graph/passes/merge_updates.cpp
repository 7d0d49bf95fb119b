// graph/passes/merge_updates.cpp - updates of many variables by one op become one node.
#include "lockstep/graph/passes/merge_updates.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/core/base/name_hash.h"
#include "lockstep/core/device.h"
#include "lockstep/core/topology.h"
#include "lockstep/graph/ir/attribute_hash.h"
#include "lockstep/graph/ops/merged/internal/merged_updates.h"
#include "lockstep/graph/passes/internal/registrations.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/rewriter.h"

namespace lockstep {
namespace {

constexpr std::string_view kMergeUpdates = "merge-updates";

// Which updates become one.
class Mergers {
 public:
  Mergers(const Graph& graph, const Topology* topology) : graph_(graph), topology_(topology) { look(); }

  // Nodes by id, in the order of their first ones; each group has at least two.
  std::vector<std::vector<NodeId>> groups() {
    for (const Node& node : graph_.nodes()) {
      if (can_be_merged(node)) add(node);
    }
    std::erase_if(groups_, [](const std::vector<NodeId>& group) { return group.size() < 2; });
    return std::move(groups_);
  }

 private:
  void look() {
    comes_before_.resize(graph_.id_bound());
    for (const ValueId result : graph_.results()) comes_before_[result.node.index()] = true;
    for (const Node& node : graph_.nodes()) {
      for (const ValueId input : node.inputs()) comes_before_[input.node.index()] = true;
      for (const NodeId control : node.controls()) comes_before_[control.index()] = true;
      if (!has(effects_of(node), Effect::kWritesVariable)) continue;
      for (const VariableUse& use : variable_uses(node)) writes_[use.name] += use.writes ? 1 : 0;
    }
  }

  bool can_be_merged(const Node& node) {
    if (!internal::may_merge(node.op()) || comes_before_[node.id().index()]) return false;
    const SmallVector<std::string, 1> names = updated_variables(node);
    if (names.empty() || names.size() != node.outputs().size()) return false;
    for (const std::string& name : names) {
      const VariableDecl* const decl = graph_.find_variable(name);
      if (decl == nullptr || decl->device != node.device() || writes_.at(name) != 1) return false;
    }
    return std::ranges::none_of(node.inputs(), [&](ValueId input) { return is_written(input); }) &&
           has_kernel(node);
  }

  // Is the value perhaps the memory of a variable that the step writes?
  bool is_written(ValueId value) const {
    const Node* node = &graph_.node(value.node);
    while ((node->op().traits.alias || node->op().traits.alias_if_same) && !node->inputs().empty())
      node = &graph_.node(node->inputs()[0].node);
    const auto& attribute = node->op().traits.reads_variable;
    const auto* variable = attribute ? node->find<VariableRef>(*attribute) : nullptr;
    return variable != nullptr && writes_.contains(variable->name);
  }

  // Wherever the node may run.
  bool has_kernel(const Node& node) {
    const auto [found, fresh] = kernels_.try_emplace({&node.op(), node.device()}, false);
    if (!fresh) return found->second;
    const auto merges = [&](std::string_view set) {
      const KernelDef* const kernel = OpRegistry::global().kernel(node.op(), set);
      return kernel != nullptr && kernel->merge && OpRegistry::global().kernel(merged_, set) != nullptr;
    };
    if (!node.device().empty()) {
      const Device device = Device::parse(node.device());
      const DeviceFacts* const facts = topology_ == nullptr ? nullptr : topology_->find(device);
      const std::string_view unknown = device.kind == DeviceKind::kCpu ? "cpu" : "";
      found->second = merges(facts == nullptr ? unknown : std::string_view(facts->kernels));
    } else if (topology_ == nullptr || topology_->devices().empty()) {
      found->second = merges("cpu");
    } else {
      found->second = std::ranges::all_of(topology_->devices(),
                                          [&](const DeviceFacts& facts) { return merges(facts.kernels); });
    }
    return found->second;
  }

  void add(const Node& node) {
    std::vector<std::size_t>& alike = by_hash_[hash_of(node)];
    for (const std::size_t group : alike) {
      if (!fit(graph_.node(groups_[group][0]), node)) continue;
      groups_[group].push_back(node.id());
      return;
    }
    alike.push_back(groups_.size());
    groups_.push_back({node.id()});
  }

  static bool is_operand(const Node& node, std::size_t input) {
    return input == node.op().traits.updates_variable->operand;
  }

  // Equal for all that fit.
  static std::uint64_t hash_of(const Node& node) {
    internal::Hasher hasher;
    hasher.add(static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(&node.op())));
    hasher.add(node.device()).add(static_cast<std::uint64_t>(node.provenance().replica));
    hasher.add(static_cast<std::uint64_t>(node.outputs()[0].dtype));
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      if (!is_operand(node, i)) hasher.add(node.inputs()[i].node.index()).add(node.inputs()[i].output);
    }
    for (const Attribute& attribute : node.attributes()) {
      if (!std::holds_alternative<VariableRef>(attribute.value)) internal::add_value(hasher, attribute.value);
    }
    return hasher.result();
  }

  static bool fit(const Node& a, const Node& b) {
    if (&a.op() != &b.op() || a.device() != b.device() || a.provenance().replica != b.provenance().replica ||
        a.outputs()[0].dtype != b.outputs()[0].dtype || a.inputs().size() != b.inputs().size())
      return false;
    for (std::size_t i = 0; i < a.inputs().size(); ++i) {
      if (!is_operand(a, i) && a.inputs()[i] != b.inputs()[i]) return false;
    }
    return internal::agree_but_for_variables(a, b);
  }

  const Graph& graph_;
  const Topology* topology_;
  const OpDef& merged_ = OpRegistry::global().get("merged_updates");
  std::vector<bool> comes_before_;  // by node: something reads it, or runs after it
  NameMap<std::size_t> writes_;     // by variable: how many nodes write it
  std::map<std::pair<const OpDef*, std::string>, bool> kernels_;
  std::unordered_map<std::uint64_t, std::vector<std::size_t>> by_hash_;
  std::vector<std::vector<NodeId>> groups_;
};

class MergeUpdates final : public Pass {
 public:
  std::string_view name() const override { return kMergeUpdates; }

 private:
  PassOutcome run_on(Graph& graph, PassContext& context) override {
    const std::vector<std::vector<NodeId>> groups = Mergers(graph, context.topology).groups();
    if (groups.empty()) return PassOutcome::kUnchanged;
    Rewriter edit(graph, name());
    std::vector<Rewriter::Replacement> gone;
    for (const std::vector<NodeId>& group : groups) {
      merge(edit, group);
      for (const NodeId id : group) gone.push_back({id});
    }
    edit.replace_and_erase(gone);
    return PassOutcome::kChanged;
  }

  void merge(Rewriter& edit, const std::vector<NodeId>& group) const {
    const Graph& graph = edit.graph();
    const Node& first = graph.node(group[0]);
    const std::size_t operand = first.op().traits.updates_variable->operand;
    Graph region;
    std::vector<ValueId> inputs;
    const auto enter = [&](ValueId value) {
      NodeInit init;
      init.op = &placeholder_;
      init.name = region.unique_name(graph.node(value.node).name());
      init.outputs = {graph.spec(value)};
      region.add_parameter(region.add(std::move(init)));
      inputs.push_back(value);
    };
    for (const NodeId id : group) enter(graph.node(id).inputs()[operand]);
    for (std::size_t i = 0; i < first.inputs().size(); ++i) {
      if (i != operand) enter(first.inputs()[i]);
    }
    std::vector<NodeId> controls;
    for (std::size_t i = 0; i < group.size(); ++i) {
      const Node& node = graph.node(group[i]);
      std::size_t shared = group.size();
      NodeInit init;
      init.op = &node.op();
      init.name = region.unique_name(node.name());
      for (std::size_t k = 0; k < node.inputs().size(); ++k)
        init.inputs.push_back({region.parameters()[k == operand ? i : shared++], 0});
      init.outputs = SmallVector<TensorSpec, 1>(node.outputs());
      init.attributes_of = &node;
      init.device = node.device();
      init.site = node.site();
      init.provenance = node.provenance();
      const NodeId made = region.add(std::move(init));
      for (std::uint32_t output = 0; output < node.outputs().size(); ++output)
        region.add_result({made, output});
      controls.insert(controls.end(), node.controls().begin(), node.controls().end());
    }
    std::ranges::sort(controls);
    controls.erase(std::unique(controls.begin(), controls.end()), controls.end());
    const std::string name = str(first.name(), "_and_", group.size() - 1, "_more");
    Rewriter::NewNode merged{.op = merged_.name, .name = name, .inputs = std::move(inputs)};
    merged.controls = std::move(controls);
    merged.regions.push_back(std::move(region));
    merged.origin = group[0];
    merged.why = "updates by one op";
    edit.insert(std::move(merged));
  }

  const OpDef& merged_ = OpRegistry::global().get("merged_updates");
  const OpDef& placeholder_ = OpRegistry::global().get("placeholder");
};

}  // namespace

std::unique_ptr<Pass> make_merge_updates() { return std::make_unique<MergeUpdates>(); }

void internal::register_merge_updates(PassRegistry& registry) {
  add_pass(registry, std::string(kMergeUpdates), "updates of many variables by one op become one node",
           make_merge_updates);
}

}  // namespace lockstep
