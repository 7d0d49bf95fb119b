// graph/ops/collectives.cpp - values that replicas make together, and what they are lowered to.
//
// All of these take the tensors of several replicas, replica by replica: tensor t of replica r is input r *
// tensors + t.
#include "lockstep/graph/ops/collectives.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include "lockstep/core/kernels/elementwise.h"
#include "lockstep/graph/build/builder_access.h"
#include "lockstep/graph/build/internal/region_trace.h"
#include "lockstep/graph/ops/gradient_rule.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/rules/internal/axes.h"

namespace lockstep {

ReduceOp parse_reduce_op(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const ReduceOp op : kAllReplicaReduces) {
    if (to_string(op) == lower) return op;
  }
  throw InvalidArgument(
      str("'", text.substr(0, 40), "' is no way to reduce: expected sum, mean, min, max or prod"));
}

namespace {

using internal::RegionTrace;
using internal::shards_for;

constexpr std::int64_t kReduceGrain = 32 << 10;  // elements a shard

// replicas=0: before `replicate`, where their number is not known; one replica's value stands for all.
std::size_t replicas_of(const NodeView& node) {
  const auto given = node.get_or<std::int64_t>("replicas", 1);
  const std::int64_t replicas = given == 0 ? 1 : given;
  if (replicas < 1 || node.num_inputs() % static_cast<std::size_t>(replicas) != 0) {
    NodeView::fail(str(node.num_inputs(), " inputs are not those of ", replicas, " replicas"));
  }
  return static_cast<std::size_t>(replicas);
}

ReduceOp reduce_of(const NodeView& node) { return parse_reduce_op(node.get<std::string>("reduce")); }

// The common spec of tensor t on all replicas.
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

// Elements of several tensors, counted through: a shard takes a range of all of them. Each tensor begins
// where a long shard may, so that these begin with a cache line of whichever tensor they begin in.
class Flat {
 public:
  explicit Flat(std::span<const TensorSpec> tensors) {
    for (const TensorSpec& spec : tensors) {
      const std::int64_t elements = spec.shape.num_elements();
      parts_.push_back({total_, elements});
      total_ += (elements + kUnit - 1) / kUnit * kUnit;
    }
  }
  std::int64_t total() const { return total_; }
  // Calls visit(tensor, begin, end) for the parts of [begin, end) of the whole.
  template <class Visit>
  void each(std::int64_t begin, std::int64_t end, const Visit& visit) const {
    const auto after = std::ranges::upper_bound(parts_, begin, {}, &Part::first);
    for (auto t = static_cast<std::size_t>(after - parts_.begin()) - 1; t < parts_.size(); ++t) {
      const auto [first, elements] = parts_[t];
      if (first >= end) break;
      const std::int64_t from = std::max(begin - first, std::int64_t{0}),
                         to = std::min(end - first, elements);
      if (from < to) visit(t, from, to);
    }
  }

 private:
  static constexpr std::int64_t kUnit = KernelContext::kUnit;
  struct Part {
    std::int64_t first, elements;
  };
  std::vector<Part> parts_;  // by tensor; the first begins at 0
  std::int64_t total_ = 0;
};

Cost moving_cost(const NodeView& node, std::span<const TensorSpec> outputs) {
  Cost cost;
  for (const TensorSpec& spec : node.inputs()) {
    cost.bytes += static_cast<double>(num_bytes(spec));
    cost.flops += static_cast<double>(spec.shape.num_elements());
  }
  for (const TensorSpec& spec : outputs) cost.bytes += static_cast<double>(num_bytes(spec));
  return cost;
}

constexpr std::size_t kFew = 16;  // replicas whose addresses are gathered without allocating
using Addresses = SmallVector<const void*, kFew>;
using Places = SmallVector<void*, kFew>;

// The values of replicas combined, tensor by tensor, in one pass over memory; each result is written to all
// of its outputs.
class ReplicaReduction {
 public:
  ReplicaReduction(const NodeView& node, std::span<const TensorSpec> outputs)
      : op_(reduce_of(node)),
        replicas_(replicas_of(node)),
        tensors_(node.num_inputs() / replicas_),
        outputs_(outputs.size() / tensors_),
        flat_(outputs.first(tensors_)) {
    for (const TensorSpec& spec : outputs.first(tensors_)) dtypes_.push_back(spec.dtype);
  }
  // Of tensor t, reads inputs from so many bytes on.
  void set_offsets(std::vector<std::int64_t> offsets) { offsets_ = std::move(offsets); }

  void operator()(KernelContext& c) const {
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

  static Split split(const NodeView& node, std::span<const TensorSpec> outputs) {
    const std::size_t replicas = replicas_of(node), tensors = node.num_inputs() / replicas;
    // One sum of many reads more for each element than one of two does, so that shards can be shorter. With a
    // result for every replica they stay long: a core then finds more of what it wrote the last time in its
    // cache.
    const bool is_shared = outputs.size() == tensors;
    const auto streams = is_shared ? static_cast<std::int64_t>(replicas) + 1 : std::int64_t{3};
    return {shards_for(Flat(outputs.first(tensors)).total() * streams, 3 * kReduceGrain), 0, false};
  }

 private:
  ReduceOp op_;
  std::size_t replicas_, tensors_;
  std::size_t outputs_;  // of each tensor
  std::vector<DType> dtypes_;
  std::vector<std::int64_t> offsets_;
  Flat flat_;
};

OpDef collective_op(std::string name, std::string summary) {
  OpDef def;
  def.name = std::move(name);
  def.summary = std::move(summary);
  def.inputs = Arity::at_least(1);
  def.effects = Effect::kCollective;
  def.traits.collective = true;
  def.traits.joins_replicas = true;
  def.traits.same_on_all = true;
  def.traits.infallible = true;
  def.attributes = {{"replicas", AttributeType::kInt, false}};
  def.cost = moving_cost;
  return def;
}

OpDef all_reduce_op() {
  OpDef def = collective_op("all_reduce", "the values of all replicas combined, on every replica");
  def.attributes.push_back({"reduce", AttributeType::kString});
  def.traits.in_place = true;
  def.infer = [](InferContext& c) {
    const std::size_t replicas = replicas_of(c), tensors = c.num_inputs() / replicas;
    check_reducible(c, reduce_of(c));
    std::vector<TensorSpec> specs;
    for (std::size_t t = 0; t < tensors; ++t) specs.push_back(joined_spec(c, t, tensors));
    for (std::size_t r = 0; r < replicas; ++r) {
      for (const TensorSpec& spec : specs) c.add_output(spec);
    }
  };
  // The sum of all sums flows back; each replica gets it.
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    const ReduceOp op = reduce_of(c.view());
    if (op != ReduceOp::kSum && op != ReduceOp::kMean) {
      throw InvalidArgument(str("all_reduce of ", to_string(op), " has no gradient; only sum and mean have"));
    }
    std::vector<Value> flows;
    for (std::size_t i = 0; i < c.num_outputs(); ++i) flows.push_back(c.grad(i));
    const std::vector<Value> back = all_reduce(op, flows);
    return {back.begin(), back.end()};
  };
  def.split = ReplicaReduction::split;
  def.kernels[DeviceKind::kCpu] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return ReplicaReduction(node, outputs);
  };
  return def;
}

OpDef reduce_replicas_op() {
  OpDef def = collective_op("reduce_replicas", "the values of several replicas combined into one");
  def.effects = Effect::kPure;
  def.traits.collective = false;
  def.traits.same_on_all = false;
  def.traits.in_place = true;
  def.attributes = {{"reduce", AttributeType::kString}, {"replicas", AttributeType::kInt}};
  def.infer = [](InferContext& c) {
    const std::size_t tensors = c.num_inputs() / replicas_of(c);
    check_reducible(c, reduce_of(c));
    for (std::size_t t = 0; t < tensors; ++t) c.add_output(joined_spec(c, t, tensors));
  };
  def.split = ReplicaReduction::split;
  def.kernels[DeviceKind::kCpu] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return ReplicaReduction(node, outputs);
  };
  return def;
}

// --- chunks: what the owner of one part of each tensor computes, and how the parts come together again

struct Chunk {
  std::int64_t index, count;
  // The part [first, second) of `elements`.
  std::pair<std::int64_t, std::int64_t> of(std::int64_t elements) const {
    return {elements * index / count, elements * (index + 1) / count};
  }
};

Chunk chunk_of(const NodeView& node) {
  const Chunk chunk{node.get<std::int64_t>("chunk"), node.get<std::int64_t>("chunks")};
  if (chunk.count < 1 || chunk.index < 0 || chunk.index >= chunk.count) {
    NodeView::fail(str("chunk ", chunk.index, " of ", chunk.count, " does not exist"));
  }
  return chunk;
}

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
  def.kernels[DeviceKind::kCpu] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    std::vector<std::int64_t> offsets;
    for (std::size_t t = 0; t < outputs.size(); ++t) {
      const std::int64_t first = chunk_of(node).of(node.input(t).shape.num_elements()).first;
      offsets.push_back(first * static_cast<std::int64_t>(size_of(outputs[t].dtype)));
    }
    ReplicaReduction reduction(node, outputs);
    reduction.set_offsets(std::move(offsets));
    return reduction;
  };
  return def;
}

// Inputs: the tensors' chunks, chunk by chunk, then one value of the wanted shape for each tensor.
OpDef join_chunks_op() {
  OpDef def;
  def.name = "join_chunks";
  def.summary = "tensors out of their chunks, in the shapes of the last inputs, whose contents are not read";
  def.inputs = Arity::at_least(2);
  def.attributes = {{"chunks", AttributeType::kInt}};
  def.traits.joins_replicas = true;
  def.traits.infallible = true;
  def.cost = moving_cost;
  def.infer = [](InferContext& c) {
    const std::int64_t chunks = c.get<std::int64_t>("chunks");
    if (chunks < 1 || c.num_inputs() % static_cast<std::size_t>(chunks + 1) != 0) {
      NodeView::fail(str(c.num_inputs(), " inputs are not ", chunks, " chunks and a shape of each tensor"));
    }
    const std::size_t tensors = c.num_inputs() / static_cast<std::size_t>(chunks + 1);
    for (std::size_t t = 0; t < tensors; ++t) {
      const TensorSpec& like = c.input(c.num_inputs() - tensors + t);
      for (std::size_t i = t; i < c.num_inputs() - tensors; i += tensors) {
        if (c.input(i).dtype != like.dtype || c.input(i).shape.rank() != 1)
          NodeView::fail(str("a chunk of ", like, " is ", c.input(i)));
      }
      c.add_output(like);
    }
  };
  def.kernels[DeviceKind::kCpu] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    const auto tensors = outputs.size();
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
  def.infer = [](InferContext& c) { c.add_output(c.input(0)); };
  def.cost = moving_cost;
  def.split = [](const NodeView&, std::span<const TensorSpec> outputs) {
    return Split{shards_for(outputs[0].shape.num_elements(), 2 * kReduceGrain), 0, false};
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> { return {c.grad()}; };
  def.kernels[DeviceKind::kCpu] = [](const NodeView&, std::span<const TensorSpec> outputs) -> KernelFn {
    return [dtype = outputs[0].dtype, n = outputs[0].shape.num_elements()](KernelContext& c) {
      const auto [begin, end] = c.range(n);
      kernels::copy(dtype, c.input(0), c.output(0), begin, end);
    };
  };
  return def;
}

// --- gathering and broadcasting

OpDef all_gather_op() {
  OpDef def = collective_op("all_gather",
                            "the values of all replicas one behind the other along `axis`, on every replica");
  def.attributes.push_back({"axis", AttributeType::kInt, false});
  def.infer = [](InferContext& c) {
    const std::size_t replicas = replicas_of(c), tensors = c.num_inputs() / replicas;
    std::vector<TensorSpec> specs;
    for (std::size_t t = 0; t < tensors; ++t) {
      TensorSpec spec = c.input(t);
      const auto axis = static_cast<std::size_t>(
          internal::normal_axis(c.get_or<std::int64_t>("axis", 0), spec.shape.rank()));
      std::vector<std::int64_t> dims(spec.shape.dims().begin(), spec.shape.dims().end());
      for (std::size_t i = t + tensors; i < c.num_inputs(); i += tensors) {
        const TensorSpec& other = c.input(i);
        bool fits = other.dtype == spec.dtype && other.shape.rank() == spec.shape.rank();
        for (std::size_t d = 0; fits && d < dims.size(); ++d) {
          if (d == axis) {
            dims[d] = dims[d] == kUnknown || other.shape[d] == kUnknown ? kUnknown : dims[d] + other.shape[d];
          } else if (dims[d] == kUnknown) {
            dims[d] = other.shape[d];
          } else {
            fits = other.shape[d] == kUnknown || other.shape[d] == dims[d];
          }
        }
        if (!fits) {
          NodeView::fail(str("the values of replicas 0 and ", i / tensors, " are ", spec, " and ", other,
                             "; they may differ along axis ", axis, " only"));
        }
      }
      // What the others add is not known.
      if (c.get_or<std::int64_t>("replicas", 1) == 0) dims[axis] = kUnknown;
      specs.push_back({spec.dtype, Shape(std::span<const std::int64_t>(dims))});
    }
    for (std::size_t r = 0; r < replicas; ++r) {
      for (const TensorSpec& spec : specs) c.add_output(spec);
    }
  };
  def.kernels[DeviceKind::kCpu] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    const std::size_t replicas = replicas_of(node), tensors = node.num_inputs() / replicas;
    struct Piece {
      // Bytes of one row of this replica's part, and where it starts in the whole row.
      std::size_t row, offset;
    };
    struct Plan {
      std::size_t rows = 1, row = 0;
      std::vector<Piece> pieces;
    };
    std::vector<Plan> plans;
    for (std::size_t t = 0; t < tensors; ++t) {
      const TensorSpec& spec = outputs[t];
      const auto axis = static_cast<std::size_t>(
          internal::normal_axis(node.get_or<std::int64_t>("axis", 0), spec.shape.rank()));
      Plan plan;
      for (std::size_t d = 0; d < axis; ++d) plan.rows *= static_cast<std::size_t>(spec.shape[d]);
      std::size_t inner = size_of(spec.dtype);
      for (std::size_t d = axis + 1; d < spec.shape.rank(); ++d)
        inner *= static_cast<std::size_t>(spec.shape[d]);
      for (std::size_t r = 0; r < replicas; ++r) {
        const auto size = static_cast<std::size_t>(node.input(r * tensors + t).shape[axis]) * inner;
        plan.pieces.push_back({size, plan.row});
        plan.row += size;
      }
      plans.push_back(std::move(plan));
    }
    return [replicas, tensors, plans](KernelContext& c) {
      for (std::size_t t = 0; t < tensors; ++t) {
        const Plan& plan = plans[t];
        for (std::size_t to = 0; to < replicas; ++to) {
          auto* out = static_cast<char*>(c.output(to * tensors + t));
          for (std::size_t r = 0; r < replicas; ++r) {
            const auto* in = static_cast<const char*>(c.input(r * tensors + t));
            const Piece& piece = plan.pieces[r];
            for (std::size_t row = 0; piece.row > 0 && row < plan.rows; ++row)
              std::memcpy(out + row * plan.row + piece.offset, in + row * piece.row, piece.row);
          }
        }
      }
    };
  };
  return def;
}

OpDef broadcast_replica_op() {
  OpDef def = collective_op("broadcast_replica", "the value of replica `root`, on every replica");
  def.attributes.push_back({"root", AttributeType::kInt, false});
  def.infer = [](InferContext& c) {
    const std::size_t replicas = replicas_of(c), tensors = c.num_inputs() / replicas;
    const std::int64_t root = c.get_or<std::int64_t>("root", 0);
    // In a region one replica stands for all, whose number is not known yet.
    if (root < 0 || (replicas > 1 && root >= static_cast<std::int64_t>(replicas)))
      NodeView::fail(str("replica ", root, " does not exist; there are ", replicas));
    const std::size_t from = replicas > 1 ? static_cast<std::size_t>(root) : 0;
    for (std::size_t i = 0; i < c.num_inputs(); ++i) {
      if (c.input(i).dtype != c.input(i % tensors).dtype)
        NodeView::fail(
            str("replicas 0 and ", i / tensors, " have ", c.input(i % tensors), " and ", c.input(i)));
      c.add_output(c.input(from * tensors + i % tensors));
    }
  };
  def.kernels[DeviceKind::kCpu] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    const std::size_t replicas = replicas_of(node), tensors = node.num_inputs() / replicas;
    const auto root = static_cast<std::size_t>(replicas > 1 ? node.get_or<std::int64_t>("root", 0) : 0);
    std::vector<std::size_t> bytes;
    for (std::size_t t = 0; t < tensors; ++t)
      bytes.push_back(static_cast<std::size_t>(num_bytes(outputs[t])));
    return [root, tensors, bytes](KernelContext& c) {
      for (std::size_t i = 0; i < c.num_outputs(); ++i) {
        const std::size_t t = i % tensors;
        if (bytes[t] > 0) std::memcpy(c.output(i), c.input(root * tensors + t), bytes[t]);
      }
    };
  };
  return def;
}

// --- order and agreement

OpDef agree_op() {
  OpDef def;
  def.name = "agree";
  def.summary = "the first input; the others must be equal to it, which prove-sync proves";
  def.inputs = Arity::at_least(1);
  def.traits.alias = true;
  def.traits.infallible = true;
  def.traits.must_agree = true;
  def.infer = [](InferContext& c) {
    for (const TensorSpec& spec : c.inputs()) {
      if (spec.dtype != c.input(0).dtype || spec.shape.rank() != c.input(0).shape.rank())
        NodeView::fail(str("its inputs are ", c.input(0), " and ", spec, "; they must be of one kind"));
    }
    c.add_output(c.input(0));
  };
  return def;
}

OpDef group_op() {
  OpDef def;
  def.name = "group";
  def.summary = "runs when all of its inputs and the nodes it runs after are done; has no value";
  def.inputs = Arity::at_least(0);
  def.traits.infallible = true;
  def.infer = [](InferContext&) {};
  def.kernels[DeviceKind::kCpu] = [](const NodeView&, std::span<const TensorSpec>) -> KernelFn {
    return [](KernelContext&) {};
  };
  return def;
}

// The region's results are, one after another, 1 value (attribute `single` is 1) or one for each replica.
OpDef merge_call_op() {
  OpDef def;
  def.name = "merge_call";
  def.summary = "leaves a replicated region: the region over the arguments of all replicas";
  def.inputs = Arity::at_least(0);
  def.regions = 1;
  def.attributes = {{"replicas", AttributeType::kInt}, {"single", AttributeType::kInts}};
  def.effects = Effect::kCollective;
  def.infer = [](InferContext& c) {
    const auto replicas =
        static_cast<std::size_t>(std::max<std::int64_t>(c.get<std::int64_t>("replicas"), 1));
    const Graph& region = c.regions()[0];
    if (region.parameters().size() != c.num_inputs() * replicas) {
      NodeView::fail(str("the merge function takes ", region.parameters().size(), " values, got ",
                         c.num_inputs(), " of ", replicas, " replicas"));
    }
    std::size_t at = 0;
    for (const std::int64_t single : c.get<std::vector<std::int64_t>>("single")) {
      const std::size_t count = single != 0 ? 1 : replicas;
      if (at + count > region.results().size()) NodeView::fail("the merge function gives too few values");
      TensorSpec spec = region.spec(region.results()[at]);
      for (std::size_t r = 1; r < count; ++r) {
        const TensorSpec& other = region.spec(region.results()[at + r]);
        if (other.dtype != spec.dtype || other.shape.rank() != spec.shape.rank())
          NodeView::fail(str("the merge function gives ", spec, " for replica 0 and ", other, " for ", r));
        spec.shape = join_shapes(spec.shape, other.shape);
      }
      c.add_output(spec);
      at += count;
    }
    if (at != region.results().size()) NodeView::fail("the merge function gives too many values");
  };
  return def;
}

}  // namespace

void internal::register_collective_ops(OpRegistry& registry) {
  registry.add(all_reduce_op());
  registry.add(all_gather_op());
  registry.add(broadcast_replica_op());
  registry.add(reduce_replicas_op());
  registry.add(reduce_chunk_op());
  registry.add(join_chunks_op());
  registry.add(copy_op());
  registry.add(agree_op());
  registry.add(group_op());
  registry.add(merge_call_op());
}

Value all_reduce(ReduceOp op, const Operand& value) {
  const Value& v = value.value_for("all_reduce");
  return v.builder().op1("all_reduce", {v}, {{"reduce", std::string(to_string(op))}}, {}, value.site());
}

std::vector<Value> all_reduce(ReduceOp op, std::span<const Value> values, SourceSite site) {
  if (values.empty()) return {};
  return values[0].builder().op("all_reduce", values, {{"reduce", std::string(to_string(op))}}, {}, site);
}

Value all_gather(const Operand& value, std::int64_t axis) {
  const Value& v = value.value_for("all_gather");
  std::vector<Attribute> attributes;
  if (axis != 0) attributes.push_back({"axis", axis});
  return v.builder().op1("all_gather", {v}, std::move(attributes), {}, value.site());
}

Value broadcast_replica(const Operand& value, std::int64_t root) {
  const Value& v = value.value_for("broadcast_replica");
  std::vector<Attribute> attributes;
  if (root != 0) attributes.push_back({"root", root});
  return v.builder().op1("broadcast_replica", {v}, std::move(attributes), {}, value.site());
}

Value reduce_replicas(ReduceOp op, std::span<const Value> values, SourceSite site) {
  if (values.empty()) throw InvalidArgument("reduce_replicas: there are no values to combine");
  return values[0].builder().op(
      "reduce_replicas", values,
      {{"reduce", std::string(to_string(op))}, {"replicas", static_cast<std::int64_t>(values.size())}}, {},
      site)[0];
}

std::vector<Value> merge_call(GraphBuilder& builder, std::int64_t replicas, std::span<const Value> arguments,
                              const MergeFn& function, SourceSite site) {
  static const OpDef& op = OpRegistry::global().get("merge_call");
  const ErrorPlace place{{}, "merge_call", {}, site.file, site.line, -1};
  if (replicas < 1) throw InvalidArgument("merge_call: needs at least one replica", place);
  GraphBuilder& target = internal::BuilderAccess(builder).innermost();
  RegionTrace trace(target);
  std::vector<Value> parameters;  // replica by replica
  std::vector<std::vector<Value>> seen(arguments.size());
  for (std::int64_t r = 0; r < replicas; ++r) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      parameters.push_back(trace.parameter(copy_name(arguments[i].name(), r), arguments[i].spec()));
      seen[i].push_back(parameters.back());
    }
  }
  std::vector<Value> results;
  std::vector<std::int64_t> single;
  for (const MergedResult& result : function(seen)) {
    if (result.size() != 1 && result.size() != static_cast<std::size_t>(replicas)) {
      throw InvalidArgument(str("merge_call: a result holds ", result.size(), " values for ", replicas,
                                " replicas; give one for all, or one for each"),
                            place);
    }
    single.push_back(result.size() == 1 ? 1 : 0);
    results.insert(results.end(), result.begin(), result.end());
  }
  trace.finish(results, site);
  if (!trace.captures().empty()) {
    throw InvalidArgument(str("merge_call: the function uses '", trace.captures().front().first.name(),
                              "', a value of one replica; hand it over as an argument, to see that of each"),
                          place);
  }
  std::vector<Graph> regions;
  regions.push_back(trace.take(parameters, {}));
  const NodeId id = target.node(op, {}, arguments, {{"replicas", replicas}, {"single", std::move(single)}},
                                std::move(regions), site);
  return target.outputs_of(id);
}

}  // namespace lockstep
