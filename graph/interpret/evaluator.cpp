// graph/interpret/evaluator.cpp - runs graphs and regions node by node on tensors.
#include "lockstep/graph/interpret/internal/evaluator.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/graph/ir/internal/evaluate_node.h"
#include "lockstep/graph/ir/internal/region_shapes.h"
#include "lockstep/graph/ir/replica_nodes.h"

namespace lockstep::internal {

namespace {

ErrorPlace place_in(const Node& node, int replica) {
  ErrorPlace place = place_of(node);
  if (replica >= 0) place.replica = replica;
  return place;
}

}  // namespace

std::vector<bool> live_nodes(const Graph& graph, std::span<const NodeId> topological_order) {
  std::vector<bool> live(graph.id_bound(), false);
  for (const ValueId result : graph.results()) live[result.node.index()] = true;
  for (auto id = topological_order.rbegin(); id != topological_order.rend(); ++id) {
    const Node& node = graph.node(*id);
    if (!live[id->index()] && must_run(effects_of(node))) live[id->index()] = true;
    if (!live[id->index()]) continue;
    for (const ValueId input : node.inputs()) live[input.node.index()] = true;
    for (const NodeId control : node.controls()) live[control.index()] = true;
  }
  return live;
}

GraphOrders::GraphOrders(const Graph& graph) { add(graph); }

void GraphOrders::add(const Graph& graph) {
  std::vector<NodeId> order = graph.topological_order();
  const std::vector<bool> live = live_nodes(graph, order);
  std::erase_if(order, [&](NodeId id) { return !live[id.index()]; });
  orders_.emplace(&graph, std::move(order));
  for (const Node& node : graph.nodes()) add_regions(node);
}

void GraphOrders::add_regions(const Node& node) {
  for (const Graph& region : node.regions()) add(region);
}

std::vector<Tensor> Evaluator::run_graph(const Graph& graph, std::span<const Tensor> arguments, int replica) {
  std::vector<std::vector<Tensor>> values(graph.id_bound());
  for (std::size_t i = 0; i < arguments.size(); ++i) values[graph.parameters()[i].index()] = {arguments[i]};
  std::vector<Tensor> inputs;
  for (const NodeId id : orders_->of(graph)) {
    std::vector<Tensor>& outputs = values[id.index()];
    if (!outputs.empty()) continue;  // a parameter
    const Node& node = graph.node(id);
    info_.check_stop();
    inputs.clear();
    for (const ValueId input : node.inputs()) inputs.push_back(values[input.node.index()].at(input.output));
    outputs = node.op().region_kind == RegionKind::kNone ? run_node(node, inputs, replica)
                                                         : run_regions(node, inputs, replica);
  }
  std::vector<Tensor> results;
  for (const ValueId result : graph.results())
    results.push_back(values[result.node.index()].at(result.output));
  return results;
}

std::vector<Tensor> Evaluator::run_node(const Node& node, std::span<const Tensor> inputs, int replica) {
  try {
    const OpTraits& traits = node.op().traits;
    // Inside a replicated region: the replica that is running. Elsewhere: the replica the node was made for,
    // if any.
    const int draws_as = std::max(replica >= 0 ? replica : node.provenance().replica, 0);
    EvalContext context{info_, draws_as, &specs_, {}};
    SmallVector<std::string, 1> names = updated_variables(node);
    const std::size_t updated = names.size();
    if (traits.reads_variable) names.push_back(node.find<VariableRef>(*traits.reads_variable)->name);
    std::vector<Tensor> state;
    for (const std::string& name : names) {
      LOCKSTEP_CHECK(variables_.contains(name));
      state.push_back(variables_.at(name));
    }
    context.state = state;
    std::vector<Tensor> outputs = evaluate(node, inputs, context);
    for (std::size_t i = 0; i < updated; ++i) variables_.at(names[i]) = outputs.at(i);
    return outputs;
  } catch (const Error& error) {
    std::throw_with_nested(Error(error.code(), error.message(), place_in(node, replica)));
  } catch (const std::exception& error) {
    std::throw_with_nested(Error(code_of(error, ErrorCode::kFailedPrecondition),
                                 str("the kernel failed: ", message_of(error)), place_in(node, replica)));
  } catch (...) {
    std::throw_with_nested(Error(ErrorCode::kFailedPrecondition,
                                 "the kernel threw something that is not an exception",
                                 place_in(node, replica)));
  }
}

// Errors inside regions carry the place of the inner node.
std::vector<Tensor> Evaluator::run_regions(const Node& node, std::span<const Tensor> inputs, int replica) {
  switch (node.op().region_kind) {
    case RegionKind::kCond: {
      const bool holds = inputs[0].item() != 0;
      return run_graph(node.regions()[holds ? 0 : 1], inputs.subspan(1), replica);
    }
    case RegionKind::kWhile: return run_while(node, inputs, replica);
    case RegionKind::kReplicated: return run_replicated(node, inputs);
    case RegionKind::kNone: break;
  }
  LOCKSTEP_CHECK(false, "node '", node.name(), "' has no regions");
  return {};
}

std::vector<Tensor> Evaluator::run_while(const Node& node, std::span<const Tensor> inputs, int replica) {
  std::vector<Tensor> values(inputs.begin(), inputs.end());
  const LoopShape loop = loop_shape(node);
  std::vector<Tensor> stashes;
  for (std::size_t i = 0; loop.stash && i < loop.carried; ++i) {
    const TensorSpec& spec = inputs[i].spec();
    stashes.push_back(Tensor::zeros(spec.dtype, spec.shape.with_inserted(0, loop.max_trips)));
  }
  std::int64_t trip = 0;
  for (; trip != loop.max_trips && run_graph(node.regions()[0], values, replica).at(0).item() != 0; ++trip) {
    for (std::size_t i = 0; i < stashes.size(); ++i) {
      stashes[i].slice(trip, trip + 1).assign(values[i].reshape(values[i].shape().with_inserted(0, 1)));
    }
    if (trip == max_trips_) {
      throw FailedPrecondition(
          str("the loop ran ", trip, " times without its condition turning false; raise ",
              "the limit if it should"),
          place_in(node, replica));
    }
    std::vector<Tensor> next = run_graph(node.regions()[1], values, replica);
    std::ranges::move(next, values.begin());
  }
  values.resize(loop.carried);
  if (loop.stash) {
    std::ranges::move(stashes, std::back_inserter(values));
    values.push_back(Tensor::scalar(trip));
  }
  return values;
}

std::vector<Tensor> Evaluator::run_replicated(const Node& node, std::span<const Tensor> inputs) {
  const ReplicatedNode replicated(node);
  std::vector<Tensor> outputs(node.outputs().size());
  for (std::size_t r = 0; r < replicated.replicas(); ++r) {
    std::vector<Tensor> results =
        run_graph(replicated.region(), replicated.arguments(inputs, r), static_cast<int>(r));
    for (std::size_t i = 0; i < results.size(); ++i) outputs[replicated.output(i, r)] = std::move(results[i]);
  }
  return outputs;
}

}  // namespace lockstep::internal
