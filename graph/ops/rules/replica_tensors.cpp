// graph/ops/rules/replica_tensors.cpp - the tensors of several replicas as one list of inputs.
#include "lockstep/graph/ops/rules/internal/replica_tensors.h"

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/graph/ops/internal/builtin_ops.h"

namespace lockstep::internal {

namespace {

constexpr std::size_t kFew = 16;  // replicas whose addresses are gathered without allocating
using Addresses = SmallVector<const void*, kFew>;
using Places = SmallVector<void*, kFew>;

}  // namespace

std::size_t replicas_of(const NodeView& node) {
  const auto given = node.get_or<std::int64_t>("replicas", 1);
  const std::int64_t replicas = given == 0 ? 1 : given;
  if (replicas < 1 || node.num_inputs() % static_cast<std::size_t>(replicas) != 0) {
    NodeView::fail(str(node.num_inputs(), " inputs are not those of ", replicas, " replicas"));
  }
  check_range(node, replicas);
  return static_cast<std::size_t>(replicas);
}

void check_range(const NodeView& node, std::int64_t replicas) {
  const auto world = node.get_or<std::int64_t>("world", replicas),
             first = node.get_or<std::int64_t>("first", 0);
  if (world < replicas || world > kMaxReplicas || first < 0 || first > world - replicas)
    NodeView::fail(str(counted(replicas, "replica"), " from number ", first,
                       " on: they are not among those of a world of ", world));
}

ReplicaRange range_of(const NodeView& node) {
  const auto local = static_cast<std::int64_t>(replicas_of(node));
  return {local, node.get_or<std::int64_t>("first", 0), node.get_or<std::int64_t>("world", local)};
}

void require_all_here(const NodeView& node) {
  if (range_of(node).is_part())
    NodeView::fail("it combines the values of several workers: run the pass lower-collectives first");
}

ReduceOp reduce_of(const NodeView& node) { return parse_reduce_op(node.get<std::string>("reduce")); }

TensorSpec joined_spec(const NodeView& node, std::size_t t, std::size_t tensors) {
  TensorSpec spec = node.input(t);
  for (std::size_t i = t + tensors; i < node.num_inputs(); i += tensors) {
    const TensorSpec& other = node.input(i);
    const bool fits = other.dtype == spec.dtype && other.shape.rank() == spec.shape.rank();
    for (std::size_t axis = 0; fits && axis < spec.shape.rank(); ++axis) {
      std::int64_t have = spec.shape[axis];
      if (have == kUnknown) have = other.shape[axis];
      if (other.shape[axis] != kUnknown && other.shape[axis] != have) {
        NodeView::fail(str("the values of replicas 0 and ", i / tensors, " are ", spec, " and ", other,
                           "; they must have one shape"));
      }
    }
    if (!fits) {
      NodeView::fail(str("the values of replicas 0 and ", i / tensors, " are ", spec, " and ", other,
                         "; they must have one dtype and rank"));
    }
    for (std::size_t axis = 0; axis < spec.shape.rank(); ++axis) {
      if (spec.shape[axis] == kUnknown && other.shape[axis] != kUnknown) {
        std::vector<std::int64_t> dims(spec.shape.dims().begin(), spec.shape.dims().end());
        dims[axis] = other.shape[axis];
        spec.shape = Shape(std::span<const std::int64_t>(dims));
      }
    }
  }
  return spec;
}

void check_reducible(const NodeView& node, ReduceOp op) {
  for (const TensorSpec& spec : node.inputs()) {
    const Decision decision = can_reduce(op, spec.dtype);
    if (!decision) NodeView::fail(decision.reason());
  }
}

Cost moving_cost(const NodeView& node, std::span<const TensorSpec> outputs) {
  Cost cost;
  for (const TensorSpec& spec : node.inputs()) {
    cost.bytes += static_cast<double>(num_bytes(spec));
    cost.flops += static_cast<double>(spec.shape.num_elements());
  }
  for (const TensorSpec& spec : outputs) cost.bytes += static_cast<double>(num_bytes(spec));
  return cost;
}

void check_pieces(const NodeView& node) {
  if (replicas_of(node) == 1 && node.get_or<std::int64_t>("pieces", 1) != 1)
    NodeView::fail("one replica runs what is to be cut for several: let a strategy distribute the graph");
}

// elements * i / count, without computing the product, which may overflow.
std::pair<std::int64_t, std::int64_t> Chunk::of(std::int64_t elements) const {
  const auto begin = [&](std::int64_t i) { return elements / count * i + elements % count * i / count; };
  return {begin(index), begin(index + 1)};
}

Chunk chunk_of(const NodeView& node) {
  const auto index = node.get<std::int64_t>("chunk"), count = node.get<std::int64_t>("chunks");
  if (count > kMaxChunks) NodeView::fail(str("there are at most ", kMaxChunks, " chunks, got ", count));
  if (count < 1 || index < 0 || index >= count) {
    NodeView::fail(str("chunk ", index, " of ", count, " does not exist"));
  }
  return Chunk{index, count};
}

std::vector<std::int64_t> chunk_offsets(const NodeView& node, std::span<const TensorSpec> outputs) {
  const Chunk chunk = chunk_of(node);
  std::vector<std::int64_t> offsets;
  for (std::size_t t = 0; t < outputs.size(); ++t) {
    const auto [first, last] = chunk.of(node.input(t).shape.num_elements());
    if (outputs[t].shape != Shape{last - first})
      NodeView::fail(
          str("its output ", t, " is ", outputs[t], ", and its chunk has ", last - first, " elements"));
    offsets.push_back(first);
  }
  return offsets;
}

FlatTensors::FlatTensors(std::span<const TensorSpec> tensors) {
  for (const TensorSpec& spec : tensors) {
    const std::int64_t elements = spec.shape.num_elements();
    parts_.push_back({total_, elements});
    total_ += (elements + kUnit - 1) / kUnit * kUnit;
  }
}

template <class Visit>
void FlatTensors::each(std::int64_t begin, std::int64_t end, const Visit& visit) const {
  const auto after = std::ranges::upper_bound(parts_, begin, {}, &Part::first);
  for (auto t = static_cast<std::size_t>(after - parts_.begin()) - 1; t < parts_.size(); ++t) {
    const auto [first, elements] = parts_[t];
    if (first >= end) break;
    const std::int64_t from = std::max(begin - first, std::int64_t{0}), to = std::min(end - first, elements);
    if (from < to) visit(t, from, to);
  }
}

ReplicaReduction::ReplicaReduction(const NodeView& node, std::span<const TensorSpec> outputs)
    : op_(reduce_of(node)),
      replicas_(replicas_of(node)),
      tensors_(node.num_inputs() / replicas_),
      outputs_(outputs.size() / tensors_),
      flat_(outputs.first(tensors_)) {
  for (const TensorSpec& spec : outputs.first(tensors_)) dtypes_.push_back(spec.dtype);
}

void ReplicaReduction::set_offsets(std::vector<std::int64_t> offsets) { offsets_ = std::move(offsets); }

void ReplicaReduction::operator()(KernelContext& c) const {
  const auto [begin, end] = c.range(flat_.total());
  flat_.each(begin, end, [&](std::size_t t, std::int64_t from, std::int64_t to) {
    const std::int64_t offset = offsets_.empty() ? 0 : offsets_[t];
    Addresses inputs;
    Places places;
    for (std::size_t r = 0; r < replicas_; ++r)
      inputs.push_back(static_cast<const std::byte*>(c.input(r * tensors_ + t)) + offset);
    for (std::size_t r = 0; r < outputs_; ++r) places.push_back(c.output(r * tensors_ + t));
    kernels::reduce_replicas(op_, dtypes_[t], inputs, places, from, to);
  });
}

Split ReplicaReduction::split(const NodeView& node, std::span<const TensorSpec> outputs) {
  const std::size_t replicas = replicas_of(node), tensors = node.num_inputs() / replicas;
  // A sum over many replicas reads more per element than a sum of two, so shards can be shorter. With a
  // result for every replica they stay long: a core then finds more of its previous writes in its cache.
  const bool is_shared = outputs.size() == tensors;
  const auto streams = is_shared ? static_cast<std::int64_t>(replicas) + 1 : std::int64_t{3};
  return {shards_for(FlatTensors(outputs.first(tensors)).total() * streams, 3 * kReduceGrain), 0, false};
}

}  // namespace lockstep::internal
