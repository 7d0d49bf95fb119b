// graph/train/gradients_regions.cpp - gradients through cond and while_loop.
//
//   cond        a cond on the same predicate, whose branches compute the forward branch again and go back
//               through it
//   while_loop  a loop over the trips in reverse: it takes the carried values the loop kept (keep_trips),
//               computes the body again and goes back through it, adding up what flows into captured values
//
// Values inside a region are computed again rather than kept: only carried values cross from one trip to the
// next. A second derivative of a loop adds, in each trip, to what flows into all kept rows: its work grows
// with the square of the number of trips.
#include <algorithm>

#include "lockstep/graph/build/builder_access.h"
#include "lockstep/graph/build/internal/region_trace.h"
#include "lockstep/graph/build/regions.h"
#include "lockstep/graph/ir/internal/region_shapes.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/internal/flow_back.h"

namespace lockstep {

namespace internal {

std::vector<Value> replay(GraphBuilder& builder, const Graph& region, std::span<const Value> arguments) {
  GraphBuilder& target = internal::BuilderAccess(builder).innermost();
  std::vector<std::vector<Value>> values(region.id_bound());
  std::vector<NodeId> made(region.id_bound());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    values[region.parameters()[i].index()] = {internal::BuilderAccess(target).import(arguments[i])};
  }
  for (const NodeId id : region.topological_order()) {
    if (!values[id.index()].empty()) continue;  // a parameter
    const Node& node = region.node(id);
    std::vector<Value> inputs;
    for (const ValueId input : node.inputs()) inputs.push_back(values[input.node.index()][input.output]);
    const auto made_at = internal::BuilderAccess(target).made_at(node.site());
    const auto device = target.device(node.device());
    const NodeId copy =
        target.node(node.op(), node.name(), inputs, node.attributes(),
                    {node.regions().begin(), node.regions().end()}, node.site(), node.outputs());
    made[id.index()] = copy;
    for (const NodeId before : node.controls()) {
      if (made[before.index()].valid()) target.run_after(copy, made[before.index()]);
    }
    values[id.index()] = target.outputs_of(copy);
  }
  std::vector<Value> results;
  for (const ValueId result : region.results()) results.push_back(values[result.node.index()][result.output]);
  return results;
}

void check_repeatable(GraphBuilder& builder, const Node& node) {
  if (must_run(effects_of(node))) {
    throw InvalidArgument(str("gradients: the regions of '", node.name(), "' (", node.op().name,
                              ") have effects (", to_string(effects_of(node)),
                              "), and the way back would repeat them; move these out of the region"),
                          place_of(node));
  }
  const std::vector<VariableUse> uses = variable_uses(node);
  if (uses.empty()) return;
  const auto check_after = [&](const Graph& graph, std::size_t first) {
    for (const Node& later : graph.nodes()) {
      if (later.id().index() < first) continue;
      for (const VariableUse& use : variable_uses(later)) {
        if (!use.writes || std::ranges::find(uses, use.name, &VariableUse::name) == uses.end()) continue;
        throw InvalidArgument(
            str("gradients: a region of '", node.name(), "' reads the variable '", use.name, "', which '",
                later.name(), "' has written since; take gradients before variables are updated"),
            place_of(node));
      }
    }
  };
  check_after(node.graph(), node.id().index() + 1);
  for (GraphBuilder* at = &internal::BuilderAccess(builder).innermost(); at != &builder;
       at = RegionTrace::parent_of(*at)) {
    check_after(at->graph(), 0);
  }
}

}  // namespace internal

namespace {

std::vector<Gradient> cond_gradient(GradientContext& c) {
  internal::check_repeatable(c.builder(), c.node());
  const std::span<const Value> arguments = c.inputs().subspan(1);
  std::vector<std::size_t> wanted;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (is_floating(arguments[i].dtype())) wanted.push_back(i);
  }
  std::vector<Gradient> result(c.num_inputs());
  if (wanted.empty()) return result;
  const auto back_through = [&](const Graph& region) {
    return [&]() -> std::vector<Value> {
      GraphBuilder& inner = internal::BuilderAccess(c.builder()).innermost();
      std::vector<Value> own;
      for (const Value& argument : arguments) own.push_back(internal::BuilderAccess(inner).import(argument));
      std::vector<Value> targets, seeds;
      const std::vector<Value> outputs = internal::replay(inner, region, own);
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        if (!is_floating(outputs[i].dtype()) || !c.has_grad(i)) continue;
        targets.push_back(outputs[i]);
        seeds.push_back(internal::BuilderAccess(inner).import(c.grad(i)));
      }
      std::vector<Value> sources;
      sources.reserve(wanted.size());
      for (const std::size_t i : wanted) sources.push_back(own[i]);
      std::vector<Gradient> flows = internal::flow_back(inner, targets, seeds, sources, c.node().site());
      std::vector<Value> dense;
      for (std::size_t i = 0; i < flows.size(); ++i) {
        dense.push_back(flows[i].valid() ? to_dense(flows[i]) : zeros_like(sources[i]));
      }
      return dense;
    };
  };
  const std::vector<Value> flows = cond(c.input(0), back_through(c.node().regions()[0]),
                                        back_through(c.node().regions()[1]), c.node().site());
  for (std::size_t i = 0; i < wanted.size(); ++i) result[1 + wanted[i]] = flows[i];
  return result;
}

std::vector<Gradient> while_gradient(GradientContext& c) {
  const internal::LoopShape loop = internal::loop_shape(c.node());
  if (loop.max_trips < 0) {
    throw InvalidArgument(
        str("gradients: the loop '", c.node().name(),
            "' has no bound on its trips; give LoopOptions::max_trips, so that the values of every "
            "trip can be kept for the way back"),
        place_of(c.node()));
  }
  internal::check_repeatable(c.builder(), c.node());
  GraphBuilder& builder = c.builder();
  const NodeId id = c.node().id();
  internal::BuilderAccess(builder).keep_trips(id);
  const std::vector<Value> outputs = builder.outputs_of(id);  // carried, kept rows, number of trips
  const auto kept = [&](std::size_t i) { return outputs[loop.carried + i]; };

  // Carried on the way back: the trip, the flow into each floating carried value, and the flow into each
  // captured one.
  std::vector<std::size_t> carried, captured;
  for (std::size_t i = 0; i < c.num_inputs(); ++i) {
    if (is_floating(c.input(i).dtype())) (i < loop.carried ? carried : captured).push_back(i);
  }
  std::vector<Value> initial = {outputs[2 * loop.carried] - 1};
  for (const std::size_t i : carried) initial.push_back(c.grad(i));
  for (const std::size_t i : captured) initial.push_back(zeros_like(c.input(i)));
  // A second-order gradient flows into the kept rows as well.
  const auto flows_into_rows = [&](std::size_t i) {
    return c.num_outputs() > loop.carried && c.has_grad(loop.carried + i);
  };

  const auto body = [&](std::span<const Value> now) -> std::vector<Value> {
    GraphBuilder& inner = now[0].builder();
    std::vector<Value> arguments;
    for (std::size_t i = 0; i < c.num_inputs(); ++i) {
      arguments.push_back(i < loop.carried ? gather(kept(i), now[0])
                                           : internal::BuilderAccess(inner).import(c.input(i)));
    }
    const std::vector<Value> results = internal::replay(inner, c.node().regions()[1], arguments);
    std::vector<Value> targets, seeds, sources;
    for (std::size_t k = 0; k < carried.size(); ++k) {
      targets.push_back(results[carried[k]]);
      seeds.push_back(now[1 + k]);
      sources.push_back(arguments[carried[k]]);
    }
    for (const std::size_t i : captured) sources.push_back(arguments[i]);
    const std::vector<Gradient> flows = internal::flow_back(inner, targets, seeds, sources, c.node().site());
    std::vector<Value> next = {now[0] - 1};
    for (std::size_t k = 0; k < flows.size(); ++k) {
      Value flow = flows[k].valid() ? to_dense(flows[k]) : zeros_like(sources[k]);
      if (k < carried.size()) {
        if (flows_into_rows(carried[k])) flow = flow + gather(c.grad(loop.carried + carried[k]), now[0]);
      } else {
        flow = now[1 + k] + flow;
      }
      // Keeps the spec that came in, as a loop must.
      next.push_back(flow.spec() == now[1 + k].spec() ? flow : reshape(flow, shape_of(now[1 + k])));
    }
    return next;
  };
  const std::vector<Value> back = while_loop(
      initial, [](std::span<const Value> now) { return less(-1, now[0]); }, body, LoopOptions{loop.max_trips},
      c.node().site());
  std::vector<Gradient> result(c.num_inputs());
  for (std::size_t k = 0; k < carried.size(); ++k) result[carried[k]] = back[1 + k];
  for (std::size_t k = 0; k < captured.size(); ++k) result[captured[k]] = back[1 + carried.size() + k];
  return result;
}

}  // namespace

GradientFn internal::gradient_of_cond() { return cond_gradient; }
GradientFn internal::gradient_of_while() { return while_gradient; }

}  // namespace lockstep
