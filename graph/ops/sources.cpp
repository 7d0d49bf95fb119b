// graph/ops/sources.cpp - ops without inputs.
#include <cstring>

#include "lockstep/graph/internal/builtin_ops.h"
#include "lockstep/graph/ops.h"

namespace lockstep {

namespace {

OpDef placeholder_op() {
  OpDef def;
  def.name = "placeholder";
  def.summary = "a parameter of the graph: fed by the caller, or by the node that a region belongs to";
  def.infer = [](InferContext& c) {
    c.require(c.declared().size() == 1, "a placeholder states the spec of its one output");
    c.add_output(c.declared()[0]);
  };
  return def;
}

OpDef constant_op() {
  OpDef def;
  def.name = "constant";
  def.summary = "the tensor in its attribute `value`";
  def.attributes = {{"value", AttributeType::kTensor}};
  def.traits.gives_attribute = "value";
  def.infer = [](InferContext& c) {
    const Tensor& value = c.get<Tensor>("value");
    c.require(value.defined(), "the value is an empty tensor handle");
    c.add_output(value.spec());
  };
  def.kernels[DeviceKind::kCpu] = [](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
    return [value = node.get<Tensor>("value")](KernelContext& c) {
      if (value.num_bytes() > 0) std::memcpy(c.output(0), value.raw(), value.num_bytes());
    };
  };
  return def;
}

OpDef replica_id_op() {
  OpDef def;
  def.name = "replica_id";
  def.summary = "the number of the replica that runs it, i32; 0 where nothing is replicated";
  def.traits.per_replica_source = true;
  def.infer = [](InferContext& c) { c.add_output(DType::kI32, Shape{}); };
  def.kernels[DeviceKind::kCpu] = [](const NodeView&, std::span<const TensorSpec>) -> KernelFn {
    return [](KernelContext& c) { *static_cast<std::int32_t*>(c.output(0)) = c.replica(); };
  };
  return def;
}

}  // namespace

void register_source_ops(OpRegistry& registry) {
  registry.add(placeholder_op());
  registry.add(constant_op());
  registry.add(replica_id_op());
}

Value replica_id(GraphBuilder& builder, SourceSite site) {
  return builder.op1("replica_id", {}, {}, {}, site);
}

}  // namespace lockstep
