#include "lockstep/graph/passes/constant_folding.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/graph/internal/eval.h"
#include "lockstep/graph/pass_options.h"
#include "lockstep/graph/rewriter.h"

namespace lockstep {
namespace {

class ConstantFolding final : public Pass {
 public:
  explicit ConstantFolding(ConstantFoldingOptions options) : options_(options) {}
  std::string_view name() const override { return "constant-folding"; }
  std::string to_string() const override { return print_pass(name(), {{"max_bytes", options_.max_bytes}}); }

 private:
  PassOutcome run_on(Graph& graph, PassContext& /*context*/) override {
    bool changed = false;
    for_each_level(graph, [&](Graph& level) { changed = fold(level) || changed; });
    return outcome_of(changed);
  }

  bool fold(Graph& graph) const {
    std::vector<std::vector<Tensor>> known(graph.id_bound());  // of constants and folded nodes
    std::vector<bool> is_folded(graph.id_bound(), false);
    std::vector<NodeId> folded;
    std::vector<Tensor> inputs;
    for (const NodeId id : graph.topological_order()) {
      const Node& node = graph.node(id);
      if (&node.op() == &constant_) {
        if (node.controls().empty()) known[id.index()] = {*node.find<Tensor>("value")};
        continue;
      }
      inputs.clear();
      for (const ValueId input : node.inputs()) {
        const std::vector<Tensor>& values = known[input.node.index()];
        if (input.output < values.size()) inputs.push_back(values[input.output]);
      }
      if (inputs.size() < node.inputs().size() || !may_fold(node)) continue;
      known[id.index()] = values_of(node, inputs);
      if (known[id.index()].empty()) continue;
      is_folded[id.index()] = true;
      folded.push_back(id);
    }
    if (folded.empty()) return false;
    replace(graph, folded, is_folded, known);
    return true;
  }

  bool may_fold(const Node& node) const {
    if (node.inputs().empty() || !node.controls().empty() || !node.regions().empty()) return false;
    if (node.outputs().empty() || node.op().traits.per_replica_source || effects_of(node) != Effect::kPure)
      return false;
    std::int64_t bytes = 0;
    for (const TensorSpec& output : node.outputs()) {
      if (!output.shape.is_known()) return false;
      bytes += num_bytes(output);
    }
    return bytes <= options_.max_bytes;
  }

  // None where the kernel throws: the run will report it, with the node's place.
  static std::vector<Tensor> values_of(const Node& node, std::span<const Tensor> inputs) {
    std::vector<Tensor> values;
    try {
      values = internal::evaluate(node, inputs, {});
    } catch (...) {
      return {};
    }
    const bool as_declared =
        std::ranges::equal(values, node.outputs(),
                           [](const Tensor& value, const TensorSpec& spec) { return value.spec() == spec; });
    return as_declared ? values : std::vector<Tensor>();
  }

  void replace(Graph& graph, const std::vector<NodeId>& folded, const std::vector<bool>& is_folded,
               const std::vector<std::vector<Tensor>>& known) const {
    Rewriter edit(graph, name());
    std::vector<Rewriter::Replacement> replacements;
    std::vector<std::pair<NodeId, std::string>>
        names;  // each constant takes its node's name once that is gone
    const auto stays = [&](NodeId user) { return !user.valid() || !is_folded[user.index()]; };
    for (const NodeId id : folded) {
      Rewriter::Replacement& replacement = replacements.emplace_back(Rewriter::Replacement{id});
      const std::vector<NodeId> followers = edit.control_users(id);
      bool needed = std::ranges::any_of(followers, stays);
      for (std::uint32_t i = 0; i < graph.node(id).outputs().size() && !needed; ++i) {
        needed = std::ranges::any_of(edit.uses({id, i}), [&](const Use& use) { return stays(use.user); });
      }
      if (!needed) continue;
      for (const Tensor& value : known[id.index()]) {
        const std::string& old_name = graph.node(id).name();
        const NodeId made = edit.insert({.op = constant_.name,
                                         .name = old_name,
                                         .attributes = {{"value", value}},
                                         .origin = id,
                                         .why = "its inputs are constants"});
        if (replacement.to.empty()) names.emplace_back(made, old_name);
        replacement.to.push_back({made, 0});
      }
    }
    edit.replace_and_erase(replacements);
    for (const auto& [constant, old_name] : names) edit.rename(constant, old_name);
  }

  ConstantFoldingOptions options_;
  const OpDef& constant_ = OpRegistry::global().get("constant");
};

}  // namespace

std::unique_ptr<Pass> make_constant_folding(ConstantFoldingOptions options) {
  return std::make_unique<ConstantFolding>(options);
}

}  // namespace lockstep
