// graph/ops/sources.cpp - ops without inputs.
#include <cstring>

#include "lockstep/core/kernels/random.h"
#include "lockstep/graph/internal/builtin_ops.h"
#include "lockstep/graph/ops.h"

namespace lockstep {

namespace {

constexpr std::int64_t kRandomGrain = 16 << 10;  // elements a shard; about 30 us

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

OpDef random_uniform_op() {
  OpDef def;
  def.name = "random_uniform";
  def.summary = "independent draws from [low, high), decided by seed, key, replica and step alone";
  def.attributes = {{"dtype", AttributeType::kDType},
                    {"shape", AttributeType::kShape},
                    {"low", AttributeType::kFloat},
                    {"high", AttributeType::kFloat},
                    {"key", AttributeType::kInt}};
  def.effects = Effect::kRandom;
  def.infer = [](InferContext& c) {
    const DType dtype = c.get<DType>("dtype");
    const Shape& shape = c.get<Shape>("shape");
    if (!is_floating(dtype)) NodeView::fail(str("dtype must be floating, got ", dtype));
    if (!shape.is_known()) NodeView::fail(str("shape must be known, got ", shape));
    c.require(c.get<double>("low") <= c.get<double>("high"), "low must not exceed high");
    c.add_output(dtype, shape);
  };
  def.cost = [](const NodeView&, std::span<const TensorSpec> outputs) {
    const double n = static_cast<double>(outputs[0].shape.num_elements());
    return Cost{12 * n, n * static_cast<double>(size_of(outputs[0].dtype)), 0};
  };
  def.split = [](const NodeView&, std::span<const TensorSpec> outputs) {
    return Split{shards_for(outputs[0].shape.num_elements(), kRandomGrain), 0, false};
  };
  def.kernels[DeviceKind::kCpu] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return [dtype = outputs[0].dtype, n = outputs[0].shape.num_elements(), low = node.get<double>("low"),
            high = node.get<double>("high"),
            key = static_cast<std::uint64_t>(node.get<std::int64_t>("key"))](KernelContext& c) {
      const auto [begin, end] = c.range(n);
      kernels::uniform(dtype, c.random(key), low, high, c.output(0), begin, end);
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
  registry.add(random_uniform_op());
  registry.add(replica_id_op());
}

Value replica_id(GraphBuilder& builder, SourceSite site) {
  return builder.op1("replica_id", {}, {}, {}, site);
}

}  // namespace lockstep
