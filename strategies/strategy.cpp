// strategies/strategy.cpp - distributing one step over replicas: a recipe of passes, and the API around it.
#include "lockstep/strategies/strategy.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "lockstep/core/communicators/group.h"
#include "lockstep/core/communicators/group_round.h"
#include "lockstep/core/device.h"
#include "lockstep/core/membership/membership.h"
#include "lockstep/graph/build/regions.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/strategies/one_device.h"
#include "lockstep/strategies/passes/enter_replicas.h"
#include "lockstep/strategies/passes/internal/copies.h"
#include "lockstep/strategies/passes/internal/device_checks.h"
#include "lockstep/strategies/passes/internal/over_workers.h"
#include "lockstep/strategies/passes/lower_collectives.h"
#include "lockstep/strategies/passes/order_collectives.h"
#include "lockstep/strategies/passes/register.h"
#include "lockstep/strategies/proof/collective_schedule.h"
#include "lockstep/strategies/trace/assign_check.h"
#include "lockstep/strategies/trace/internal/at_once.h"
#include "lockstep/strategies/trace/internal/result_kinds.h"
#include "lockstep/strategies/trace/internal/variable_state.h"

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

// The store that the options name; if they name none, they get one that belongs to the strategy.
std::shared_ptr<VariableStore> store_of(StrategyOptions& options) {
  if (options.compile.variables == nullptr) options.compile.variables = std::make_shared<VariableStore>();
  return options.compile.variables;
}

// Outside of replicas a node that writes a variable reaches the first copy alone, and others may run in
// another function.
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

// The text with the devices of the replicas by their numbers: another worker's may have other names.
std::string without_names(std::string text, const std::vector<std::string>& devices) {
  const auto is_in_name = [&](std::size_t at) {
    const char c = at < text.size() ? text[at] : ' ';
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == ':';
  };
  for (std::size_t r = 0; r < devices.size(); ++r) {
    const std::string number = str("(device of replica ", r, ")");
    for (std::size_t at = text.find(devices[r]); at != std::string::npos;
         at = text.find(devices[r], at + 1)) {
      if (is_in_name(at + devices[r].size()) || (at > 0 && is_in_name(at - 1))) continue;
      text.replace(at, devices[r].size(), number);
    }
  }
  return text;
}

}  // namespace

Strategy::Strategy(const std::vector<std::string>& devices, StrategyOptions options, SourceSite site) try
    : Tracer(*this, canonical(devices), store_of(options), options.worker),
      runtime_(runtime_for(options, worker_devices())),
      compile_(std::move(options.compile)),
      checks_(options.checks),
      membership_(std::move(options.membership)),
      exchange_(std::move(options.exchange)) {
  register_strategy_passes();
  if (!is_part()) return;
  const Group& group = runtime_.group(internal::kWorkersGroup);
  if (group.rank() != worker().rank || group.size() != worker().count)
    throw InvalidArgument(str("this is worker ", worker().rank, " of ", worker().count, ", and member ",
                              group.rank(), " of the ", group.size(), " of the group '",
                              internal::kWorkersGroup, "'"));
} catch (Error& error) {
  error.add_call("Strategy", site);
  throw;
}

Strategy::~Strategy() = default;

VariableHome Strategy::variable_home(std::int64_t replica) const {
  const std::vector<std::string>& devices = parameter_devices();
  const std::string& device = devices[static_cast<std::size_t>(replica) % devices.size()];
  return {device, runtime_.pool(Device::parse(device))};
}

void Strategy::check_step(const Graph& step) const {
  if (num_replicas_in_sync() > 1) check_writes(step);
  check_assigns(step);
}

Strategy::Scope Strategy::scope(SourceSite site) {
  internal::require_cross_replica(this, "scope()", site);
  return Scope(*this);
}

Step Strategy::finish_step(Step::Parts parts, std::string_view method, const SourceSite& site) {
  return named_call(method, site, [&] {
    check_step(parts.step_graph);
    Graph graph = parts.step_graph;
    PassPipeline passes = pipeline();
    Analyses records;
    PassContext context{
        .topology = &runtime_.topology(), .records = &records, .first_replica = first_replica()};
    agree(graph, passes.to_string(), method);
    parts.report = passes.run(graph, context, {.verify = checks_});
    // Recorded by order-collectives: once the order is fixed, and before collectives become other nodes.
    if (const auto schedule = records.find<CollectiveSchedule>()) parts.schedule = *schedule;
    // A graph that the pipeline has verified is not verified again.
    CompileOptions options = compile_;
    options.verify = compile_.verify && checks_ == PipelineChecks::kNever;
    // What changes on one worker changes on all of them, or on none.
    const bool commits = std::ranges::any_of(graph.nodes(), [](const Node& node) {
      return has(effects_of(node), Effect::kWritesVariable | Effect::kRandom);
    });
    if (commits && is_part()) options.groups.emplace_back(internal::kWorkersGroup);
    parts.program = compile(std::move(graph), runtime_, options, site);
    parts.after = [this](std::uint64_t steps, const Error* failure) { after_run(steps, failure); };
    return Step(std::move(parts));
  });
}

Step Strategy::distribute(Graph step, const std::vector<std::string>& shared, SourceSite site) {
  internal::require_cross_replica(this, "distribute()", site);
  allow_drift(step);
  Step::Parts parts;
  parts.replicas = worker_devices().size();
  const bool plain = internal::max_replicas(step) == 0;
  PassPipeline enter;
  enter.add(make_enter_replicas(
      {.replicas = num_local_replicas(), .shared = shared, .world = is_part() ? num_replicas_in_sync() : 0}));
  named_call("distribute()", site, [&] { enter.run(step, {.verify = checks_}); });
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
    // One of several equal values is enough.
    const std::vector<ValueId> all = step.results();
    std::vector<ValueId> kept;
    kinds = internal::result_kinds(region, kinds, step);
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      if (num_replicas_in_sync() == 1) kinds[i] = ReplicaKind::kSingle;
      parts.results.push_back({kinds[i], kept.size()});
      const std::size_t slots = kinds[i] == ReplicaKind::kPerReplica ? parts.replicas : 1;
      for (std::size_t r = 0; r < slots; ++r) kept.push_back(all[i * parts.replicas + r]);
    }
    step.set_results(std::move(kept));
  }
  parts.step_graph = std::move(step);
  return finish_step(std::move(parts), "distribute()", site);
}

Tensor Strategy::reduce(ReduceOp op, const PerReplica<Tensor>& value, std::optional<std::int64_t> axis,
                        SourceSite site) {
  return reduce_tensors(op, value, axis, site);
}

Value Strategy::reduce(ReduceOp op, const PerReplica<Value>& value, std::optional<std::int64_t> axis,
                       SourceSite site) {
  return reduce_values(op, value, axis, site);
}

ReduceResult Strategy::reduce(ReduceOp op, const RunResult& value, std::optional<std::int64_t> axis,
                              SourceSite site) {
  return value.is_traced() ? ReduceResult(reduce(op, value.traced(), axis, site), site)
                           : ReduceResult(reduce(op, value.computed(), axis, site), site);
}

ReduceResult Strategy::gather(const RunResult& value, std::int64_t axis, SourceSite site) {
  return value.is_traced() ? ReduceResult(gather(value.traced(), axis, site), site)
                           : ReduceResult(gather(value.computed(), axis, site), site);
}

Value Strategy::gather(const PerReplica<Value>& value, std::int64_t axis, SourceSite site) {
  internal::require_cross_replica(this, "gather()", site);
  const auto refuse = [&](const std::string& why) {
    throw InvalidArgument(str("gather: ", why), place_of_call("gather()", site));
  };
  if (value.empty()) refuse("the value is empty");
  const auto replicas = static_cast<std::size_t>(num_local_replicas());
  if (!value.is_single() && value.size() != replicas)
    refuse(str("the value has ", counted(value.size(), "slot"), " for ", counted(replicas, "replica")));
  for (std::size_t r = 1; r < value.size(); ++r) {
    if (value[r].shape().rank() != value[0].shape().rank())
      refuse(str("the value is ", value[0].spec(), " on replica 0 and ", value[r].spec(), " on replica ", r,
                 "; give all of them one rank"));
  }
  const auto rank = static_cast<std::int64_t>(value[0].shape().rank());
  if (axis < -rank || axis >= rank)
    refuse(str("axis ", axis, " is out of range for values of rank ", rank, " (", value[0].spec(), ")"));
  std::vector<Value> slots;
  for (std::size_t r = 0; r < replicas; ++r) slots.push_back(value[r]);
  if (is_part()) {
    std::vector<Attribute> attributes = {{"axis", axis}, {"replicas", num_local_replicas()}};
    set_range(attributes, range());
    return slots[0].builder().op("all_gather", slots, std::move(attributes), {}, site)[0];
  }
  return slots.size() == 1 ? slots[0] : concat(slots, axis, site);
}

Tensor Strategy::gather(const PerReplica<Tensor>& value, std::int64_t axis, SourceSite site) {
  internal::require_cross_replica(this, "gather()", site);
  if (value.empty()) throw InvalidArgument("gather: the value is empty", place_of_call("gather()", site));
  Graph graph =
      internal::graph_of(value.values(), site, [&](GraphBuilder& builder, const std::vector<Value>& slots) {
        const internal::ContextFrame frame(this, ContextKind::kCrossReplica, &builder);
        return gather(
            value.is_single() ? PerReplica<Value>(slots[0]) : PerReplica<Value>(slots, value.kind()), axis,
            site);
      });
  return compute(std::move(graph), value.values(), site);
}

Tensor Strategy::compute(Graph graph, const std::vector<Tensor>& feeds, SourceSite site) const {
  if (!is_part()) return Tracer::compute(std::move(graph), feeds, site);
  PassPipeline passes;
  passes.add(make_lower_collectives({.joins_first = exchange_.joins_first, .exchange = exchange_.device}));
  passes.add(make_order_collectives());
  PassContext context{.topology = &runtime_.topology()};
  passes.run(graph, context, {.verify = checks_});
  const Program program = compile(std::move(graph), runtime_, {}, site);
  Tensor result;
  name_losses([&] { result = program.run(feeds)[0]; });
  return result;
}

void Strategy::run_round(const std::function<void(GroupRound&)>& body) const {
  name_losses([&] { lockstep::run_round(runtime_.group(internal::kWorkersGroup), body); });
}

void Strategy::name_losses(const std::function<void()>& exchanges) const {
  try {
    exchanges();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kUnavailable && !find_declined(std::current_exception()))
      after_run(0, &error);
    throw;
  }
}

void Strategy::after_run(std::uint64_t /*steps*/, const Error* /*failure*/) const {}

void Strategy::agree(const Graph& step, std::string_view passes, std::string_view method) const {
  if (!is_part() || membership_ == nullptr) return;
  membership_->agree(str("step ", agreed_++, ", ", method),
                     without_names(str(passes, "\n", print(step)), worker_devices()));
}

PlaceResult<std::vector<Value>, std::vector<Tensor>> Strategy::local_results(const RunResult& value,
                                                                             SourceSite site) {
  using Results = PlaceResult<std::vector<Value>, std::vector<Tensor>>;
  return value.is_traced() ? Results(value.traced().values(), site)
                           : Results(value.computed().values(), site);
}

PerReplica<Tensor> Strategy::broadcast(const Tensor& value, SourceSite site) {
  internal::require_cross_replica(this, "broadcast()", site);
  if (!value.defined())
    throw InvalidArgument("broadcast(): the tensor is empty", place_of_call("broadcast()", site));
  Tensor all = value.clone();
  if (is_part()) {
    Graph graph = internal::graph_of({&value, 1}, site, [&](GraphBuilder&, const std::vector<Value>& v) {
      return from_chief(v[0], site);
    });
    all = compute(std::move(graph), {value}, site);
  }
  return mirrored(std::vector<Tensor>(worker_devices().size(), all));
}

PerReplica<Tensor> Strategy::distribute_values_from_function(
    const std::function<Tensor(std::int64_t replica, std::int64_t replicas)>& f, SourceSite site) {
  constexpr std::string_view kMethod = "distribute_values_from_function()";
  internal::require_cross_replica(this, kMethod, site);
  std::vector<Tensor> values;
  for (std::int64_t r = 0; r < num_local_replicas(); ++r) {
    values.push_back(f(first_replica() + r, num_replicas_in_sync()));
    if (!values.back().defined()) {
      throw InvalidArgument(str(kMethod, ": the tensor for replica ", r, " is empty"),
                            place_of_call(kMethod, site));
    }
  }
  return PerReplica<Tensor>(std::move(values));
}

PerReplica<Value> Strategy::update_each(const std::function<Value(std::span<const Value>)>& fn,
                                        std::span<const PerReplica<Value>> arguments, std::string_view method,
                                        SourceSite site) {
  internal::require_cross_replica(this, method, site);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].kind() != ReplicaKind::kPerReplica || num_replicas_in_sync() == 1) continue;
    throw InvalidArgument(str(method, ": Expected value to be mirrored across replicas, and argument ", i + 1,
                              " is per replica: reduce it first"),
                          place_of_call(method, site));
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

internal::Tracer& internal::default_tracer() { return default_strategy(); }

Strategy& default_strategy() {
  static OneDeviceStrategy strategy;
  return strategy;
}

}  // namespace lockstep
