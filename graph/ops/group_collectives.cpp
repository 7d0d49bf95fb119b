// graph/ops/group_collectives.cpp - values that the members of a group compute together, each in its own
// program.
#include "lockstep/graph/ops/group_collectives.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/communicators/group.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/graph/ops/gradient_rule.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/rules/internal/group_calls.h"

namespace lockstep {

namespace {

using internal::all_gather_call;
using internal::all_reduce_call;
using internal::broadcast_call;

OpDef group_op(std::string name, std::string summary) {
  OpDef def;
  def.name = std::move(name);
  def.summary = std::move(summary);
  def.inputs = Arity::exactly(1);
  def.effects = Effect::kCollective;
  def.attributes = {{"group", AttributeType::kString}};
  return def;
}

OpDef group_all_reduce_op() {
  OpDef def = group_op("group_all_reduce", "the values of all members of `group` combined, at every member");
  def.attributes.push_back({"reduce", AttributeType::kString});
  def.attributes.push_back({"parts", AttributeType::kInt, false});
  def.infer = [](InferContext& c) {
    const ReduceOp op = parse_reduce_op(c.get<std::string>("reduce"));
    if (const Decision can = can_reduce(op, c.input(0).dtype); !can) NodeView::fail(can.reason());
    const auto* const parts = c.find<std::int64_t>("parts");
    if (parts == nullptr) return c.add_output(c.input(0));
    const Shape& shape = c.input(0).shape;
    c.require(*parts >= 1 && *parts <= Communicator::kMostParts,
              "parts must be at least 1, and at most 1024");
    c.require(shape.rank() > 0 && (shape[0] == kUnknown || shape[0] == *parts),
              "the input has `parts` values, one behind the other along axis 0");
    c.add_output(c.input(0).dtype, shape.without_dim(0));
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    if (c.view().find<std::int64_t>("parts") != nullptr)
      throw InvalidArgument("group_all_reduce of several parts has no gradient: combine them first");
    const ReduceOp op = parse_reduce_op(c.view().get<std::string>("reduce"));
    if (op != ReduceOp::kSum && op != ReduceOp::kMean) {
      throw InvalidArgument(
          str("group_all_reduce of ", to_string(op), " has no gradient; only sum and mean have"));
    }
    return {group_all_reduce(op, c.grad(0), c.view().get<std::string>("group"))};
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
    return [call = all_reduce_call(node, DeviceKind::kCpu)](KernelContext& c) { call.start(c.input(0), c); };
  };
  def.kernels["cpu"].deferred = true;
  return def;
}

OpDef group_broadcast_op() {
  OpDef def = group_op("group_broadcast", "the value of member `root` of `group`, at every member");
  def.attributes.push_back({"root", AttributeType::kInt, false});
  def.infer = [](InferContext& c) {
    c.require(c.get_or<std::int64_t>("root", 0) >= 0, "root must be the rank of a member, from 0");
    c.add_output(c.input(0));
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
    return [call = broadcast_call(node, DeviceKind::kCpu)](KernelContext& c) {
      // The root sends from its output, and the others receive there.
      const auto bytes = static_cast<std::size_t>(num_bytes(c.input_spec(0)));
      const bool is_root = call.group().rank() == call.call().peer;
      if (is_root && bytes > 0) std::memcpy(c.output(0), c.input(0), bytes);
      call.start(c.output(0), c);
    };
  };
  def.kernels["cpu"].deferred = true;
  return def;
}

OpDef group_all_gather_op() {
  OpDef def =
      group_op("group_all_gather",
               "the values of all members of `group` one behind the other along axis 0, at every member");
  def.attributes.push_back({"members", AttributeType::kInt});
  def.infer = [](InferContext& c) {
    const auto members = c.get<std::int64_t>("members");
    c.require(members >= 1 && members <= kMaxReplicas, "members must be at least 1");
    const TensorSpec& spec = c.input(0);
    c.require(spec.shape.rank() > 0, "a scalar has no axis: expand_dims() first");
    const std::int64_t rows = spec.shape[0];
    c.add_output(
        spec.dtype,
        spec.shape.with_dim(
            0, rows == kUnknown ? rows : checked_mul(rows, members, "what the members give together")));
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
    return [call = all_gather_call(node, DeviceKind::kCpu)](KernelContext& c) { call.start(c.input(0), c); };
  };
  def.kernels["cpu"].deferred = true;
  return def;
}

}  // namespace

void internal::register_group_collective_ops(OpRegistry& registry) {
  registry.add(group_all_reduce_op());
  registry.add(group_broadcast_op());
  registry.add(group_all_gather_op());
}

Value group_all_reduce(ReduceOp op, const Operand& value, std::string_view group) {
  const Value& v = value.value_for("group_all_reduce");
  return v.builder().op1("group_all_reduce", {v},
                         {{"group", std::string(group)}, {"reduce", std::string(to_string(op))}}, {},
                         value.site());
}

Value group_broadcast(const Operand& value, std::int64_t root, std::string_view group) {
  const Value& v = value.value_for("group_broadcast");
  std::vector<Attribute> attributes{{"group", std::string(group)}};
  if (root != 0) attributes.push_back({"root", root});
  return v.builder().op1("group_broadcast", {v}, std::move(attributes), {}, value.site());
}

Value group_all_gather(const Operand& value, std::int64_t members, std::string_view group) {
  const Value& v = value.value_for("group_all_gather");
  return v.builder().op1("group_all_gather", {v}, {{"group", std::string(group)}, {"members", members}}, {},
                         value.site());
}

}  // namespace lockstep
