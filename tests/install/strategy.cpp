// A strategy, passes and an op that Lockstep has never heard of, with the installed headers alone: the op is
// distributed right, a pass scales gradients on each replica before they are summed, and one that breaks
// lockstep is refused with the chain of nodes.
#include <iostream>
#include <string>

#include "lockstep/lockstep.h"

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program of its own

namespace {

// w -= sign(gradient) * 0.25: what it updates, and that its operand is a gradient, is all that strategies
// need to know.
OpDef sign_step() {
  OpDef def;
  def.name = "consumer_sign_step";
  def.inputs = Arity::exactly(1);
  def.attributes = {{"variable", AttributeType::kVariable}};
  def.effects = Effect::kReadsVariable | Effect::kWritesVariable;
  def.traits.infallible = true;
  def.traits.in_place = true;
  OpTraits::Update update;
  update.attribute = "variable";
  update.gradient = true;
  def.traits.updates_variable = update;
  def.infer = [](InferContext& c) { c.add_output(c.variable(c.get<VariableRef>("variable").name)); };
  def.kernels["cpu"] = [](const NodeView&, std::span<const TensorSpec>) -> KernelFn {
    return [](KernelContext& c) {
      const auto w = c.input<float>(0), g = c.input<float>(1);
      for (std::size_t i = 0; i < w.size(); ++i)
        c.output<float>(0)[i] = w[i] - (g[i] > 0 ? 0.25F : g[i] < 0 ? -0.25F : 0.F);
    };
  };
  return def;
}

// Multiplies every gradient by a factor, in one replica's step: whatever the op is that takes it.
class ScaleGradients final : public Pass {
 public:
  explicit ScaleGradients(double factor) : factor_(factor) {}
  std::string_view name() const override { return "consumer-scale-gradients"; }

 private:
  PassOutcome run_on(Graph& graph, PassContext&) override {
    bool changed = false;
    for_each_level(graph, [&](Graph& level) {
      Rewriter edit(level, name(), &graph);
      std::vector<NodeId> updates;
      for (const Node& node : level.nodes()) {
        const auto& update = node.op().traits.updates_variable;
        if (update && update->gradient) updates.push_back(node.id());
      }
      for (const NodeId id : updates) {
        const std::size_t operand = level.node(id).op().traits.updates_variable->operand;
        const ValueId gradient = level.node(id).inputs()[operand];
        const Tensor factor = Tensor::full(level.spec(gradient).dtype, Shape{}, factor_);
        const NodeId by = edit.insert({.op = "constant", .attributes = {{"value", factor}}, .origin = id});
        const NodeId scaled = edit.insert({.op = "mul",
                                           .name = level.node(id).name() + "/scaled",
                                           .inputs = {gradient, {by, 0}},
                                           .origin = id,
                                           .why = "smaller steps"});
        edit.set_input(id, operand, {scaled, 0});
      }
      changed = changed || edit.changed();
    });
    return outcome_of(changed);
  }

  double factor_;
};

// After replication, makes replica 1 update its copy with its own gradient.
class BreakLockstep final : public Pass {
 public:
  std::string_view name() const override { return "consumer-break-lockstep"; }

 private:
  PassOutcome run_on(Graph& graph, PassContext&) override {
    Rewriter edit(graph, name());
    for (const Node& node : graph.nodes()) {
      if (node.op().name != "consumer_sign_step" || node.provenance().replica != 1) continue;
      const ValueId operand = node.inputs()[0];
      const std::size_t own = graph.node(operand.node).inputs().size() - 1;
      edit.set_input(node.id(), 0, graph.node(operand.node).inputs()[own]);
      return PassOutcome::kChanged;
    }
    return PassOutcome::kUnchanged;
  }
};

class OwnStrategy final : public Strategy {
 public:
  explicit OwnStrategy(bool broken) : Strategy({"cpu:0", "cpu:1"}), broken_(broken) {}
  std::string_view name() const override { return "OwnStrategy"; }
  PassPipeline pipeline() const override {
    return PassRegistry::global().parse_pipeline(
        std::string("consumer-scale-gradients(factor=0.25),mirror-variables,insert-all-reduce,replicate,") +
        (broken_ ? "consumer-break-lockstep," : "") + "prove-sync,share-mirrored,lower-collectives");
  }

 private:
  bool broken_;
};

struct Trained {
  float w, v;
  int scaled;  // nodes that scale
};

Trained train(bool broken) {
  OwnStrategy strategy(broken);
  auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(1.F)), v("v", Tensor::scalar(1.F));
  const auto step = strategy.function({InputSpec(DType::kF32, {kUnknown}, "x")}, [=](Value x) {
    const Value loss = global_sum(x * w + x * v);
    const Value gradient = gradients(loss, {static_cast<VariableRef>(w)})[0];
    Sgd(0.5).minimize(loss, {v});
    x.builder().op("consumer_sign_step", {{gradient}}, {{"variable", static_cast<VariableRef>(w)}});
    return loss;
  });
  // The sum of the gradients is 2 - 3 = -1: w goes up, although replica 0 alone would send it down.
  step(PerReplica<Tensor>({Tensor::from({2}, {1.F, 1.F}), Tensor::from({1}, {-3.F})}));
  int scaled = 0;
  for (const Node& node : step.replicated_graph().nodes()) scaled += node.name().ends_with("/scaled") ? 1 : 0;
  return {w.value().data<float>()[0], v.value().data<float>()[0], scaled};
}

}  // namespace

bool distributes_what_it_has_never_seen() {
  OpRegistry::global().add(sign_step());
  PassRegistry::global().add({.name = "consumer-break-lockstep", .summary = "breaks lockstep"},
                             [](const PassOptions&) { return std::make_unique<BreakLockstep>(); });
  PassRegistry::global().add(
      {.name = "consumer-scale-gradients",
       .summary = "scales gradients",
       .options =
           {{.name = "factor", .type = OptionType::kFloat, .fallback = 1.0, .summary = "multiplies them"}}},
      [](const PassOptions& options) {
        return std::make_unique<ScaleGradients>(options.get_float("factor"));
      });
  const Trained trained = train(false);
  std::string refusal;
  try {
    train(true);
  } catch (const Error& error) {
    refusal = error.what();
  }
  std::cout << "w is " << trained.w << ", v " << trained.v << ", " << trained.scaled
            << " gradients were scaled; refused: " << refusal << '\n';
  // v by a quarter of the gradient -1; both gradients on both replicas.
  return trained.w == 1.25F && trained.v == 1 + 0.5F * 0.25F && trained.scaled == 4 &&
         refusal.find("prove-sync") != std::string::npos && refusal.find("w/replica_1") != std::string::npos;
}
