// graph/ops/call.cpp - C++ code as a node.
#include "lockstep/graph/ops/internal/builtin_ops.h"

namespace lockstep {

namespace {

constexpr double kUnknownSeconds = 1e-6;  // if the caller gave no hint

}  // namespace

void internal::register_call_ops(OpRegistry& registry) {
  OpDef def;
  def.name = "call";
  def.summary = "calls a C++ function; opaque to everyone else";
  def.inputs = Arity::at_least(0);
  def.attributes = {{"effects", AttributeType::kInt},
                    {"function", AttributeType::kLambda},
                    {"seconds", AttributeType::kFloat, false}};
  def.effects = Effect::kHost;
  def.traits.declares_effects = true;
  def.traits.role = ReplicaRole::kOwnSource;
  def.infer = [](InferContext& c) {
    for (const TensorSpec& output : c.declared()) {
      if (!output.shape.is_known()) {
        NodeView::fail(str("an output is declared ", output,
                           ": a lambda's outputs need known shapes; register an op ",
                           "with an inference rule to compute shapes from the inputs"));
      }
      c.add_output(output);
    }
  };
  def.cost = [](const NodeView& node, std::span<const TensorSpec>) {
    return Cost{0, 0, node.get_or<double>("seconds", kUnknownSeconds)};
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
    return node.get<Lambda>("function").function;
  };
  registry.add(std::move(def));
}

}  // namespace lockstep
