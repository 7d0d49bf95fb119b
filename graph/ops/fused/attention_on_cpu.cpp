// graph/ops/fused/attention_on_cpu.cpp - attention on CPUs: a head's scores are made some rows at a time, and are never in memory
// as a whole. Heads, and parts of their queries if there are few, are shards.
#include "lockstep/graph/ops/fused/internal/attention_on_cpu.h"

#include <algorithm>

#include "lockstep/core/kernels/attention.h"
#include "lockstep/core/kernels/gemm.h"
#include "lockstep/graph/ops/fused/internal/attention.h"

namespace lockstep {

namespace {

using internal::Attention;
using internal::attention_of;
using internal::AttentionRows;

constexpr std::int64_t kMostShards = 64;  // each has scratch memory of its own
constexpr double kScoreSeconds =
    1.5e-9;  // of a score, besides its products: an exponential and what is around it

// The work of a node: heads, whose queries are cut if there are few heads.
struct Work {
  Attention a;
  DType dtype;
  std::int64_t size;  // of an element
  std::int64_t cuts = 1;

  explicit Work(const NodeView& node)
      : a(attention_of(node)),
        dtype(node.input(0).dtype),
        size(static_cast<std::int64_t>(size_of(node.input(0).dtype))) {
    constexpr std::int64_t kFewest = 64;  // queries of a part
    cuts = std::clamp<std::int64_t>(kMostShards / std::max<std::int64_t>(heads(), 1), 1,
                                    std::max<std::int64_t>(a.queries / kFewest, 1));
  }

  std::int64_t heads() const { return a.batch * a.heads; }
  static std::int64_t shards(std::int64_t items) { return std::clamp<std::int64_t>(items, 1, kMostShards); }

  kernels::AttentionHead sizes() const {
    kernels::AttentionHead head;
    head.queries = a.queries;
    head.keys = a.keys;
    head.width = a.width;
    head.value_width = a.value_width;
    head.scale = a.scale;
    head.rate = a.rate;
    return head;
  }
  std::int64_t at(const AttentionRows& rows, std::int64_t number) const {  // in bytes
    return (rows.offset + number / a.heads * rows.batch + number % a.heads * rows.head) * size;
  }
  kernels::AttentionInput input(const KernelContext& c, const AttentionRows& rows,
                                std::int64_t number) const {
    return {static_cast<const char*>(c.input(rows.operand)) + at(rows, number), rows.row};
  }
  kernels::AttentionOutput output(const KernelContext& c, const AttentionRows& rows,
                                  std::int64_t number) const {
    return {static_cast<char*>(c.output(rows.operand)) + at(rows, number), rows.row};
  }
  // Head `number` of all batches.
  kernels::AttentionHead head(const KernelContext& c, std::int64_t number, const RandomStream& stream) const {
    kernels::AttentionHead head = sizes();
    head.q = input(c, a.q, number);
    head.k = input(c, a.k, number);
    head.v = input(c, a.v, number);
    if (a.mask) {
      const std::int64_t first = number / a.heads * a.mask->batch + number % a.heads * a.mask->head;
      head.mask = {static_cast<const char*>(c.input(a.mask->operand)) + first * size, a.mask->row};
      head.mask_column = a.mask->column;
    }
    if (a.key) head.stream = &stream;
    head.first_share = number * a.queries * a.keys;
    return head;
  }
  RandomStream stream(const KernelContext& c) const {
    return a.key ? c.random(static_cast<std::uint64_t>(*a.key)) : RandomStream{};
  }
  std::int64_t log_bytes() const { return a.queries * (dtype == DType::kF64 ? 8 : 4); }  // of a head
  // Of a shard, in whole cache lines.
  std::size_t scratch_bytes() const { return kernels::attention_scratch_bytes(dtype, sizes()); }
  std::size_t grad_scratch_bytes() const { return kernels::attention_grad_scratch_bytes(dtype, sizes()); }
};

void* scratch_of(const KernelContext& c, std::size_t bytes) {
  return c.scratch() == nullptr
             ? nullptr
             : static_cast<char*>(c.scratch()) + static_cast<std::size_t>(c.shard()) * bytes;
}

// So many products of the scores' shape along a width, forward or backward.
Cost cost_of(const NodeView& node, std::span<const TensorSpec> outputs, double by_width,
             double by_value_width) {
  const Work work(node);
  const double heads = static_cast<double>(work.heads());
  const double scores = heads * static_cast<double>(work.a.queries) * static_cast<double>(work.a.keys);
  const auto seconds = [&](std::int64_t width) {
    return kernels::GemmTiles(work.dtype, false, true, work.a.queries, work.a.keys, width, false).seconds();
  };
  Cost cost;
  cost.multiply_adds = scores * (by_width * static_cast<double>(work.a.width) +
                                 by_value_width * static_cast<double>(work.a.value_width));
  cost.flops = 2 * cost.multiply_adds;
  for (const TensorSpec& input : node.inputs()) cost.bytes += static_cast<double>(num_bytes(input));
  for (const TensorSpec& output : outputs) cost.bytes += static_cast<double>(num_bytes(output));
  cost.seconds = scores * kScoreSeconds +
                 heads * (by_width * seconds(work.a.width) + by_value_width * seconds(work.a.value_width));
  return cost;
}

}  // namespace

KernelFn internal::attention_kernel(const NodeView& node, std::span<const TensorSpec>) {
  const Work work(node);
  return [work, bytes = work.scratch_bytes()](KernelContext& c) {
    const RandomStream stream = work.stream(c);
    const std::int64_t cuts = work.cuts, queries = work.a.queries;
    const auto [begin, end] = c.range(work.heads() * cuts);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t number = i / cuts, cut = i % cuts;
      kernels::attention(work.dtype, work.head(c, number, stream), queries * cut / cuts,
                         queries * (cut + 1) / cuts, work.output(c, work.a.out, number),
                         static_cast<char*>(c.output(1)) + number * work.log_bytes(), scratch_of(c, bytes));
    }
  };
}

KernelFn internal::attention_grad_kernel(const NodeView& node, std::span<const TensorSpec>) {
  const Work work(node);
  return [work, bytes = work.grad_scratch_bytes()](KernelContext& c) {
    const RandomStream stream = work.stream(c);
    const auto [begin, end] = c.range(work.heads());
    for (std::int64_t number = begin; number < end; ++number) {
      kernels::AttentionFlow flow;
      flow.out = work.input(c, work.a.out, number);
      flow.g = work.input(c, work.a.flow, number);
      flow.logs = static_cast<const char*>(c.input(work.a.logs)) + number * work.log_bytes();
      flow.dq = work.output(c, work.a.dq, number);
      flow.dk = work.output(c, work.a.dk, number);
      flow.dv = work.output(c, work.a.dv, number);
      kernels::attention_grad(work.dtype, work.head(c, number, stream), flow, scratch_of(c, bytes));
    }
  };
}

Cost internal::attention_cost(const NodeView& node, std::span<const TensorSpec> outputs) {
  return cost_of(node, outputs, 1, 1);
}
Cost internal::attention_grad_cost(const NodeView& node, std::span<const TensorSpec> outputs) {
  return cost_of(node, outputs, 3, 2);
}

Split internal::attention_split(const NodeView& node, std::span<const TensorSpec>) {
  const Work work(node);
  const std::int64_t shards = Work::shards(work.heads() * work.cuts);
  return {shards, static_cast<std::size_t>(shards) * work.scratch_bytes(), false};
}
Split internal::attention_grad_split(const NodeView& node, std::span<const TensorSpec>) {
  const Work work(node);
  const std::int64_t shards = Work::shards(work.heads());
  return {shards, static_cast<std::size_t>(shards) * work.grad_scratch_bytes(), false};
}

}  // namespace lockstep
