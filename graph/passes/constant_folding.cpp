// graph/passes/constant_folding.cpp - computes now what never changes.
#include "lockstep/graph/passes/constant_folding.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/graph/ir/internal/evaluate_node.h"
#include "lockstep/graph/ir/internal/shape_values.h"
#include "lockstep/graph/passes/internal/registrations.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/pass_options.h"
#include "lockstep/graph/transform/rewriter.h"

namespace lockstep {
namespace {

const OptionTable<ConstantFoldingOptions>& constant_folding_options() {
  static const auto table =
      OptionTable<ConstantFoldingOptions>("constant-folding", "computes now what never changes")
          .option("max_bytes", &ConstantFoldingOptions::max_bytes, "larger results are computed at run time");
  return table;
}

// Do all replicas compute the same value, if the inputs are constants?
bool folds(ReplicaRole role) {
  return role == ReplicaRole::kNone || role == ReplicaRole::kLoweredCollective || role == ReplicaRole::kAgree;
}

class ConstantFolding final : public Pass {
 public:
  explicit ConstantFolding(ConstantFoldingOptions options) : options_(options) {}
  std::string_view name() const override { return "constant-folding"; }
  std::string to_string() const override { return constant_folding_options().print(options_); }

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
    const std::vector<NodeId> order = graph.topological_order();
    const std::vector<bool> decides_shapes = deciding_shapes(graph, order);
    internal::StaticElements elements(graph);
    for (const NodeId id : order) {
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
      if (decides_shapes[id.index()] && !is_known(elements, node)) continue;
      known[id.index()] = values_of(node, inputs);
      if (known[id.index()].empty()) continue;
      is_folded[id.index()] = true;
      folded.push_back(id);
    }
    if (folded.empty()) return false;
    replace(graph, folded, is_folded, known);
    return true;
  }

  // By id: the nodes that shape operands are computed from. If their values are unknown, the graph states the
  // resulting shapes as unknown; constants in their place would say more than the graph states.
  static std::vector<bool> deciding_shapes(const Graph& graph, const std::vector<NodeId>& order) {
    std::vector<bool> decides(graph.id_bound(), false);
    for (auto id = order.rbegin(); id != order.rend(); ++id) {
      const Node& node = graph.node(*id);
      for (const std::size_t operand : node.op().shape_operands) {
        if (operand < node.inputs().size()) decides[node.inputs()[operand].node.index()] = true;
      }
      if (!decides[id->index()] || node.op().traits.gives_shape) continue;
      for (const ValueId input : node.inputs()) decides[input.node.index()] = true;
    }
    return decides;
  }

  static bool is_known(internal::StaticElements& elements, const Node& node) {
    try {
      for (std::uint32_t i = 0; i < node.outputs().size(); ++i) {
        if (std::ranges::find(elements.of({node.id(), i}), kUnknownElement) !=
            elements.of({node.id(), i}).end())
          return false;
      }
      return true;
    } catch (const InvalidArgument&) {  // no shape may follow from this value
      return false;
    }
  }

  bool may_fold(const Node& node) const {
    if (node.inputs().empty() || !node.controls().empty() || !node.regions().empty()) return false;
    const OpTraits& traits = node.op().traits;
    if (node.outputs().empty() || !folds(traits.role)) return false;
    if (effects_of(node) != Effect::kPure) return false;
    std::int64_t left = options_.max_bytes;
    for (const TensorSpec& output : node.outputs()) {
      if (!output.shape.is_known() || !fits(output, left)) return false;
      left -= num_bytes(output);
    }
    return true;
  }

  // If the size overflows, it is up to the run to refuse it, if the node runs at all.
  static bool fits(const TensorSpec& spec, std::int64_t bytes) {
    const auto size = static_cast<std::int64_t>(size_of(spec.dtype));
    return spec.shape.num_elements() <= bytes / size;
  }

  // Empty if the kernel throws: the run will report it, with the node's place.
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
    std::vector<Rewriter::Replacement> gone;
    const auto stays = [&](NodeId user) { return !user.valid() || !is_folded[user.index()]; };
    const auto is_needed = [&](NodeId id) {
      if (std::ranges::any_of(edit.control_users(id), stays)) return true;
      for (std::uint32_t i = 0; i < graph.node(id).outputs().size(); ++i) {
        if (std::ranges::any_of(edit.uses({id, i}), [&](const Use& use) { return stays(use.user); }))
          return true;
      }
      return false;
    };
    // Readers first: is_needed() must see a node's readers before they are replaced.
    for (std::size_t i = folded.size(); i-- > 0;) {
      const NodeId id = folded[i];
      const std::vector<Tensor>& values = known[id.index()];
      if (!is_needed(id)) {
        gone.push_back({id});
      } else if (values.size() == 1) {
        edit.become(id, constant(values[0]));
      } else {
        Rewriter::Replacement& replacement = gone.emplace_back(Rewriter::Replacement{id});
        for (const Tensor& value : values) {
          Rewriter::NewNode node = constant(value);
          node.name = graph.node(id).name();
          node.origin = id;
          replacement.to.push_back({edit.insert(std::move(node)), 0});
        }
      }
    }
    edit.replace_and_erase(gone);
  }

  Rewriter::NewNode constant(const Tensor& value) const {
    Rewriter::NewNode node{.op = constant_.name, .why = "its inputs are constants"};
    node.attributes.push_back({"value", value});
    return node;
  }

  ConstantFoldingOptions options_;
  const OpDef& constant_ = OpRegistry::global().get("constant");
};

}  // namespace

std::unique_ptr<Pass> make_constant_folding(ConstantFoldingOptions options) {
  if (options.max_bytes < 0)
    throw BadOptionValue(str("max_bytes must be at least 0, got ", options.max_bytes));
  return std::make_unique<ConstantFolding>(options);
}

void internal::register_constant_folding(PassRegistry& registry) {
  add_pass(registry, constant_folding_options(), make_constant_folding);
}

}  // namespace lockstep
