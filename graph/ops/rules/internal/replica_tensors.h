// graph/ops/rules/internal/replica_tensors.h - the tensors of several replicas as one list of inputs.
//
// Collectives, and the ops they are lowered to, take the tensors of several replicas, replica by replica:
// tensor t of replica r is input r * tensors + t.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/core/kernels/reduce_replicas.h"
#include "lockstep/graph/ir/kernel.h"
#include "lockstep/graph/ir/op.h"
#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/graph/ops/collectives.h"

namespace lockstep::internal {

inline constexpr std::int64_t kReduceGrain = 32 << 10;  // elements a shard

// The attribute `replicas`. 0 counts as 1: before `replicate` the number of replicas is not known, and one
// replica's value stands for all.
std::size_t replicas_of(const NodeView& node);
ReduceOp reduce_of(const NodeView& node);  // the attribute `reduce`
// The common spec of tensor t on all replicas.
TensorSpec joined_spec(const NodeView& node, std::size_t t, std::size_t tensors);
// Fails if `first` and `world` cannot be said of `replicas` (graph/ir/replica_nodes.h: ReplicaRange).
void check_range(const NodeView& node, std::int64_t replicas);
// The replicas of the node among those of all workers.
ReplicaRange range_of(const NodeView& node);
// Fails if there are others, for kernels that combine those of one program.
void require_all_here(const NodeView& node);
// Fails if an input cannot be reduced by `op`.
void check_reducible(const NodeView& node, ReduceOp op);
// Fails if one replica alone runs a reduce_scatter that cuts for several.
void check_pieces(const NodeView& node);
// The cost of ops that read and write each element once.
Cost moving_cost(const NodeView& node, std::span<const TensorSpec> outputs);

// One of `count` nearly equal parts of a tensor's elements: what the owner of one part computes.
struct Chunk {
  std::int64_t index, count;
  // The part [first, second) of `elements`.
  std::pair<std::int64_t, std::int64_t> of(std::int64_t elements) const;
};
// Far more than there are replicas, and few enough for the arithmetic of chunks.
inline constexpr std::int64_t kMaxChunks = 1 << 20;
Chunk chunk_of(const NodeView& node);  // the attributes `chunk` and `chunks`
// The first element of the node's chunk of each tensor. Fails if an output has another number of elements than its chunk.
std::vector<std::int64_t> chunk_offsets(const NodeView& node, std::span<const TensorSpec> outputs);

// The elements of several tensors under one numbering: a shard takes a range of it. Each tensor begins at a
// number where a long shard may begin, so that a long shard begins on a cache line of its first tensor.
class FlatTensors {
 public:
  explicit FlatTensors(std::span<const TensorSpec> tensors);
  std::int64_t total() const { return total_; }
  // Calls visit(tensor, begin, end) for the parts of [begin, end) of the whole.
  template <class Visit>
  void each(std::int64_t begin, std::int64_t end, const Visit& visit) const;

 private:
  static constexpr std::int64_t kUnit = KernelContext::kUnit;
  struct Part {
    std::int64_t first, elements;
  };
  std::vector<Part> parts_;  // by tensor; the first begins at 0
  std::int64_t total_ = 0;
};

// A kernel: the values of replicas combined, tensor by tensor, in one pass over memory; each result is
// written to all of its outputs.
class ReplicaReduction {
 public:
  ReplicaReduction(const NodeView& node, std::span<const TensorSpec> outputs);
  // Inputs of tensor t are read from byte offsets[t] on.
  void set_offsets(std::vector<std::int64_t> offsets);
  void operator()(KernelContext& c) const;
  static Split split(const NodeView& node, std::span<const TensorSpec> outputs);

 private:
  ReduceOp op_;
  std::size_t replicas_, tensors_;
  std::size_t outputs_;  // of each tensor
  std::vector<DType> dtypes_;
  std::vector<std::int64_t> offsets_;
  FlatTensors flat_;
};

}  // namespace lockstep::internal
