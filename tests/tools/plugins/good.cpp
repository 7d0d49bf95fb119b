// A plugin with an op, a pass and a strategy, as an application would write it.
#include <memory>
#include <utility>

#include "lockstep/graph/transform/plugin.h"
#include "lockstep/graph/transform/rewriter.h"
#include "lockstep/strategies/strategy_registry.h"

namespace {

using namespace lockstep;

// relu(relu(x)) is relu(x).
class RemoveDoubleRelu final : public Pass {
 public:
  std::string_view name() const override { return "remove-double-relu"; }

 private:
  PassOutcome run_on(Graph& graph, PassContext&) override {
    Rewriter edit(graph, name());
    for (const NodeId id : graph.topological_order()) {
      const Node& node = graph.node(id);
      if (node.op().name != "relu" || graph.node(node.inputs()[0].node).op().name != "relu") continue;
      edit.replace_uses({id, 0}, node.inputs()[0]);
      edit.erase(id);
    }
    return outcome_of(edit.changed());
  }
};

// Leaves the graph broken, and says nothing of it.
class LosesANode final : public Pass {
 public:
  std::string_view name() const override { return "loses-a-node"; }

 private:
  PassOutcome run_on(Graph& graph, PassContext&) override {
    graph.erase(graph.find("a"));
    return PassOutcome::kChanged;
  }
};

class Plain final : public Strategy {
 public:
  Plain(const std::vector<std::string>& devices, StrategyOptions base) : Strategy(devices, std::move(base)) {}
  std::string_view name() const override { return "Plain"; }
  PassPipeline pipeline() const override {
    return PassRegistry::global().parse_pipeline("mirror-variables,insert-all-reduce,replicate,prove-sync");
  }
};

OpDef thrice() {
  OpDef op;
  op.name = "thrice";
  op.summary = "three times its input";
  op.inputs = Arity::exactly(1);
  op.infer = [](InferContext& c) { c.add_output(c.input(0)); };
  op.traits.elementwise = true;
  op.kernels["cpu"] = [](const NodeView&, std::span<const TensorSpec>) -> KernelFn {
    return [](KernelContext& c) {
      const std::span<const float> in = c.input<float>(0);
      const std::span<float> out = c.output<float>(0);
      for (std::size_t i = 0; i < in.size(); ++i) out[i] = 3 * in[i];
    };
  };
  return op;
}

}  // namespace

LOCKSTEP_PLUGIN("good") {
  OpRegistry::global().add(thrice());
  PassRegistry::global().add({.name = "remove-double-relu", .summary = "relu(relu(x)) is relu(x)"},
                             [](const PassOptions&) { return std::make_unique<RemoveDoubleRelu>(); });
  PassRegistry::global().add({.name = "loses-a-node", .summary = "breaks its contract"},
                             [](const PassOptions&) { return std::make_unique<LosesANode>(); });
  StrategyRegistry::global().add(
      {.name = "plain", .summary = "replicas, and nothing clever", .options = {devices_option()}},
      [](const PassOptions& given, const StrategyOptions& base) {
        return std::make_unique<Plain>(given.get_list("devices"), base);
      });
}
