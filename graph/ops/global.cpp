// graph/ops/global.cpp - reductions over the batches of all replicas.
#include "lockstep/graph/ops/global.h"

#include <algorithm>
#include <cstring>

#include "lockstep/core/kernels/reduce.h"
#include "lockstep/graph/ops/gradient_rule.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/ops/rules/internal/axes.h"
#include "lockstep/graph/ops/rules/internal/shares.h"

namespace lockstep {

namespace {

using kernels::AxisReduce;
using kernels::Reduction;

Reduction over_all(AxisReduce op, const TensorSpec& input) {
  return {op, input.dtype, input.shape, internal::reduced_axes({}, input.shape.rank())};
}

OpDef share_op(std::string name, std::string summary, std::size_t inputs, AxisReduce op) {
  OpDef def;
  def.name = std::move(name);
  def.summary = std::move(summary);
  def.inputs = Arity::exactly(inputs);
  def.traits.role = ReplicaRole::kShare;
  def.traits.infallible = true;
  def.cost = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    return Cost{static_cast<double>(node.input(0).shape.num_elements()),
                static_cast<double>(num_bytes(node.input(0)) + num_bytes(outputs[0])), 0};
  };
  def.split = [op](const NodeView& node, std::span<const TensorSpec>) {
    const Reduction reduction = over_all(op, node.input(0));
    return Split{reduction.shards(), reduction.scratch_bytes(), reduction.has_finish()};
  };
  return def;
}

OpDef global_sum_op() {
  OpDef def = share_op("global_sum", "this replica's share of the sum over all replicas: the sum of its part",
                       1, AxisReduce::kSum);
  def.infer = [](InferContext& c) {
    c.require(c.input(0).dtype != DType::kBool, "has no meaning for bool; cast first");
    c.add_output(c.input(0).dtype, Shape{});
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    return {broadcast_to(c.grad(), shape_of(c.input()))};
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
    return [reduction = over_all(AxisReduce::kSum, node.input(0))](KernelContext& c) {
      if (c.is_finish()) {
        reduction.finish(c.scratch(), c.output(0));
      } else {
        reduction.run(c.input(0), c.output(0), c.scratch(), c.shard());
      }
    };
  };
  return def;
}

// Turns the mean of the part into the share. Starts from the mean, since the sum might not fit the dtype.
void weigh(DType dtype, void* mean, std::int64_t own, std::int64_t all) {
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (!std::is_integral_v<T>) {
      T& value = *static_cast<T*>(mean);
      if (own == 0) {
        value = T(0.0F);
      } else if (own != all) {
        const double weight = static_cast<double>(own) / static_cast<double>(std::max<std::int64_t>(all, 1));
        if constexpr (std::is_same_v<T, double>) {
          value *= weight;
        } else {
          value = T(static_cast<float>(static_cast<double>(static_cast<float>(value)) * weight));
        }
      }
    }
  });
}

OpDef global_mean_op() {
  OpDef def =
      share_op("global_mean", "this replica's share of the mean over all replicas, given the global count", 2,
               AxisReduce::kMean);
  def.infer = [](InferContext& c) {
    if (!is_floating(c.input(0).dtype)) {
      NodeView::fail(str("takes floating values, got ", c.input(0), "; cast(x, DType::kF32) first"));
    }
    if (c.input(1) != TensorSpec{DType::kI64, Shape{}}) {
      NodeView::fail(str("takes a count i64[], got ", c.input(1)));
    }
    c.add_output(c.input(0).dtype, Shape{});
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    const Value count = cast(maximum(c.input(1), 1), internal::count_dtype(c.input().dtype()));
    const Value share = internal::share_of(c.grad(), count);
    return {broadcast_to(share, shape_of(c.input())), Gradient()};
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
    return [dtype = node.input(0).dtype, own = node.input(0).shape.num_elements(),
            reduction = over_all(AxisReduce::kMean, node.input(0))](KernelContext& c) {
      if (c.is_finish()) {
        reduction.finish(c.scratch(), c.output(0));
      } else {
        reduction.run(c.input(0), c.output(0), c.scratch(), c.shard());
      }
      if (c.is_finish() || !reduction.has_finish()) {
        std::int64_t all = 0;
        std::memcpy(&all, c.input(1), sizeof(all));
        weigh(dtype, c.output(0), own, all);
      }
    };
  };
  return def;
}

OpDef global_count_op() {
  OpDef def;
  def.name = "global_count";
  def.summary = "how many elements tensors of the given shape have over all replicas, as a scalar";
  def.inputs = Arity::exactly(1);
  def.attributes = {{"dtype", AttributeType::kDType}};
  def.shape_operands = {0};
  def.traits.role = ReplicaRole::kSumOverReplicas;
  def.traits.infallible = true;
  def.infer = [](InferContext& c) {
    c.require(c.get<DType>("dtype") != DType::kBool, "a number does not fit into bool");
    c.shape_operand(0);  // throws if it does not follow from shapes
    c.add_output(c.get<DType>("dtype"), Shape{});
  };
  def.gradient = [](GradientContext&) -> std::vector<Gradient> { return {Gradient()}; };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    double count = 1;
    for (const std::int64_t dim : node.shape_operand(0)) count *= static_cast<double>(dim);
    return [value = Tensor::full(outputs[0].dtype, Shape{}, count)](KernelContext& c) {
      std::memcpy(c.output(0), value.raw(), value.num_bytes());
    };
  };
  return def;
}

}  // namespace

void internal::register_global_ops(OpRegistry& registry) {
  registry.add(global_mean_op());
  registry.add(global_sum_op());
  registry.add(global_count_op());
}

Value global_mean(const Operand& v) {
  const Value& value = v.value_for("global_mean");
  const Value count = global_count(v);
  return value.builder().op1("global_mean", {value, count}, {}, {}, v.site());
}

Value global_sum(const Operand& v) {
  const Value& value = v.value_for("global_sum");
  return value.builder().op1("global_sum", {value}, {}, {}, v.site());
}

Value global_count(const Operand& v, DType dtype) {
  const Value& value = v.value_for("global_count");
  const Value shape = shape_of(v);
  return value.builder().op1("global_count", {shape}, {{"dtype", dtype}}, {}, v.site());
}

}  // namespace lockstep
