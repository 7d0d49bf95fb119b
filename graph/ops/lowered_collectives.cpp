// graph/ops/lowered_collectives.cpp - the ops that lower-collectives makes of collectives.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/core/kernels/elementwise.h"
#include "lockstep/graph/ops/gradient_rule.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/rules/internal/replica_tensors.h"

namespace lockstep::internal {

namespace {

OpDef reduce_replicas_op() {
  OpDef def;
  def.name = "reduce_replicas";
  def.summary = "the values of several replicas combined into one";
  def.inputs = Arity::at_least(1);
  def.traits.role = ReplicaRole::kLoweredCollective;
  def.traits.infallible = true;
  def.traits.in_place = true;
  def.cost = moving_cost;
  def.attributes = {{"reduce", AttributeType::kString}, {"replicas", AttributeType::kInt}};
  def.infer = [](InferContext& c) {
    const std::size_t tensors = c.num_inputs() / replicas_of(c);
    check_reducible(c, reduce_of(c));
    for (std::size_t t = 0; t < tensors; ++t) c.add_output(joined_spec(c, t, tensors));
  };
  def.split = ReplicaReduction::split;
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return ReplicaReduction(node, outputs);
  };
  return def;
}

// --- chunks: what the owner of one part of each tensor computes, and how the parts come together again

OpDef reduce_chunk_op() {
  OpDef def = reduce_replicas_op();
  def.name = "reduce_chunk";
  def.summary = "one of several equal parts of the combined values of all replicas, flat";
  def.traits.in_place = false;
  def.attributes.push_back({"chunk", AttributeType::kInt});
  def.attributes.push_back({"chunks", AttributeType::kInt});
  def.infer = [](InferContext& c) {
    const std::size_t tensors = c.num_inputs() / replicas_of(c);
    const Chunk chunk = chunk_of(c);
    check_reducible(c, reduce_of(c));
    for (std::size_t t = 0; t < tensors; ++t) {
      const TensorSpec spec = joined_spec(c, t, tensors);
      if (!spec.shape.is_known()) {
        c.add_output(spec.dtype, Shape{kUnknown});
        continue;
      }
      const auto [first, last] = chunk.of(spec.shape.num_elements());
      c.add_output(spec.dtype, Shape{last - first});
    }
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    std::vector<std::int64_t> offsets = chunk_offsets(node, outputs);
    for (std::size_t t = 0; t < outputs.size(); ++t)
      offsets[t] *= static_cast<std::int64_t>(size_of(outputs[t].dtype));
    ReplicaReduction reduction(node, outputs);
    reduction.set_offsets(std::move(offsets));
    return reduction;
  };
  return def;
}

// How many tensors are joined. Inputs: their chunks, chunk by chunk, then one value of the wanted shape for
// each.
std::size_t joined_tensors(const NodeView& node) {
  const auto chunks = node.get<std::int64_t>("chunks");
  if (chunks < 1 || chunks > kMaxChunks || node.num_inputs() % static_cast<std::size_t>(chunks + 1) != 0) {
    NodeView::fail(str(node.num_inputs(), " inputs are not ", chunks, " chunks and a shape of each tensor"));
  }
  return node.num_inputs() / static_cast<std::size_t>(chunks + 1);
}

// Fails if the chunks of a tensor do not add up to it.
void check_chunks(const NodeView& node, std::size_t tensor, std::size_t tensors) {
  const TensorSpec& like = node.input(node.num_inputs() - tensors + tensor);
  std::int64_t elements = 0;
  bool known = like.shape.is_known();
  for (std::size_t i = tensor; i < node.num_inputs() - tensors; i += tensors) {
    const TensorSpec& chunk = node.input(i);
    if (chunk.dtype != like.dtype || chunk.shape.rank() != 1)
      NodeView::fail(str("a chunk of ", like, " is ", chunk));
    known = known && chunk.shape.is_known();
    if (known) elements = checked_add(elements, chunk.shape[0], "the elements of all chunks");
  }
  if (known && elements != like.shape.num_elements())
    NodeView::fail(str("the chunks of ", like, " have ", elements, " elements together"));
}

// The number of tensors; fails if an output is not what its chunks make.
std::size_t check_joined(const NodeView& node, std::span<const TensorSpec> outputs) {
  const std::size_t tensors = joined_tensors(node);
  for (std::size_t t = 0; t < tensors; ++t) {
    check_chunks(node, t, tensors);
    if (outputs[t] != node.input(node.num_inputs() - tensors + t))
      NodeView::fail(str("its output ", t, " is ", outputs[t], ", and its chunks are of another shape"));
  }
  return tensors;
}

OpDef join_chunks_op() {
  OpDef def;
  def.name = "join_chunks";
  def.summary = "tensors out of their chunks, in the shapes of the last inputs, whose contents are not read";
  def.inputs = Arity::at_least(2);
  def.attributes = {{"chunks", AttributeType::kInt}};
  def.traits.role = ReplicaRole::kLoweredCollective;
  def.traits.infallible = true;
  def.cost = moving_cost;
  def.infer = [](InferContext& c) {
    const std::size_t tensors = joined_tensors(c);
    for (std::size_t t = 0; t < tensors; ++t) {
      check_chunks(c, t, tensors);
      c.add_output(c.input(c.num_inputs() - tensors + t));
    }
  };
  def.moves = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    const std::size_t tensors = check_joined(node, outputs);
    ElementMoves moves;
    std::vector<std::int64_t> begins(tensors, 0);
    for (std::size_t i = 0; i + tensors < node.num_inputs(); ++i) {
      const std::int64_t elements = node.input(i).shape.num_elements();
      moves.boxes.push_back({i, i % tensors, {elements}, {1}, {1}, 0, begins[i % tensors]});
      begins[i % tensors] += elements;
    }
    return moves;
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    const std::size_t tensors = check_joined(node, outputs);
    std::vector<std::size_t> bytes;
    for (std::size_t i = 0; i + tensors < node.num_inputs(); ++i)
      bytes.push_back(static_cast<std::size_t>(num_bytes(node.input(i))));
    return [tensors, bytes](KernelContext& c) {
      for (std::size_t t = 0; t < tensors; ++t) {
        auto* to = static_cast<char*>(c.output(t));
        for (std::size_t i = t; i < bytes.size(); i += tensors) {
          if (bytes[i] > 0) std::memcpy(to, c.input(i), bytes[i]);
          to += bytes[i];
        }
      }
    };
  };
  return def;
}

OpDef copy_op() {
  OpDef def;
  def.name = "copy";
  def.summary = "the value in memory of its own, on the node's device";
  def.inputs = Arity::exactly(1);
  def.traits.transfers = true;
  def.traits.infallible = true;
  def.traits.shape_math = true;  // a shape stays one in another memory
  def.infer = [](InferContext& c) { c.add_output(c.input(0)); };
  def.cost = moving_cost;
  def.split = [](const NodeView&, std::span<const TensorSpec> outputs) {
    return Split{shards_for(outputs[0].shape.num_elements(), 2 * kReduceGrain), 0, false};
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> { return {c.grad()}; };
  def.kernels["cpu"] = [](const NodeView&, std::span<const TensorSpec> outputs) -> KernelFn {
    return [dtype = outputs[0].dtype, n = outputs[0].shape.num_elements()](KernelContext& c) {
      const auto [begin, end] = c.range(n);
      kernels::copy(dtype, c.input(0), c.output(0), begin, end);
    };
  };
  return def;
}

}  // namespace

void register_lowered_collective_ops(OpRegistry& registry) {
  registry.add(reduce_replicas_op());
  registry.add(reduce_chunk_op());
  registry.add(join_chunks_op());
  registry.add(copy_op());
}

}  // namespace lockstep::internal
