#include "lockstep/strategies/strategy.h"

#include <algorithm>
#include <set>

#include "lockstep/core/device.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/build/regions.h"
#include "lockstep/strategies/trace/assign_check.h"
#include "lockstep/strategies/proof/collective_schedule.h"
#include "lockstep/strategies/trace/internal/at_once.h"
#include "lockstep/strategies/passes/internal/copies.h"
#include "lockstep/strategies/passes/internal/memories.h"
#include "lockstep/strategies/trace/internal/result_kinds.h"
#include "lockstep/strategies/trace/internal/variable_state.h"
#include "lockstep/strategies/one_device.h"
#include "lockstep/strategies/passes/enter_replicas.h"
#include "lockstep/strategies/passes/register.h"

namespace lockstep {

namespace {

std::vector<std::string> canonical(const std::vector<std::string>& devices) {
  if (devices.empty()) {
    throw InvalidArgument(
        "an explicit list of devices must not be empty; leave it out for every GPU, else the CPU");
  }
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const std::string& device : devices) {
    names.push_back(Device::parse(device).to_string());
    if (!seen.insert(names.back()).second) {
      throw InvalidArgument(str("device '", names.back(),
                                "' is listed twice; each replica needs its own (logical ",
                                "devices such as cpu:0 and cpu:1 share one CPU)"));
    }
  }
  return names;
}

Runtime runtime_for(const StrategyOptions& options, const std::vector<std::string>& devices) {
  Runtime runtime = options.runtime ? *options.runtime : internal::runtime_with(devices);
  for (const std::string& name : devices) internal::check_device(runtime, name);
  return runtime;
}

// Takes down in which order the step communicates: once it is fixed, and before collectives become other nodes.
class ScheduleWatch final : public PassInstrumentation {
 public:
  void after_pass(const Pass& pass, const Graph& graph, std::size_t, const PassReport&) override {
    if (pass.name() == "order-collectives") schedule = collective_schedule(graph);
  }
  std::vector<ScheduledCollective> schedule;
};

// Outside of replicas a node that writes a variable reaches the first copy alone, and others may run in another function.
void check_writes(const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    const RegionKind kind = node.op().region_kind;
    if (kind == RegionKind::kReplicated) continue;
    if (kind == RegionKind::kCond || kind == RegionKind::kWhile) {
      for (const Graph& region : node.regions()) check_writes(region);
      continue;
    }
    const auto written = updated_variables(node);
    if (written.empty()) continue;
    throw InvalidArgument(
        str("variable '", written[0],
            "' is written outside of the replicas, where one of its copies would change and the "
            "others not: use Variable::assign() or Strategy::update(), which reach every copy, or ",
            "write it inside of run()"),
        place_of(node));
  }
}

// In an update a region stands for each copy: what combines replicas would count every copy of a value that is one.
void check_update(const Graph& region) {
  for (const Node& node : region.nodes()) {
    const OpTraits& traits = node.op().traits;
    if (traits.collective || traits.sum_over_replicas || traits.replica_share) {
      throw FailedPrecondition(
          str(node.op().name, "() requires replica context, and this is the code of one copy, in an update: ",
              "compute it before the update and hand its result over as an argument"),
          place_of(node));
    }
    for (const Graph& inner : node.regions()) check_update(inner);
  }
}

void check_reduce_axis(ReduceOp op, const std::optional<std::int64_t>& axis, std::size_t rank) {
  if (!axis) return;
  if (op != ReduceOp::kSum && op != ReduceOp::kMean)
    throw InvalidArgument(str("reduce over an axis takes sum or mean, got ", to_string(op)));
  const auto limit = static_cast<std::int64_t>(rank);
  if (*axis < -limit || *axis >= limit)
    throw InvalidArgument(str("reduce: axis ", *axis, " is out of range for values of rank ", rank));
}

// As Variable declares them; for what a graph declares, or an optimizer for its slots.
void let_drift(Graph& step, const Strategy& strategy) {
  std::vector<std::string> names;
  for (const VariableDecl& decl : step.variables()) {
    if (strategy.may_drift(decl.name)) names.push_back(decl.name);
  }
  for (const std::string& name : names)
    step.redeclare_variable(internal::as_step_has_it(*step.find_variable(name), strategy));
}

}  // namespace

Strategy::Strategy(StrategyOptions options)
    : devices_(canonical(options.devices)),
      runtime_(runtime_for(options, devices_)),
      compile_(std::move(options.compile)),
      checks_(options.checks) {
  if (compile_.variables == nullptr) compile_.variables = std::make_shared<VariableStore>();
  register_strategy_passes();
}

Strategy::~Strategy() = default;

bool Strategy::may_drift(std::string_view) const { return false; }
void Strategy::check_step(const Graph& step) const {
  if (devices_.size() > 1) check_writes(step);
  check_assigns(step);
}

Strategy::Scope Strategy::scope() {
  internal::require_cross_replica(this, "scope()");
  return Scope(*this);
}

// --- tracing

std::vector<PerReplica<Value>> Strategy::replicate(std::span<const PerReplica<Value>> arguments,
                                                   const TraceFn& trace, ContextKind kind,
                                                   std::string_view method, SourceSite site) {
  internal::require_cross_replica(this, method);
  internal::require_no_update(method);
  GraphBuilder* builder = current_builder();
  if (builder == nullptr) {
    throw FailedPrecondition(str(method, " makes nodes: call it inside cross_function() or a merge function",
                                 kind == ContextKind::kReplica ? "; elsewhere give run() tensors" : ""));
  }
  const std::int64_t replicas = num_replicas_in_sync();
  std::vector<Value> shared;
  std::vector<std::vector<Value>> own;
  std::vector<std::size_t> place(arguments.size());  // in the region's parameters, those of one replica
  for (const PerReplica<Value>& argument : arguments) {
    if (argument.is_single()) {
      shared.push_back(argument[0]);
    } else {
      if (argument.size() != static_cast<std::size_t>(replicas)) {
        throw InvalidArgument(str("an argument has ", argument.size(), " slots for ", replicas, " replicas"));
      }
      own.push_back(argument.values());
    }
  }
  std::size_t next_shared = 0, next_own = shared.size();
  for (std::size_t i = 0; i < arguments.size(); ++i)
    place[i] = arguments[i].is_single() ? next_shared++ : next_own++;
  const auto& make = kind == ContextKind::kUpdate ? lockstep::replicated_update : lockstep::replicated;
  std::size_t own_results = 0;
  std::vector<std::function<void(const PerReplica<Value>&)>> leaving;
  const auto results = make(
      *builder, replicas, shared, own,
      [&](std::span<const Value> values) {
        internal::ContextFrame frame(this, kind, builder);
        internal::RegionKinds known(builder->innermost(), builder->outermost().graph());
        frame.set_kinds(&known);
        std::vector<Value> ordered;
        ordered.reserve(place.size());
        for (std::size_t i = 0; i < place.size(); ++i) {
          ordered.push_back(values[place[i]]);
          known.set(ordered.back().id().node, arguments[i].kind());
        }
        std::vector<Value> given = trace(ordered);
        if (kind == ContextKind::kUpdate) check_update(builder->innermost().graph());
        own_results = given.size();
        for (const auto& [value, then] : frame.leaving()) {
          given.push_back(value);
          leaving.push_back(then);
        }
        return given;
      },
      site);
  if (results.empty()) return {};
  const Graph& graph = builder->innermost().graph();
  const Node& node = graph.node(results[0][0].id().node);
  const auto singles = static_cast<std::size_t>(*node.find<std::int64_t>("shared"));
  std::vector<ReplicaKind> kinds(singles, ReplicaKind::kSingle);
  for (const PerReplica<Value>& argument : arguments) {
    if (!argument.is_single()) kinds.push_back(argument.kind());
  }
  kinds = internal::result_kinds(node.regions()[0], kinds, builder->outermost().graph());
  std::vector<PerReplica<Value>> out;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (replicas == 1 || kinds[i] == ReplicaKind::kSingle) {
      out.emplace_back(results[i][0]);
    } else {
      out.emplace_back(results[i], kinds[i]);
    }
  }
  for (std::size_t i = own_results; i < out.size(); ++i) leaving[i - own_results](out[i]);
  out.resize(own_results);
  return out;
}

Step Strategy::trace_cross(std::vector<InputSpec> inputs, const CrossTraceFn& trace, std::string_view method,
                           SourceSite site) {
  internal::require_cross_replica(this, method);
  if (current_builder() != nullptr) {
    throw FailedPrecondition(
        str(method, ": a function cannot be made while another one is being traced; make it before"));
  }
  GraphBuilder builder;
  std::vector<PerReplica<Value>> arguments;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    InputSpec& input = inputs[i];
    if (input.name.empty()) input.name = str("input_", i);
    std::vector<Value> slots;
    for (std::int64_t r = 0; r < (input.shared ? 1 : num_replicas_in_sync()); ++r) {
      slots.push_back(
          builder.placeholder(copy_name(input.name, r), input.spec.dtype, input.spec.shape, site));
    }
    // One replica's own input is per replica still: what depends on it is not the same for all.
    arguments.push_back(input.shared ? PerReplica<Value>(slots[0]) : PerReplica<Value>(slots));
  }
  return finish_trace(builder, std::move(inputs), arguments, trace);
}

Step Strategy::finish_trace(GraphBuilder& builder, std::vector<InputSpec> inputs,
                            std::span<const PerReplica<Value>> arguments, const CrossTraceFn& trace) {
  Step::Parts parts;
  parts.inputs = std::move(inputs);
  parts.replicas = devices_.size();
  {
    const internal::ContextFrame frame(this, ContextKind::kCrossReplica, &builder);
    std::size_t next = 0;
    for (const PerReplica<Value>& result : trace(arguments)) {
      if (!result.is_single() && result.size() != devices_.size()) {
        throw InvalidArgument(str("a result has ", result.size(), " slots for ", devices_.size(),
                                  " replicas; give one for each, ", "or one for all"));
      }
      // Of equal values one is enough.
      const ReplicaKind kind = devices_.size() == 1 ? ReplicaKind::kSingle : result.kind();
      const std::size_t slots = kind == ReplicaKind::kPerReplica ? result.size() : 1;
      parts.results.push_back({kind, next});
      for (std::size_t r = 0; r < slots; ++r) builder.result(result[r]);
      next += slots;
    }
  }
  parts.step_graph = builder.finish();
  let_drift(parts.step_graph, *this);
  return finish_step(std::move(parts));
}

Step Strategy::finish_step(Step::Parts parts) {
  check_step(parts.step_graph);
  Graph graph = parts.step_graph;
  PassPipeline passes = pipeline();
  PassContext context{&runtime_};
  ScheduleWatch watch;
  parts.report = passes.run(graph, context, {.verify = checks_, .instrumentation = {&watch}});
  parts.schedule = std::move(watch.schedule);
  // What the pipeline has verified is not verified again.
  CompileOptions options = compile_;
  options.verify = compile_.verify && checks_ == PipelineChecks::kNever;
  parts.program = compile(std::move(graph), runtime_, options);
  return Step(std::move(parts));
}

Step Strategy::trace_replicas(std::vector<InputSpec> inputs, const TraceFn& trace, std::string_view method,
                              SourceSite site) {
  return trace_cross(
      std::move(inputs),
      [&](std::span<const PerReplica<Value>> arguments) {
        return replicate(arguments, trace, ContextKind::kReplica, method, site);
      },
      method, site);
}

Step Strategy::distribute(Graph step, const std::vector<std::string>& shared) {
  internal::require_cross_replica(this, "distribute()");
  let_drift(step, *this);
  Step::Parts parts;
  parts.replicas = devices_.size();
  const bool plain = internal::max_replicas(step) == 0;
  PassPipeline enter;
  enter.add(make_enter_replicas({.replicas = num_replicas_in_sync(), .shared = shared}));
  enter.run(step, {.verify = checks_});
  const auto add_input = [&](const Graph& graph, NodeId id, bool single) {
    parts.inputs.emplace_back(graph.spec({id, 0}), graph.node(id).name(), single);
  };
  if (!plain) {
    for (const NodeId id : step.parameters()) add_input(step, id, true);
    for (std::size_t i = 0; i < step.results().size(); ++i)
      parts.results.push_back({ReplicaKind::kSingle, i});
  } else {
    const auto nodes = step.nodes();
    const auto entered = std::find_if(nodes.begin(), nodes.end(), [](const Node& node) {
      return node.op().region_kind == RegionKind::kReplicated;
    });
    const Graph& region = entered->regions()[0];
    std::vector<ReplicaKind> kinds;
    for (std::size_t i = 0; i < region.parameters().size(); ++i) {
      const bool single = i < shared.size();
      add_input(region, region.parameters()[i], single);
      kinds.push_back(single ? ReplicaKind::kSingle : ReplicaKind::kPerReplica);
    }
    // Of equal values one is enough.
    const std::vector<ValueId> all = step.results();
    std::vector<ValueId> kept;
    kinds = internal::result_kinds(region, kinds, step);
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      if (parts.replicas == 1) kinds[i] = ReplicaKind::kSingle;
      parts.results.push_back({kinds[i], kept.size()});
      const std::size_t slots = kinds[i] == ReplicaKind::kPerReplica ? parts.replicas : 1;
      for (std::size_t r = 0; r < slots; ++r) kept.push_back(all[i * parts.replicas + r]);
    }
    step.set_results(std::move(kept));
  }
  parts.step_graph = std::move(step);
  return finish_step(std::move(parts));
}

// --- values

std::vector<InputSpec> Strategy::specs_of(std::span<const PerReplica<Tensor>> arguments) const {
  std::vector<InputSpec> specs;
  for (const PerReplica<Tensor>& argument : arguments) {
    TensorSpec spec = argument[0].spec();
    for (const Tensor& slot : argument) {
      if (slot.dtype() != spec.dtype || slot.shape().rank() != spec.shape.rank())
        throw InvalidArgument(str("the slots of an argument are ", spec, " and ", slot.spec()));
      spec.shape = join_shapes(spec.shape, slot.shape());
    }
    specs.emplace_back(spec, std::string(), argument.is_single());
  }
  return specs;
}

Value Strategy::reduce(ReduceOp op, const PerReplica<Value>& value, std::optional<std::int64_t> axis,
                       SourceSite site) {
  internal::require_cross_replica(this, "reduce()");
  if (value.empty()) throw InvalidArgument("reduce: the value is empty");
  check_reduce_axis(op, axis, value[0].shape().rank());
  const auto replicas = num_replicas_in_sync();
  if (!value.is_single() && value.size() != static_cast<std::size_t>(replicas))
    throw InvalidArgument(str("reduce: the value has ", value.size(), " slots for ", replicas, " replicas"));
  const bool same = value.kind() != ReplicaKind::kPerReplica;
  if (same && replicas > 1 && (op == ReduceOp::kSum || op == ReduceOp::kProd)) {
    const bool sums = op == ReduceOp::kSum;
    throw InvalidArgument(
        str("reduce: a ", to_string(value.kind()), " value cannot be ", sums ? "summed" : "multiplied",
            " over replicas: it is the same on all of them; ",
            sums ? "divide by their number first, or take the mean" : "take the mean, or the value itself"));
  }
  if (!axis) {
    if (value.size() == 1 || same) return value[0];
    std::vector<Value> slots = value.values();
    if (op == ReduceOp::kMean && !is_floating(slots[0].dtype())) {
      const auto here = slots[0].builder().made_at(site);
      for (Value& slot : slots) slot = cast(slot, DType::kF64);
    }
    return reduce_replicas(op, slots, site);
  }
  const auto here = value[0].builder().made_at(site);
  // Sum and count of each replica; a value that is the same everywhere counts once.
  std::vector<Value> sums, counts;
  for (const Value& slot : same ? std::vector<Value>{value[0]} : value.values()) {
    const bool integer = !is_floating(slot.dtype());
    sums.push_back(sum(op == ReduceOp::kMean && integer ? cast(slot, DType::kF64) : slot, {*axis}));
    counts.push_back(gather(
        shape_of(slot), slot.builder().constant(Tensor::scalar(
                            *axis < 0 ? *axis + static_cast<std::int64_t>(slot.shape().rank()) : *axis))));
  }
  const Value total = sums.size() == 1 ? sums[0] : reduce_replicas(ReduceOp::kSum, sums, site);
  if (op == ReduceOp::kSum) return total;
  const Value count = counts.size() == 1 ? counts[0] : reduce_replicas(ReduceOp::kSum, counts, site);
  // A count may be more than a half holds.
  const DType dtype = total.dtype(), wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  return cast(cast(total, wide) / cast(count, wide), dtype);
}

Tensor Strategy::reduce(ReduceOp op, const PerReplica<Tensor>& value, std::optional<std::int64_t> axis,
                        SourceSite site) {
  internal::require_cross_replica(this, "reduce()");
  if (value.empty()) throw InvalidArgument("reduce: the value is empty");
  return internal::at_once(value.values(), site, [&](GraphBuilder& builder, const std::vector<Value>& slots) {
    const internal::ContextFrame frame(this, ContextKind::kCrossReplica, &builder);
    return reduce(op,
                  value.is_single() ? PerReplica<Value>(slots[0]) : PerReplica<Value>(slots, value.kind()),
                  axis, site);
  });
}

PerReplica<Tensor> Strategy::broadcast(const Tensor& value) {
  internal::require_cross_replica(this, "broadcast()");
  if (!value.defined()) throw InvalidArgument("broadcast(): the tensor is empty");
  return mirrored(std::vector<Tensor>(devices_.size(), value.clone()));
}

PerReplica<Tensor> Strategy::distribute_values_from_function(
    const std::function<Tensor(std::int64_t replica, std::int64_t replicas)>& f) {
  internal::require_cross_replica(this, "distribute_values_from_function()");
  std::vector<Tensor> values;
  for (std::int64_t r = 0; r < num_replicas_in_sync(); ++r) {
    values.push_back(f(r, num_replicas_in_sync()));
    if (!values.back().defined()) {
      throw InvalidArgument(
          str("distribute_values_from_function(): the tensor for replica ", r, " is empty"));
    }
  }
  return PerReplica<Tensor>(std::move(values));
}

PerReplica<Value> Strategy::update_each(const std::function<Value(std::span<const Value>)>& fn,
                                        std::span<const PerReplica<Value>> arguments, std::string_view method,
                                        SourceSite site) {
  internal::require_cross_replica(this, method);
  for (const PerReplica<Value>& argument : arguments) {
    if (argument.kind() == ReplicaKind::kPerReplica && num_replicas_in_sync() > 1)
      throw InvalidArgument(str(method, ": Expected value to be mirrored across replicas: reduce it first"));
  }
  const std::vector<PerReplica<Value>> results = replicate(
      arguments, [&](std::span<const Value> values) { return std::vector<Value>{fn(values)}; },
      ContextKind::kUpdate, method, site);
  return results[0];
}

PerReplica<Value> Strategy::update(const Variable& variable,
                                   const std::function<Value(const Variable&, std::span<const Value>)>& fn,
                                   std::span<const PerReplica<Value>> arguments, SourceSite site) {
  return update_each([&](std::span<const Value> values) { return fn(variable, values); }, arguments,
                     str("update() of '", variable.name(), "'"), site);
}

Strategy& default_strategy() {
  static OneDeviceStrategy strategy;
  return strategy;
}

}  // namespace lockstep
