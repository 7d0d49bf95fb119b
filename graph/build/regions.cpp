// graph/build/regions.cpp - traces the functions of the caller into regions.
#include "lockstep/graph/build/regions.h"

#include <algorithm>

#include "lockstep/graph/build/builder_access.h"
#include "lockstep/graph/build/internal/region_trace.h"
#include "lockstep/graph/ir/internal/region_shapes.h"

namespace lockstep {

namespace {

using internal::RegionTrace;

template <class T>
std::vector<T> joined(std::vector<T> a, std::span<const T> b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

std::vector<Value> cond(const Value& predicate, const BranchFn& then_branch, const BranchFn& else_branch,
                        SourceSite site) {
  static const OpDef& op = OpRegistry::global().get("cond");
  GraphBuilder& builder = internal::BuilderAccess(predicate.builder()).innermost();
  std::vector<Value> captured;
  RegionTrace then_trace(builder);
  then_trace.finish(then_branch(), site);
  RegionTrace else_trace(builder);
  else_trace.finish(else_branch(), site);
  then_trace.add_captures_to(captured);
  else_trace.add_captures_to(captured);
  std::vector<Graph> regions;
  regions.push_back(then_trace.take({}, captured));
  regions.push_back(else_trace.take({}, captured));
  const NodeId id = builder.node(op, {}, joined<Value>({predicate}, captured), {}, std::move(regions), site);
  return builder.outputs_of(id);
}

std::vector<Value> while_loop(std::span<const Value> initial, const LoopConditionFn& condition,
                              const LoopBodyFn& body, SourceSite site) {
  return while_loop(initial, condition, body, LoopOptions{}, site);
}

std::vector<Value> while_loop(std::span<const Value> initial, const LoopConditionFn& condition,
                              const LoopBodyFn& body, const LoopOptions& options, SourceSite site) {
  static const OpDef& op = OpRegistry::global().get("while_loop");
  if (initial.empty()) {
    throw InvalidArgument("while_loop: needs at least one carried value",
                          {{}, "while_loop", {}, site.file, site.line, -1});
  }
  GraphBuilder& builder = internal::BuilderAccess(initial[0].builder()).innermost();
  const auto trace = [&](RegionTrace& region, auto&& function) {
    std::vector<Value> parameters;
    for (const Value& value : initial) parameters.push_back(region.parameter(value.name(), value.spec()));
    if constexpr (std::is_same_v<std::decay_t<decltype(function(parameters))>, Value>) {
      const Value result = function(parameters);
      region.finish({&result, 1}, site);
    } else {
      region.finish(function(parameters), site);
    }
    return parameters;
  };
  RegionTrace condition_trace(builder);
  const std::vector<Value> condition_parameters = trace(condition_trace, condition);
  RegionTrace body_trace(builder);
  const std::vector<Value> body_parameters = trace(body_trace, body);
  std::vector<Value> captured;
  condition_trace.add_captures_to(captured);
  body_trace.add_captures_to(captured);
  std::vector<Graph> regions;
  regions.push_back(condition_trace.take(condition_parameters, captured));
  regions.push_back(body_trace.take(body_parameters, captured));
  std::vector<Attribute> attributes;
  attributes.push_back({"carried", static_cast<std::int64_t>(initial.size())});
  if (options.max_trips != -1) attributes.push_back({"max_trips", options.max_trips});
  const NodeId id = builder.node(op, {}, joined<Value>({initial.begin(), initial.end()}, captured),
                                 std::move(attributes), std::move(regions), site);
  return builder.outputs_of(id);
}

namespace {

std::vector<std::vector<Value>> make_replicated(GraphBuilder& builder, const ReplicaRange& range,
                                                std::span<const Value> shared,
                                                std::span<const std::vector<Value>> per_replica,
                                                const LoopBodyFn& body, bool update, SourceSite site) {
  static const OpDef& op = OpRegistry::global().get("replicated");
  const ErrorPlace place{{}, "replicated", {}, site.file, site.line, -1};
  const std::int64_t replicas = range.local;
  if (replicas < 1) throw InvalidArgument("replicated: needs at least one replica", place);
  GraphBuilder& target = internal::BuilderAccess(builder).innermost();
  RegionTrace trace(target, range.world > 1);
  trace.keep_scope();
  std::vector<Value> parameters;
  std::vector<Value> inputs(shared.begin(), shared.end());
  for (const Value& value : shared) parameters.push_back(trace.parameter(value.name(), value.spec()));
  for (const std::vector<Value>& values : per_replica) {
    if (values.size() != static_cast<std::size_t>(replicas)) {
      throw InvalidArgument(str("replicated: a per-replica input holds ", counted(values.size(), "value"),
                                " for ", counted(replicas, "replica")),
                            place);
    }
    TensorSpec spec = values[0].spec();
    for (const Value& value : values) spec.shape = join_shapes(spec.shape, value.shape());
    parameters.push_back(trace.parameter(values[0].name(), spec));
  }
  trace.finish(body(parameters), site);
  std::vector<Value> captured;
  trace.add_captures_to(captured);
  // Captured values are shared by all replicas: they come after the shared inputs.
  const std::size_t own_shared = shared.size();
  inputs.insert(inputs.end(), captured.begin(), captured.end());
  for (const std::vector<Value>& values : per_replica)
    inputs.insert(inputs.end(), values.begin(), values.end());
  Graph region = trace.take(parameters, captured);
  if (const Node* gather = range.world > 1 ? internal::gather_of_known_extent(region) : nullptr) {
    throw InvalidArgument(str("replicated: '", gather->name(),
                              "' inside of it: all_gather gives what all replicas have, which is not known "
                              "there: make it with ",
                              "all_gather(), or with the attribute 'replicas' 0"),
                          place);
  }
  // Shared, per replica, captured -> shared, captured, per replica.
  std::vector<NodeId> order = region.parameters();
  std::rotate(order.begin() + static_cast<std::ptrdiff_t>(own_shared),
              order.end() - static_cast<std::ptrdiff_t>(captured.size()), order.end());
  region.set_parameters(std::move(order));
  const std::size_t results = region.results().size();
  std::vector<Graph> regions;
  regions.push_back(std::move(region));
  std::vector<Attribute> attributes = {{"replicas", replicas},
                                       {"shared", static_cast<std::int64_t>(own_shared + captured.size())}};
  if (update) attributes.push_back({"update", true});
  set_range(attributes, range);
  const NodeId id = target.node(op, {}, inputs, std::move(attributes), std::move(regions), site);
  const std::vector<Value> flat = target.outputs_of(id);
  std::vector<std::vector<Value>> grouped(results);
  for (std::size_t i = 0; i < flat.size(); ++i)
    grouped[i / static_cast<std::size_t>(replicas)].push_back(flat[i]);
  return grouped;
}

}  // namespace

std::vector<std::vector<Value>> replicated(GraphBuilder& builder, const ReplicaRange& range,
                                           std::span<const Value> shared,
                                           std::span<const std::vector<Value>> per_replica,
                                           const LoopBodyFn& body, SourceSite site) {
  return make_replicated(builder, range, shared, per_replica, body, false, site);
}

std::vector<std::vector<Value>> replicated_update(GraphBuilder& builder, const ReplicaRange& range,
                                                  std::span<const Value> shared,
                                                  std::span<const std::vector<Value>> per_replica,
                                                  const LoopBodyFn& body, SourceSite site) {
  return make_replicated(builder, range, shared, per_replica, body, true, site);
}

}  // namespace lockstep
