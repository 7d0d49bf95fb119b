// graph/ops/variables.cpp - reading and writing declared state.
//
// The kernel of an update takes the variable's current value before the node's inputs and gives the new value; it
// may run in place, and it never fails.
#include "lockstep/core/kernels/elementwise.h"
#include "lockstep/graph/internal/builtin_ops.h"

namespace lockstep {

namespace {

constexpr std::int64_t kGrain = 64 << 10;

OpDef variable_op(std::string name, std::string summary, std::size_t inputs, Effect effects) {
  OpDef def;
  def.name = std::move(name);
  def.summary = std::move(summary);
  def.inputs = Arity::exactly(inputs);
  def.attributes = {{"variable", AttributeType::kVariable}};
  def.effects = effects;
  def.traits.infallible = true;
  def.traits.in_place = true;
  def.split = [](const NodeView&, std::span<const TensorSpec> outputs) {
    return Split{shards_for(outputs[0].shape.num_elements(), kGrain), 0, false};
  };
  return def;
}

void infer_update(InferContext& c) {
  const std::string& name = c.get<VariableRef>("variable").name;
  const TensorSpec& spec = c.variable(name);
  if (c.input(0).dtype != spec.dtype || !c.input(0).shape.admits(spec.shape)) {
    NodeView::fail(str("variable '", name, "' holds ", spec, ", got a value of ", c.input(0)));
  }
  c.add_output(spec);
}

OpDef read_op() {
  OpDef def =
      variable_op("read", "the variable's value at this point of the program", 0, Effect::kReadsVariable);
  def.traits.reads_variable = "variable";
  def.infer = [](InferContext& c) { c.add_output(c.variable(c.get<VariableRef>("variable").name)); };
  return def;
}

OpDef assign_op() {
  OpDef def = variable_op("assign", "sets the variable; gives the new value", 1, Effect::kWritesVariable);
  def.traits.updates_variable = OpTraits::Update{"variable", 0, false, {}, false, {}};
  def.infer = infer_update;
  def.kernels[DeviceKind::kCpu] = [](const NodeView&, std::span<const TensorSpec> outputs) -> KernelFn {
    return [dtype = outputs[0].dtype, n = outputs[0].shape.num_elements()](KernelContext& c) {
      const auto [begin, end] = c.range(n);
      kernels::copy(dtype, c.input(1), c.output(0), begin, end);
    };
  };
  return def;
}

OpDef assign_add_op() {
  OpDef def = variable_op("assign_add", "adds to the variable; gives the new value", 1,
                          Effect::kReadsVariable | Effect::kWritesVariable);
  def.traits.updates_variable = OpTraits::Update{"variable", 0, true, {}, false, {}};
  def.infer = [](InferContext& c) {
    c.require(c.input(0).dtype != DType::kBool, "has no meaning for bool");
    infer_update(c);
  };
  def.kernels[DeviceKind::kCpu] = [](const NodeView&, std::span<const TensorSpec> outputs) -> KernelFn {
    return [spec = outputs[0], n = outputs[0].shape.num_elements()](KernelContext& c) {
      const auto [begin, end] = c.range(n);
      kernels::binary(kernels::BinaryOp::kAdd, spec.dtype, spec.shape, c.input(0), spec.shape, c.input(1),
                      spec.shape, c.output(0), begin, end);
    };
  };
  return def;
}

}  // namespace

void register_variable_ops(OpRegistry& registry) {
  registry.add(read_op());
  registry.add(assign_op());
  registry.add(assign_add_op());
}

}  // namespace lockstep
