// graph/ops/collectives.cpp - collectives: values that replicas compute together.
#include "lockstep/graph/ops/collectives.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include "lockstep/core/kernels/strided.h"
#include "lockstep/graph/build/builder_access.h"
#include "lockstep/graph/build/internal/region_trace.h"
#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/gradient_rule.h"
#include "lockstep/graph/ops/indexing.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/rules/internal/axes.h"
#include "lockstep/graph/ops/rules/internal/replica_tensors.h"
#include "lockstep/graph/ops/scans.h"
#include "lockstep/graph/ops/shapes.h"
#include "lockstep/graph/ops/sources.h"

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

using internal::check_reducible;
using internal::joined_spec;
using internal::moving_cost;
using internal::reduce_of;
using internal::RegionTrace;
using internal::ReplicaReduction;
using internal::replicas_of;

OpDef collective_op(std::string name, std::string summary) {
  OpDef def;
  def.name = std::move(name);
  def.summary = std::move(summary);
  def.inputs = Arity::at_least(1);
  def.effects = Effect::kCollective;
  def.traits.role = ReplicaRole::kCollective;
  def.traits.same_on_all = true;
  def.traits.infallible = true;
  def.attributes = {{"replicas", AttributeType::kInt, false},
                    {"first", AttributeType::kInt, false},
                    {"world", AttributeType::kInt, false}};
  def.cost = moving_cost;
  return def;
}

OpDef all_reduce_op() {
  OpDef def = collective_op("all_reduce", "the values of all replicas combined, on every replica");
  def.attributes.push_back({"reduce", AttributeType::kString});
  def.attributes.push_back({"by", AttributeType::kString, false});
  def.traits.in_place = true;
  def.infer = [](InferContext& c) {
    c.require(c.get_or<std::string>("by", "nccl") == "nccl", "by must be nccl, or not be there");
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
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    internal::require_all_here(node);
    return ReplicaReduction(node, outputs);
  };
  return def;
}

// A joined collective belongs to a graph that is already distributed; gradients must be taken before that.
void require_one_replica(const GradientContext& c) {
  if (c.view().get_or<std::int64_t>("replicas", 0) > 1)
    throw InvalidArgument(
        "a collective of replicas that are joined has no gradient: take it inside of the replicas");
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
            dims[d] = dims[d] == kUnknown || other.shape[d] == kUnknown
                          ? kUnknown
                          : checked_add(dims[d], other.shape[d], "what the replicas give together");
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
      // How much the other replicas add is not known; those of other workers add as much as these.
      if (c.get_or<std::int64_t>("replicas", 1) == 0) dims[axis] = kUnknown;
      if (const ReplicaRange range = internal::range_of(c); range.is_part() && dims[axis] != kUnknown)
        dims[axis] = checked_mul(dims[axis] / range.local, range.world, "what the replicas give together");
      specs.push_back({spec.dtype, Shape(std::span<const std::int64_t>(dims))});
    }
    for (std::size_t r = 0; r < replicas; ++r) {
      for (const TensorSpec& spec : specs) c.add_output(spec);
    }
  };
  // The sum of what flows back to all copies of a replica's part: its piece of the sum over the replicas.
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    require_one_replica(c);
    std::vector<Gradient> back;
    for (std::size_t i = 0; i < c.num_outputs(); ++i) {
      const Value& own = c.input(i);
      const std::int64_t axis =
          internal::normal_axis(c.view().get_or<std::int64_t>("axis", 0), own.shape().rank());
      GraphBuilder& builder = own.builder();
      const Value extent = gather(shape_of(own), builder.constant(Tensor::scalar(axis)));
      const Value begins = cumsum(all_gather(reshape(extent, Shape{1}), 0), 0, true);
      const Value begin = gather(begins, cast(replica_id(builder), DType::kI64));
      back.emplace_back(slice_at(all_reduce(ReduceOp::kSum, c.grad(i)), begin, shape_of(own), axis));
    }
    return back;
  };
  def.moves = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    internal::require_all_here(node);
    const std::size_t replicas = replicas_of(node), tensors = node.num_inputs() / replicas;
    ElementMoves moves;
    for (std::size_t output = 0; output < outputs.size(); ++output) {
      const Shape& whole = outputs[output].shape;
      const auto axis =
          static_cast<std::size_t>(internal::normal_axis(node.get_or<std::int64_t>("axis", 0), whole.rank()));
      const std::vector<std::int64_t> out_strides = kernels::dense_strides(whole);
      std::int64_t begin = 0;
      for (std::size_t r = 0; r < replicas; ++r) {
        const std::size_t input = r * tensors + output % tensors;
        const Shape& part = node.input(input).shape;
        moves.boxes.push_back({input, output, std::vector(part.dims().begin(), part.dims().end()),
                               kernels::dense_strides(part), out_strides, 0, begin});
        begin += part[axis] * out_strides[axis];
      }
    }
    return moves;
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    internal::require_all_here(node);
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

OpDef reduce_scatter_op() {
  OpDef def =
      collective_op("reduce_scatter",
                    "the values of all replicas combined, of which each replica gets its piece along `axis`");
  def.attributes.push_back({"reduce", AttributeType::kString});
  def.attributes.push_back({"axis", AttributeType::kInt, false});
  def.attributes.push_back({"pieces", AttributeType::kInt, false});
  def.traits.same_on_all = false;
  def.infer = [](InferContext& c) {
    const std::size_t replicas = replicas_of(c), tensors = c.num_inputs() / replicas;
    check_reducible(c, reduce_of(c));
    const auto joined = static_cast<std::int64_t>(replicas);
    // In a region one replica stands for all: their number is stated (`pieces`), or not known yet.
    const std::int64_t said = c.get_or<std::int64_t>("pieces", joined > 1 ? joined : 0);
    if (said < 0 || (joined > 1 && said != joined))
      NodeView::fail(str("it is cut into ", counted(said, "piece"), " for ", counted(joined, "replica")));
    std::vector<TensorSpec> specs;
    for (std::size_t t = 0; t < tensors; ++t) {
      const TensorSpec spec = joined_spec(c, t, tensors);
      const auto axis = static_cast<std::size_t>(
          internal::normal_axis(c.get_or<std::int64_t>("axis", 0), spec.shape.rank()));
      std::vector<std::int64_t> dims(spec.shape.dims().begin(), spec.shape.dims().end());
      if (said > 1 && dims[axis] != kUnknown && dims[axis] % said != 0) {
        NodeView::fail(str("axis ", axis, " of ", spec, " cannot be cut into ", said,
                           " equal pieces: pad() it to a multiple"));
      }
      if (dims[axis] != kUnknown && said != 1) dims[axis] = said == 0 ? kUnknown : dims[axis] / said;
      specs.push_back({spec.dtype, Shape(std::span<const std::int64_t>(dims))});
    }
    for (std::size_t r = 0; r < replicas; ++r) {
      for (const TensorSpec& spec : specs) c.add_output(spec);
    }
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    require_one_replica(c);
    const ReduceOp op = reduce_of(c.view());
    if (op != ReduceOp::kSum && op != ReduceOp::kMean)
      throw InvalidArgument(
          str("reduce_scatter of ", to_string(op), " has no gradient; only sum and mean have"));
    const std::int64_t axis = c.view().get_or<std::int64_t>("axis", 0);
    std::vector<Gradient> back;
    for (std::size_t i = 0; i < c.num_outputs(); ++i) {
      Value whole = all_gather(c.grad(i), axis);
      // In a mean over n replicas each value counts 1/n, which is the ratio of the extents.
      if (op == ReduceOp::kMean) {
        const auto extent = [&](const Value& value) {
          const std::int64_t at = internal::normal_axis(axis, value.shape().rank());
          return cast(gather(shape_of(value), value.builder().constant(Tensor::scalar(at))), whole.dtype());
        };
        whole = whole * (extent(c.grad(i)) / extent(c.input(i)));
      }
      back.emplace_back(reshape(whole, shape_of(c.input(i))));
    }
    return back;
  };
  def.split = [](const NodeView&, std::span<const TensorSpec> outputs) {
    return Split{internal::shards_for(internal::FlatTensors(outputs).total() * 3, 3 * internal::kReduceGrain),
                 0, false};
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    internal::require_all_here(node);
    const std::size_t replicas = replicas_of(node), tensors = node.num_inputs() / replicas;
    internal::check_pieces(node);
    struct Piece {
      DType dtype;
      std::int64_t row, elements;  // of a piece: contiguous elements, and all elements
    };
    std::vector<Piece> pieces;
    for (std::size_t t = 0; t < tensors; ++t) {
      const Shape& shape = outputs[t].shape;
      std::int64_t row = 1;
      for (auto d = static_cast<std::size_t>(
               internal::normal_axis(node.get_or<std::int64_t>("axis", 0), shape.rank()));
           d < shape.rank(); ++d)
        row *= shape[d];
      pieces.push_back({outputs[t].dtype, row, shape.num_elements()});
    }
    return [op = reduce_of(node), replicas, tensors, pieces](KernelContext& c) {
      std::vector<const void*> inputs(replicas);
      for (std::size_t output = 0; output < c.num_outputs(); ++output) {
        const std::size_t t = output % tensors;
        const auto replica = static_cast<std::int64_t>(output / tensors);
        const auto& [dtype, row, elements] = pieces[t];
        const auto [begin, end] = c.range(elements);
        for (std::int64_t i = begin; i < end;) {
          const std::int64_t stop = std::min(end, (i / row + 1) * row);
          // Element i of the piece lies this many elements further on in the whole.
          const std::int64_t ahead = (i / row * static_cast<std::int64_t>(replicas - 1) + replica) * row;
          for (std::size_t r = 0; r < replicas; ++r) {
            inputs[r] = static_cast<const char*>(c.input(r * tensors + t)) +
                        ahead * static_cast<std::int64_t>(size_of(dtype));
          }
          kernels::reduce_replicas(op, dtype, inputs, c.output(output), i, stop);
          i = stop;
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
    const ReplicaRange range = internal::range_of(c);
    if (root < 0 || (range.world > 1 && root >= range.world))
      NodeView::fail(str("replica ", root, " does not exist; there are ", range.world));
    const std::size_t from = replicas > 1 && !range.is_part() ? static_cast<std::size_t>(root) : 0;
    for (std::size_t i = 0; i < c.num_inputs(); ++i) {
      if (c.input(i).dtype != c.input(i % tensors).dtype)
        NodeView::fail(
            str("replicas 0 and ", i / tensors, " have ", c.input(i % tensors), " and ", c.input(i)));
      c.add_output(c.input(from * tensors + i % tensors));
    }
  };
  // All of it goes back to the root.
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    require_one_replica(c);
    std::vector<Gradient> back;
    for (std::size_t i = 0; i < c.num_outputs(); ++i) {
      const Value total = all_reduce(ReduceOp::kSum, c.grad(i));
      GraphBuilder& builder = total.builder();
      const auto root = static_cast<std::int32_t>(c.view().get_or<std::int64_t>("root", 0));
      const Value here = equal(replica_id(builder), builder.constant(Tensor::scalar(root)));
      back.emplace_back(where(here, total, zeros_like(total)));
    }
    return back;
  };
  def.moves = [](const NodeView& node, std::span<const TensorSpec> outputs) {
    internal::require_all_here(node);
    const std::size_t replicas = replicas_of(node), tensors = node.num_inputs() / replicas;
    const auto root = static_cast<std::size_t>(replicas > 1 ? node.get_or<std::int64_t>("root", 0) : 0);
    ElementMoves moves;
    for (std::size_t output = 0; output < outputs.size(); ++output)
      moves.boxes.push_back({root * tensors + output % tensors,
                             output,
                             {outputs[output].shape.num_elements()},
                             {1},
                             {1},
                             0,
                             0});
    return moves;
  };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    internal::require_all_here(node);
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
  // Why they must be equal, for messages.
  def.attributes = {{"because", AttributeType::kString, false}};
  def.traits.alias = true;
  def.traits.infallible = true;
  def.traits.role = ReplicaRole::kAgree;
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
  def.kernels["cpu"] = [](const NodeView&, std::span<const TensorSpec>) -> KernelFn {
    return [](KernelContext&) {};
  };
  return def;
}

// For each output in turn the region has 1 result (attribute `single` is 1) or one for each replica.
OpDef merge_call_op() {
  OpDef def;
  def.name = "merge_call";
  def.summary = "leaves a replicated region: the region over the arguments of all replicas";
  def.inputs = Arity::at_least(0);
  def.regions = 1;
  def.attributes = {{"replicas", AttributeType::kInt}, {"single", AttributeType::kInts}};
  def.effects = Effect::kCollective;
  def.infer = [](InferContext& c) {
    const std::int64_t given = c.get<std::int64_t>("replicas");
    if (given < 1 || given > kMaxReplicas)
      NodeView::fail(str("'replicas' is ", given, "; it must be between 1 and ", kMaxReplicas));
    const auto replicas = static_cast<std::size_t>(given);
    const Graph& region = c.regions()[0];
    const std::size_t inputs = c.num_inputs();
    if (region.parameters().size() != inputs * replicas) {
      NodeView::fail(str("the merge function takes ", counted(region.parameters().size(), "value"), ", got ",
                         counted(inputs * replicas, "value"), ": ", inputs, " for each of ", replicas,
                         " replicas"));
    }
    for (std::size_t i = 0; i < region.parameters().size(); ++i) {
      const TensorSpec& wanted = region.spec({region.parameters()[i], 0});
      const TensorSpec& value = c.input(i % inputs);
      if (wanted.may_equal(value)) continue;
      NodeView::fail(str("the merge function takes input ", i % inputs, " of replica ", i / inputs, " as ",
                         wanted, ", got ", value));
    }
    const auto& singles = c.get<std::vector<std::int64_t>>("single");
    std::size_t wanted = 0;
    for (const std::int64_t single : singles) {
      if (single != 0 && single != 1)
        NodeView::fail(str("'single' holds ", single, "; 1 says one value for all replicas, 0 one for each"));
      wanted += single == 1 ? 1 : replicas;
    }
    if (wanted != region.results().size()) {
      NodeView::fail(str("the merge function gives ", counted(region.results().size(), "value"),
                         ", expected ", wanted,
                         ": one for each replica, or one for all where 'single' says so"));
    }
    std::size_t at = 0;
    for (const std::int64_t single : singles) {
      const std::size_t count = single != 0 ? 1 : replicas;
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
  };
  return def;
}

}  // namespace

void internal::register_collective_ops(OpRegistry& registry) {
  registry.add(all_reduce_op());
  registry.add(all_gather_op());
  registry.add(reduce_scatter_op());
  registry.add(broadcast_replica_op());
  register_lowered_collective_ops(registry);
  registry.add(agree_op());
  registry.add(group_op());
  registry.add(merge_call_op());
}

namespace {

// The mean of integers is f64.
Value as_mean(ReduceOp op, const Value& value, const SourceSite& site) {
  if (op != ReduceOp::kMean || !value.valid() || !is_integer(value.dtype())) return value;
  const auto made_at = internal::BuilderAccess(value.builder()).made_at(site);
  return cast(value, DType::kF64);
}

}  // namespace

Value all_reduce(ReduceOp op, const Operand& value) {
  const Value v = as_mean(op, value.value_for("all_reduce"), value.site());
  return v.builder().op1("all_reduce", {v}, {{"reduce", std::string(to_string(op))}}, {}, value.site());
}

std::vector<Value> all_reduce(ReduceOp op, std::span<const Value> values, SourceSite site) {
  if (values.empty()) return {};
  std::vector<Value> reduced;
  for (const Value& value : values) reduced.push_back(as_mean(op, value, site));
  return reduced[0].builder().op("all_reduce", reduced, {{"reduce", std::string(to_string(op))}}, {}, site);
}

IndexedSlices internal::all_reduce_slices(ReduceOp op, const IndexedSlices& slices, const SourceSite& site) {
  if (op != ReduceOp::kSum && op != ReduceOp::kMean) {
    throw InvalidArgument(str("all_reduce of slices takes sum or mean, got ", to_string(op)),
                          {{}, "all_reduce", {}, site.file, site.line, -1});
  }
  const auto made_at = internal::BuilderAccess(slices.values.builder()).made_at(site);
  IndexedSlices all = slices;
  all.values = all_gather(as_mean(op, slices.values, site), 0);
  all.indices = all_gather(slices.indices, 0);
  if (op == ReduceOp::kMean) {
    const Value one = full(all.values.builder(), all.values.dtype(), Shape{}, 1, site);
    all.values = all.values / all_reduce(ReduceOp::kSum, one);
  }
  return all;
}

// The extent along the axis is not known before `replicate`, which says how many replicas there are.
Value internal::gather_replicas(const Operand& value, std::int64_t axis) {
  const Value& v = value.value_for("all_gather");
  std::vector<Attribute> attributes;
  if (axis != 0) attributes.push_back({"axis", axis});
  attributes.push_back({"replicas", std::int64_t{0}});
  return v.builder().op1("all_gather", {v}, std::move(attributes), {}, value.site());
}

Value all_gather(const Operand& value, std::int64_t axis) {
  const Value& v = value.value_for("all_gather");
  if (internal::BuilderAccess(v.builder()).in_replicas()) return internal::gather_replicas(value, axis);
  std::vector<Attribute> attributes;
  if (axis != 0) attributes.push_back({"axis", axis});
  return v.builder().op1("all_gather", {v}, std::move(attributes), {}, value.site());
}

Value reduce_scatter(ReduceOp op, const Operand& value, std::int64_t pieces, std::int64_t axis) {
  const Value& v = value.value_for("reduce_scatter");
  std::vector<Attribute> attributes{{"reduce", std::string(to_string(op))}, {"pieces", pieces}};
  if (axis != 0) attributes.push_back({"axis", axis});
  return v.builder().op1("reduce_scatter", {v}, std::move(attributes), {}, value.site());
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
  RegionTrace trace(target, false);
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
      throw InvalidArgument(str("merge_call: a result holds ", counted(result.size(), "value"), " for ",
                                counted(replicas, "replica"), "; give one for all, or one for each"),
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
