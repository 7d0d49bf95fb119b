// graph/ops/sources.cpp - ops without inputs.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "lockstep/core/kernels/cast.h"
#include "lockstep/core/kernels/elementwise.h"
#include "lockstep/graph/ops/gradient_rule.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/ops/rules/internal/shape_rules.h"

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
  def.traits.shape_math = true;
  def.infer = [](InferContext& c) {
    const Tensor& value = c.get<Tensor>("value");
    c.require(value.defined(), "the value is an empty tensor handle");
    c.add_output(value.spec());
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
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
  def.traits.role = ReplicaRole::kReplicaNumber;
  def.infer = [](InferContext& c) { c.add_output(DType::kI32, Shape{}); };
  def.kernels["cpu"] = [](const NodeView&, std::span<const TensorSpec>) -> KernelFn {
    return [](KernelContext& c) { *static_cast<std::int32_t*>(c.output(0)) = c.replica(); };
  };
  return def;
}

OpDef full_op() {
  OpDef def;
  def.name = "full";
  def.summary = "a tensor of the given shape, every element `value`";
  def.inputs = Arity::between(0, 1);
  def.attributes = {{"dtype", AttributeType::kDType},
                    {"shape", AttributeType::kShape, false},
                    {"value", AttributeType::kFloat}};
  def.shape_operands = {0};
  def.traits.infallible = true;
  def.traits.shape_math = true;
  def.infer = [](InferContext& c) {
    const DType dtype = c.get<DType>("dtype");
    const auto* attribute = c.find<Shape>("shape");
    if (attribute != nullptr && !attribute->is_known())
      NodeView::fail(str("shape must be known, got ", *attribute));
    internal::check_number(c.get<double>("value"), dtype);
    c.add_output(dtype, internal::target_shape_of(c, 0));
  };
  def.gradient = [](GradientContext& c) { return std::vector<Gradient>(c.num_inputs()); };
  def.split = internal::copy_split;
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    const DType dtype = outputs[0].dtype;
    return [dtype, value = Tensor::full(dtype, Shape{}, node.get<double>("value")),
            n = outputs[0].shape.num_elements()](KernelContext& c) {
      const auto [begin, end] = c.range(n);
      kernels::fill(dtype, value.raw(), c.output(0), begin, end);
    };
  };
  return def;
}

template <class T>
void count_up(T* out, double start, double step, std::int64_t begin, std::int64_t end) {
  if constexpr (std::is_integral_v<T>) {
    const auto first = static_cast<std::uint64_t>(static_cast<std::int64_t>(start));
    const auto by = static_cast<std::uint64_t>(static_cast<std::int64_t>(step));
    for (std::int64_t i = begin; i < end; ++i)
      out[i] = static_cast<T>(first + by * static_cast<std::uint64_t>(i));
  } else {
    const kernels::UnaryLoop round = kernels::cast_loop(DType::kF64, dtype_of<T>);
    constexpr std::int64_t kPiece = 256;
    double values[kPiece];
    for (std::int64_t at = begin; at < end; at += kPiece) {
      const std::int64_t count = std::min(kPiece, end - at);
      for (std::int64_t i = 0; i < count; ++i) values[i] = start + step * static_cast<double>(at + i);
      round(values, out + at, count);
    }
  }
}

// The number of elements; kUnknownElement if it is not known yet.
std::int64_t iota_count(const NodeView& node) {
  const auto* attribute = node.find<std::int64_t>("count");
  if ((attribute != nullptr) == (node.num_inputs() == 1))
    NodeView::fail("needs the attribute 'count', or the count as its input");
  if (attribute != nullptr) return *attribute;
  const TensorSpec& spec = node.input(0);
  const bool one = spec.shape == Shape{} || spec.shape == Shape{1};
  if ((spec.dtype != DType::kI64 && spec.dtype != DType::kI32) || !one)
    NodeView::fail(str("the count must be an i64 scalar or vector of one, got ", spec));
  return node.shape_operand(0).at(0);
}

OpDef iota_op() {
  OpDef def;
  def.name = "iota";
  def.summary = "start, start + step, start + 2 step, ...: `count` elements";
  def.inputs = Arity::between(0, 1);
  def.attributes = {{"count", AttributeType::kInt, false},
                    {"dtype", AttributeType::kDType},
                    {"start", AttributeType::kFloat},
                    {"step", AttributeType::kFloat}};
  def.shape_operands = {0};
  def.traits.infallible = true;
  def.traits.shape_math = true;
  def.infer = [](InferContext& c) {
    const DType dtype = c.get<DType>("dtype");
    if (dtype == DType::kBool) NodeView::fail("has no meaning for bool");
    for (const char* name : {"start", "step"}) {
      const double value = c.get<double>(name);
      const bool counts = is_integer(dtype) && value == std::trunc(value);  // such numbers count in 64 bits
      internal::check_number(value, counts ? DType::kI64 : dtype);
    }
    const std::int64_t count = iota_count(c);
    if (count < 0 && count != kUnknownElement)
      NodeView::fail(str("the count is ", count, "; it must be 0 or more"));
    c.add_output(dtype, Shape{count == kUnknownElement ? kUnknown : count});
  };
  def.gradient = [](GradientContext& c) { return std::vector<Gradient>(c.num_inputs()); };
  def.split = internal::copy_split;
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return [dtype = outputs[0].dtype, n = outputs[0].shape.num_elements(), start = node.get<double>("start"),
            step = node.get<double>("step")](KernelContext& c) {
      const auto [begin, end] = c.range(n);
      visit_dtype(dtype, [&, from = begin, to = end]<class T>(T) {
        if constexpr (!std::is_same_v<T, bool>) count_up(static_cast<T*>(c.output(0)), start, step, from, to);
      });
    };
  };
  return def;
}

constexpr std::int64_t kSmallConstant = 256;  // at most this many elements are stored in the graph

}  // namespace

void internal::register_source_ops(OpRegistry& registry) {
  registry.add(placeholder_op());
  registry.add(constant_op());
  registry.add(replica_id_op());
  registry.add(full_op());
  registry.add(iota_op());
}

Value replica_id(GraphBuilder& builder, SourceSite site) {
  return builder.op1("replica_id", {}, {}, {}, site);
}

Value full(GraphBuilder& builder, DType dtype, const Shape& shape, double value, SourceSite site) {
  const bool whole = is_floating(dtype) || value == std::trunc(value);  // if not, the op says what is wrong
  if (whole && shape.is_known() && shape.num_elements() <= kSmallConstant) {
    return builder.constant(Tensor::full(dtype, shape, value), "full", site);
  }
  return builder.op1("full", {}, {{"dtype", dtype}, {"shape", shape}, {"value", value}}, {}, site);
}

Value full(GraphBuilder& builder, DType dtype, const Value& shape, double value, SourceSite site) {
  return builder.op1("full", {shape}, {{"dtype", dtype}, {"value", value}}, {}, site);
}

Value iota(GraphBuilder& builder, DType dtype, std::int64_t count, double start, double step,
           SourceSite site) {
  return builder.op1("iota", {}, {{"count", count}, {"dtype", dtype}, {"start", start}, {"step", step}}, {},
                     site);
}

Value iota(GraphBuilder& builder, DType dtype, const Value& count, double start, double step,
           SourceSite site) {
  return builder.op1("iota", {count}, {{"dtype", dtype}, {"start", start}, {"step", step}}, {}, site);
}

}  // namespace lockstep
