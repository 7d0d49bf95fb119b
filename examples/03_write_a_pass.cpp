// A pass of your own: relu(relu(x)) is relu(x).
//
//   x --> relu --> relu --> result            x --> relu --> result
//                                       -->
//
// It is registered under a name and run as part of a pipeline that is written as text. The pipeline verifies
// the graph after each pass and checks what the pass says about itself.
#include <iostream>
#include <memory>

#include "lockstep/lockstep.h"

using namespace lockstep;

class RemoveDoubleRelu final : public Pass {
 public:
  std::string_view name() const override { return "remove-double-relu"; }

 private:
  PassOutcome run_on(Graph& graph, PassContext&) override {
    const OpDef& relu = OpRegistry::global().get("relu");
    Rewriter edit(graph, name());
    for (const Node& node : graph.nodes()) {
      if (&node.op() != &relu) continue;
      const ValueId input = node.inputs()[0];
      if (&graph.node(input.node).op() == &relu) edit.replace_uses({node.id(), 0}, input);
    }
    return outcome_of(edit.changed());
  }
};

int main() {
  PassRegistry::global().add({.name = "remove-double-relu", .summary = "relu(relu(x)) is relu(x)"},
                             [](const PassOptions&) { return std::make_unique<RemoveDoubleRelu>(); });

  GraphBuilder b;
  Value x = b.placeholder("x", DType::kF32, {kUnknown, 4});
  Value y = relu(relu(relu(x + 1.0F)));
  b.result(y);
  Graph graph = b.finish();
  std::cout << "before:\n" << print(graph);

  PassPipeline pipeline = PassRegistry::global().parse_pipeline(
      "remove-double-relu,dead-node-elimination,constant-folding(max_bytes=4KiB)");
  const PipelineReport report = pipeline.run(graph);
  std::cout << "\nafter:\n" << print(graph) << '\n';
  for (const PassReport& pass : report.passes) {
    std::cout << pass.name << ": " << to_string(pass.outcome) << ", " << pass.nodes_before << " -> "
              << pass.nodes_after << " nodes\n";
  }
}
