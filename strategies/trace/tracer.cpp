// strategies/trace/tracer.cpp - steps and regions traced for all replicas at once, and reductions over their
// values.
#include "lockstep/strategies/trace/tracer.h"

#include <algorithm>

#include "lockstep/core/error.h"
#include "lockstep/graph/build/builder_access.h"
#include "lockstep/graph/build/regions.h"
#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/strategies/trace/internal/at_once.h"
#include "lockstep/strategies/trace/internal/result_kinds.h"
#include "lockstep/strategies/trace/internal/variable_state.h"

namespace lockstep::internal {

namespace {

// In an update the region is run for each copy: a node that combines replicas would count every copy of what
// is one value.
void check_update(const Graph& region) {
  for (const Node& node : region.nodes()) {
    const OpTraits& traits = node.op().traits;
    if (traits.is(ReplicaRole::kCollective) || traits.is(ReplicaRole::kSumOverReplicas) ||
        traits.is(ReplicaRole::kShare)) {
      throw FailedPrecondition(
          str(node.op().name, "() requires replica context, and this is the code of one copy, in an update: ",
              "compute it before the update and hand its result over as an argument"),
          place_of(node));
    }
    for (const Graph& inner : node.regions()) check_update(inner);
  }
}

std::string replicas_text(std::int64_t count) { return str(count, count == 1 ? " replica" : " replicas"); }

std::string slots_text(std::size_t count) { return str(count, count == 1 ? " slot" : " slots"); }

// Is it one value for all replicas of all workers? A single value of one of several workers is that worker's.
bool is_same(const PerReplica<Value>& value, const ReplicaRange& range) {
  return value.kind() == ReplicaKind::kMirrored || (value.kind() == ReplicaKind::kSingle && !range.is_part());
}

void check_reduce(ReduceOp op, const PerReplica<Value>& value, const std::optional<std::int64_t>& axis,
                  const ReplicaRange& range, const SourceSite& site) {
  const std::int64_t replicas = range.local;
  const auto refuse = [&](const std::string& why) {
    throw InvalidArgument(str("reduce: ", why), place_of_call("reduce()", site));
  };
  if (!value.is_single() && value.size() != static_cast<std::size_t>(replicas))
    refuse(str("the value has ", slots_text(value.size()), " for ", replicas_text(replicas)));
  const TensorSpec& first = value[0].spec();
  for (std::size_t r = 1; r < value.size(); ++r) {
    const TensorSpec& slot = value[r].spec();
    if (slot.dtype != first.dtype || slot.shape.rank() != first.shape.rank())
      refuse(str("the value is ", first, " on replica 0 and ", slot, " on replica ", r,
                 "; slots have one dtype and one rank"));
  }
  if (axis) {
    if (op != ReduceOp::kSum && op != ReduceOp::kMean)
      refuse(str("over an axis it takes sum or mean, got ", to_string(op)));
    const auto limit = static_cast<std::int64_t>(first.shape.rank());
    if (*axis < -limit || *axis >= limit)
      refuse(str("axis ", *axis, " is out of range for values of rank ", limit, " (", first, ")"));
  }
  if (is_same(value, range) && range.world > 1 && (op == ReduceOp::kSum || op == ReduceOp::kProd)) {
    const bool sums = op == ReduceOp::kSum;
    refuse(
        str("a ", to_string(value.kind()), " value cannot be ", sums ? "summed" : "multiplied",
            " over replicas: it is the same on all of them; ",
            sums ? "divide by their number first, or take the mean" : "take the mean, or the value itself"));
  }
}

bool is_half(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

}  // namespace

Tracer::Tracer(Strategy& strategy, std::vector<std::string> devices, std::shared_ptr<VariableStore> variables,
               WorkerSpec worker)
    : strategy_(&strategy),
      devices_(std::move(devices)),
      variables_(std::move(variables)),
      worker_(std::move(worker)) {
  if (worker_.count < 1 || worker_.rank < 0 || worker_.rank >= worker_.count)
    throw InvalidArgument(
        str("worker ", worker_.rank, " of ", worker_.count, " does not exist; ranks begin at 0"));
}

Tracer::~Tracer() = default;

bool Tracer::may_drift(std::string_view) const { return false; }

VariableHome Tracer::variable_home(std::int64_t) const { return {}; }

// Declares them as Variable does: for variables that a graph declares, or an optimizer for its slots.
void Tracer::allow_drift(Graph& step) const {
  std::vector<std::string> names;
  for (const VariableDecl& decl : step.variables()) {
    if (may_drift(decl.name)) names.push_back(decl.name);
  }
  for (const std::string& name : names)
    step.redeclare_variable(declaration_in_step(*step.find_variable(name), *this));
}

std::vector<PerReplica<Value>> Tracer::replicate(std::span<const PerReplica<Value>> arguments,
                                                 const TraceFn& trace, ContextKind kind,
                                                 std::string_view method, SourceSite site) {
  require_cross_replica(this, method, site);
  require_no_update(method, site);
  GraphBuilder* builder = current_builder();
  if (builder == nullptr) {
    throw FailedPrecondition(str(method, " makes nodes: call it inside cross_function() or a merge function",
                                 kind == ContextKind::kReplica ? "; elsewhere give run() tensors" : ""),
                             place_of_call(method, site));
  }
  const std::int64_t replicas = num_local_replicas();
  std::vector<Value> shared;
  std::vector<std::vector<Value>> own;
  std::vector<std::size_t> place(arguments.size());  // among the region's parameters of one replica
  // Of one of several workers, also what is the same on all of them: the slots here do not tell.
  const auto is_shared = [&](const PerReplica<Value>& argument) {
    return argument.is_single() ||
           (is_part() && argument.kind() == ReplicaKind::kMirrored &&
            std::ranges::all_of(argument, [&](const Value& slot) { return slot.id() == argument[0].id(); }));
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const PerReplica<Value>& argument = arguments[i];
    if (is_shared(argument)) {
      shared.push_back(argument[0]);
      continue;
    }
    if (argument.size() != static_cast<std::size_t>(replicas)) {
      throw InvalidArgument(str(method, ": argument ", i + 1, " has ", slots_text(argument.size()), " for ",
                                replicas_text(replicas)),
                            place_of_call(method, site));
    }
    own.push_back(argument.values());
  }
  std::size_t next_shared = 0, next_own = shared.size();
  for (std::size_t i = 0; i < arguments.size(); ++i)
    place[i] = is_shared(arguments[i]) ? next_shared++ : next_own++;
  const auto& make = kind == ContextKind::kUpdate ? lockstep::replicated_update : lockstep::replicated;
  std::size_t own_results = 0;
  std::vector<std::function<void(const PerReplica<Value>&)>> leaving;
  const auto results = make(
      *builder, range(), shared, own,
      [&](std::span<const Value> values) {
        ContextFrame frame(this, kind, builder);
        RegionKinds known(BuilderAccess(*builder).innermost(), BuilderAccess(*builder).outermost().graph());
        frame.set_kinds(&known);
        std::vector<Value> ordered;
        ordered.reserve(place.size());
        for (std::size_t i = 0; i < place.size(); ++i) {
          ordered.push_back(values[place[i]]);
          known.set(ordered.back().id().node, arguments[i].kind());
        }
        std::vector<Value> given = trace(ordered);
        if (kind == ContextKind::kUpdate) check_update(BuilderAccess(*builder).innermost().graph());
        own_results = given.size();
        for (const auto& [value, then] : frame.leaving()) {
          given.push_back(value);
          leaving.push_back(then);
        }
        return given;
      },
      site);
  if (results.empty()) return {};
  const Graph& graph = BuilderAccess(*builder).innermost().graph();
  const Node& node = graph.node(results[0][0].id().node);
  std::vector<ReplicaKind> kinds(ReplicatedNode(node).shared(), ReplicaKind::kSingle);
  for (const PerReplica<Value>& argument : arguments) {
    if (!is_shared(argument)) kinds.push_back(argument.kind());
  }
  kinds = result_kinds(node.regions()[0], kinds, BuilderAccess(*builder).outermost().graph());
  std::vector<PerReplica<Value>> out;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (num_replicas_in_sync() == 1 || kinds[i] == ReplicaKind::kSingle) {
      out.emplace_back(results[i][0]);
    } else {
      out.emplace_back(results[i], kinds[i]);
    }
  }
  for (std::size_t i = own_results; i < out.size(); ++i) leaving[i - own_results](out[i]);
  out.resize(own_results);
  return out;
}

PerReplica<Value> slot_by_slot(SlotFunction function, const SlotOperand<Value>& a,
                               const SlotOperand<Value>& b) {
  const SourceSite& site = a.site;
  const ContextFrame* frame = ContextFrame::current();
  if (frame == nullptr || frame->builder() == nullptr) {
    throw FailedPrecondition(
        "an operator on per-replica values makes nodes: use it where a function is traced",
        place_of_call("the operator", site));
  }
  const auto here = BuilderAccess(*frame->builder()).made_at(site);
  std::vector<PerReplica<Value>> arguments;
  const auto add = [&](const SlotOperand<Value>& operand) {
    if (operand.read) return;
    if (operand.slots.empty())
      throw InvalidArgument("an operand is empty", place_of_call("the operator", site));
    arguments.push_back(operand.slots);
  };
  add(a);
  add(b);
  const auto apply = [&](std::span<const Value> values) {
    std::size_t next = 0;
    const Operand first = a.read ? a.read() : Operand(values[next++], site);
    const Operand second = b.read ? b.read() : Operand(values[next++], site);
    return std::vector<Value>{function(first, second)};
  };
  const bool all_single = std::ranges::all_of(arguments, [](const auto& one) { return one.is_single(); });
  if (all_single) {
    std::vector<Value> values;
    values.reserve(arguments.size());
    for (const PerReplica<Value>& argument : arguments) values.push_back(argument[0]);
    return apply(values)[0];
  }
  return frame->tracer()->replicate(arguments, apply, ContextKind::kReplica, "operator", site)[0];
}

Step::Parts Tracer::trace_cross(std::vector<InputSpec> inputs, const CrossTraceFn& trace,
                                std::string_view method, SourceSite site) {
  require_cross_replica(this, method, site);
  if (current_builder() != nullptr) {
    throw FailedPrecondition(
        str(method, ": a function cannot be made while another one is being traced; make it before"),
        place_of_call(method, site));
  }
  GraphBuilder builder;
  std::vector<PerReplica<Value>> arguments;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    InputSpec& input = inputs[i];
    if (input.name.empty()) input.name = str("input_", i);
    std::vector<Value> slots;
    for (std::int64_t r = 0; r < (input.shared ? 1 : num_local_replicas()); ++r) {
      slots.push_back(
          builder.placeholder(copy_name(input.name, r), input.spec.dtype, input.spec.shape, site));
    }
    // Even with one replica its own input counts as per replica: values that depend on it are not the same
    // for all.
    arguments.push_back(input.shared ? PerReplica<Value>(from_chief(slots[0], site))
                                     : PerReplica<Value>(slots));
  }
  Step::Parts parts;
  parts.inputs = std::move(inputs);
  parts.replicas = devices_.size();
  {
    const ContextFrame frame(this, ContextKind::kCrossReplica, &builder);
    std::size_t next = 0;
    for (const PerReplica<Value>& result : trace(arguments)) {
      if (!result.is_single() && result.size() != devices_.size()) {
        throw InvalidArgument(str("a result has ", slots_text(result.size()), " for ",
                                  replicas_text(num_local_replicas()), "; give one for each, or one for all"),
                              place_of_call(method, site));
      }
      // One of several equal values is enough.
      const ReplicaKind kind = num_replicas_in_sync() == 1 ? ReplicaKind::kSingle : result.kind();
      const std::size_t slots = kind == ReplicaKind::kPerReplica ? result.size() : 1;
      parts.results.push_back({kind, next});
      for (std::size_t r = 0; r < slots; ++r) builder.result(result[r]);
      next += slots;
    }
  }
  parts.step_graph = builder.finish();
  allow_drift(parts.step_graph);
  return parts;
}

Step::Parts Tracer::trace_replicas(std::vector<InputSpec> inputs, const TraceFn& trace,
                                   std::string_view method, SourceSite site) {
  return trace_cross(
      std::move(inputs),
      [&](std::span<const PerReplica<Value>> arguments) {
        return replicate(arguments, trace, ContextKind::kReplica, method, site);
      },
      method, site);
}

Value Tracer::reduce_values(ReduceOp op, const PerReplica<Value>& value, std::optional<std::int64_t> axis,
                            SourceSite site) {
  require_cross_replica(this, "reduce()", site);
  if (value.empty()) throw InvalidArgument("reduce: the value is empty", place_of_call("reduce()", site));
  check_reduce(op, value, axis, range(), site);
  const bool same = is_same(value, range()), whole = value.is_single();
  if (!axis) {
    if (same || (value.size() == 1 && !is_part())) return value[0];
    std::vector<Value> slots = value.values();
    if (op == ReduceOp::kMean && !is_floating(slots[0].dtype())) {
      const auto here = BuilderAccess(slots[0].builder()).made_at(site);
      for (Value& slot : slots) slot = cast(slot, DType::kF64);
    }
    return combined(op, slots, whole, site);
  }
  const auto here = BuilderAccess(value[0].builder()).made_at(site);
  // Sum and count of each replica; a value that is the same everywhere counts once. Half floats are added up
  // in f32 and rounded once, at the end: a sum over an axis may overflow them although the mean does not.
  const DType dtype = value[0].dtype();
  const DType wide = is_half(dtype)                                 ? DType::kF32
                     : op == ReduceOp::kMean && !is_floating(dtype) ? DType::kF64
                                                                    : dtype;
  std::vector<Value> sums, counts;
  for (const Value& slot : same ? std::vector<Value>{value[0]} : value.values()) {
    sums.push_back(sum(slot.dtype() == wide ? slot : cast(slot, wide), {*axis}));
    counts.push_back(gather(
        shape_of(slot), slot.builder().constant(Tensor::scalar(
                            *axis < 0 ? *axis + static_cast<std::int64_t>(slot.shape().rank()) : *axis))));
  }
  const auto all = [&](std::span<const Value> parts) {
    return same || (parts.size() == 1 && !is_part()) ? parts[0]
                                                     : combined(ReduceOp::kSum, parts, whole, site);
  };
  Value total = all(sums);
  if (op == ReduceOp::kMean) {
    const Value count = all(counts);
    total = total / cast(count, wide);
  }
  return is_half(dtype) ? cast(total, dtype) : total;
}

Tensor Tracer::reduce_tensors(ReduceOp op, const PerReplica<Tensor>& value, std::optional<std::int64_t> axis,
                              SourceSite site) {
  require_cross_replica(this, "reduce()", site);
  if (value.empty()) throw InvalidArgument("reduce: the value is empty", place_of_call("reduce()", site));
  Graph graph = graph_of(value.values(), site, [&](GraphBuilder& builder, const std::vector<Value>& slots) {
    const ContextFrame frame(this, ContextKind::kCrossReplica, &builder);
    return reduce_values(
        op, value.is_single() ? PerReplica<Value>(slots[0]) : PerReplica<Value>(slots, value.kind()), axis,
        site);
  });
  return compute(std::move(graph), value.values(), site);
}

Value Tracer::combined(ReduceOp op, std::span<const Value> slots, bool whole, SourceSite site) const {
  if (!is_part()) return reduce_replicas(op, slots, site);
  const auto here = static_cast<std::int64_t>(slots.size());
  std::vector<Attribute> attributes = {{"reduce", std::string(to_string(op))}, {"replicas", here}};
  set_range(attributes, whole ? ReplicaRange(here, 0, worker_.count) : range());
  return slots[0].builder().op("all_reduce", slots, std::move(attributes), {}, site)[0];
}

Value Tracer::from_chief(const Value& value, SourceSite site) const {
  if (!is_part()) return value;
  std::vector<Attribute> attributes = {{"replicas", std::int64_t{1}}};
  set_range(attributes, ReplicaRange(1, 0, worker_.count));
  return value.builder().op1("broadcast_replica", {value}, std::move(attributes), {}, site);
}

Tensor Tracer::compute(Graph graph, const std::vector<Tensor>& feeds, SourceSite) const {
  return Interpreter(std::move(graph)).run(feeds)[0];
}

}  // namespace lockstep::internal
