// strategies/passes/replica_joins.cpp - nodes of a replicated region that are one for all replicas.
#include "lockstep/strategies/passes/internal/replica_joins.h"

#include <algorithm>
#include <utility>

#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/graph/transform/pass.h"
#include "lockstep/strategies/passes/internal/replica_clones.h"

namespace lockstep::internal {

Joins::Joins(Clones& clones)
    : clones_(clones), owner_(clones.owner()), target_(clones.target()), replicas_(clones.replicas()) {}

void Joins::join(const Node& node) {
  if (node.op().traits.is(ReplicaRole::kSumOverReplicas)) {
    for (std::size_t r = 0; r < replicas_; ++r) clones_.clone(node, r);
    if (clones_.range().world > 1) add_up(node);
  } else if (node.op().region_kind == RegionKind::kCond || node.op().region_kind == RegionKind::kWhile) {
    join_regions(node);
  } else if (const auto call = MergeCall::of(node)) {
    merge(*call);
  } else if (!node.regions().empty()) {
    throw PassError(kReplicate,
                    "its region joins replicas, and only those of cond, while_loop and merge_call may",
                    place_of(node));
  } else {
    join_collective(node);
  }
}

NodeInit Joins::joined(const Node& node) {
  NodeInit init = Replicator::copied(node);
  init.name = target_.graph.unique_name(node.name());
  init.provenance = Replicator::made_from(target_, node, -1);
  for (std::size_t r = 0; r < replicas_; ++r) clones_.add_controls(node, r, init.controls);
  return init;
}

void Joins::join_collective(const Node& node) {
  NodeInit init = joined(node);
  for (std::size_t r = 0; r < replicas_; ++r) {
    for (const ValueId input : node.inputs()) init.inputs.push_back(clones_.value(r, input));
  }
  std::vector<Attribute>& attributes = init.own_attributes();
  std::erase_if(attributes, [](const Attribute& a) { return a.name == "replicas"; });
  attributes.push_back({"replicas", static_cast<std::int64_t>(replicas_)});
  set_range(attributes, clones_.range());
  if (replicas_ > 1) init.outputs.clear();
  for (std::size_t r = 0; replicas_ > 1 && r < replicas_; ++r) {
    for (const TensorSpec& spec : node.outputs()) init.outputs.push_back(spec);
  }
  const NodeId made = owner_.add(target_, std::move(init), node);
  const auto outputs = static_cast<std::uint32_t>(node.outputs().size());
  for (std::size_t r = 0; r < replicas_; ++r)
    clones_.set_first_value(r, node.id(), {made, static_cast<std::uint32_t>(r) * outputs});
  clones_.note_effects(made);
}

// An all-reduce of what the replicas computed.
void Joins::add_up(const Node& node) {
  static const OpDef& op = OpRegistry::global().get("all_reduce");
  NodeInit init;
  init.op = &op;
  init.name = target_.graph.unique_name(node.name() + "/all_reduce");
  init.site = node.site();
  init.device = node.device();
  init.provenance = Replicator::made_from(target_, node, -1);
  for (std::size_t r = 0; r < replicas_; ++r) {
    for (std::uint32_t i = 0; i < node.outputs().size(); ++i) {
      init.inputs.push_back(clones_.value(r, {node.id(), i}));
      init.outputs.push_back(node.outputs()[i]);
    }
  }
  init.attributes = {{"reduce", std::string("sum")}, {"replicas", static_cast<std::int64_t>(replicas_)}};
  set_range(init.attributes, clones_.range());
  const NodeId made = target_.graph.add(std::move(init));
  const auto outputs = static_cast<std::uint32_t>(node.outputs().size());
  for (std::size_t r = 0; r < replicas_; ++r)
    clones_.set_first_value(r, node.id(), {made, static_cast<std::uint32_t>(r) * outputs});
  clones_.note_effects(made);
}

void Joins::merge(const MergeCall& call) {
  const Node& node = call.node();
  LOCKSTEP_CHECK(call.replicas() == replicas_, "'", node.name(), "' is for ", call.replicas(),
                 " replicas, in a region of ", replicas_);
  std::vector<ValueId> arguments;
  for (std::size_t r = 0; r < replicas_; ++r) {
    for (const ValueId input : node.inputs()) arguments.push_back(clones_.value(r, input));
  }
  const std::size_t first = target_.graph.id_bound();
  const std::vector<ValueId> results = owner_.cross(target_, node.regions()[0], arguments, node.name());
  const std::vector<std::size_t> firsts = call.first_results();
  // Inner nodes with effects run after the call's predecessors, and before its successors.
  SmallVector<NodeId, 2> before;
  for (std::size_t r = 0; r < replicas_; ++r) clones_.add_controls(node, r, before);
  std::vector<NodeId> acting;
  for (std::size_t i = first, end = target_.graph.id_bound(); i < end; ++i) {
    const std::size_t known = clones_.effects.size();
    clones_.note_effects(NodeId(i));
    if (clones_.effects.size() == known) continue;
    acting.push_back(NodeId(i));
    for (const NodeId earlier : before) target_.graph.add_control(NodeId(i), earlier);
  }
  if (acting.empty()) acting.assign(before.begin(), before.end());
  const NodeId after = acting.empty() ? NodeId() : Replicator::group(target_, node, acting, "done");
  for (std::size_t r = 0; r < replicas_; ++r) {
    std::vector<ValueId> mine;
    for (std::size_t i = 0; i < call.outputs(); ++i)
      mine.push_back(results[call.is_single(i) ? firsts[i] : firsts[i] + r]);
    clones_.list(r, node.id(), mine, after);
  }
}

// cond and while_loop: one node whose regions hold the nodes of all replicas.
void Joins::join_regions(const Node& node) {
  const bool loop = node.op().region_kind == RegionKind::kWhile;
  const std::size_t carried =
      loop ? static_cast<std::size_t>(*node.find<std::int64_t>("carried")) : node.inputs().size() - 1;
  NodeInit init = joined(node);
  // Inputs, and for each replica the positions of its own parameters among those of the region.
  std::vector<std::vector<std::size_t>> places(replicas_);
  std::vector<std::size_t> originals;  // by new parameter: the old one
  const auto take = [&](std::size_t first, std::size_t last, std::size_t skip) {
    for (std::size_t r = 0; r < replicas_; ++r) {
      for (std::size_t i = first; i < last; ++i) {
        init.inputs.push_back(clones_.value(r, node.inputs()[i]));
        places[r].push_back(originals.size());
        originals.push_back(i - skip);
      }
    }
  };
  if (loop) {
    take(0, carried, 0);
    take(carried, node.inputs().size(), 0);
  } else {
    init.inputs.push_back(agree(node, node.inputs()[0]));
    take(1, node.inputs().size(), 1);
  }
  for (std::size_t i = 0; i < node.regions().size(); ++i)
    init.regions.push_back(joined_region(node, node.regions()[i], originals, places, loop && i == 0));
  // Outputs: replica by replica; for a loop that keeps its trips, followed by the kept values and the number
  // of trips.
  const std::size_t outputs = node.outputs().size();
  const std::size_t own = loop ? carried : outputs;
  const std::size_t kept = outputs > own ? own : 0;
  init.outputs.clear();
  std::vector<std::vector<std::uint32_t>> where(replicas_, std::vector<std::uint32_t>(outputs));
  const auto give = [&](std::size_t first, std::size_t last) {
    for (std::size_t r = 0; r < replicas_; ++r) {
      for (std::size_t i = first; i < last; ++i) {
        where[r][i] = static_cast<std::uint32_t>(init.outputs.size());
        init.outputs.push_back(node.outputs()[i]);
      }
    }
  };
  give(0, own);
  if (kept > 0) {
    give(own, own + kept);
    for (std::size_t r = 0; r < replicas_; ++r)
      where[r][outputs - 1] = static_cast<std::uint32_t>(init.outputs.size());
    init.outputs.push_back(node.outputs()[outputs - 1]);
  }
  for (Attribute& attribute : init.own_attributes()) {
    if (attribute.name == "carried") attribute.value = static_cast<std::int64_t>(carried * replicas_);
  }
  const NodeId made = owner_.add(target_, std::move(init), node);
  for (std::size_t r = 0; r < replicas_; ++r) {
    std::vector<ValueId> mine;
    for (const std::uint32_t at : where[r]) mine.push_back({made, at});
    clones_.list(r, node.id(), mine, made);
  }
  clones_.note_effects(made);
}

Graph Joins::joined_region(const Node& node, const Graph& region, std::span<const std::size_t> originals,
                           std::span<const std::vector<std::size_t>> places, bool condition) {
  Graph made;
  Target target{made};
  std::vector<ValueId> parameters;
  std::vector<std::size_t> replica_of(originals.size());
  for (std::size_t r = 0; r < places.size(); ++r) {
    for (const std::size_t at : places[r]) replica_of[at] = r;
  }
  for (std::size_t i = 0; i < originals.size(); ++i) {
    const Node& parameter = region.node(region.parameters()[originals[i]]);
    NodeInit init = Replicator::copied(parameter);
    init.name = made.unique_name(clones_.name_for(parameter, replica_of[i]));
    init.provenance = Replicator::made_from(target, parameter, clones_.number(replica_of[i]));
    parameters.push_back({made.add(std::move(init)), 0});
    made.add_parameter(parameters.back().node);
  }
  std::vector<std::vector<ValueId>> arguments(replicas_);
  for (std::size_t r = 0; r < replicas_; ++r) {
    for (const std::size_t at : places[r]) arguments[r].push_back(parameters[at]);
  }
  Clones inner(owner_, target, region, clones_.range());
  const std::vector<std::vector<ValueId>> results = inner.make(arguments);
  std::vector<ValueId> flat;
  if (condition) {
    std::vector<ValueId> all;
    all.reserve(results.size());
    for (const std::vector<ValueId>& mine : results) all.push_back(mine[0]);
    flat.push_back(owner_.agreement(target, node, all, clones_.range()));
  } else {
    for (const std::vector<ValueId>& mine : results) flat.insert(flat.end(), mine.begin(), mine.end());
  }
  made.set_results(std::move(flat));
  Replicator::order(target);
  return made;
}

ValueId Joins::agree(const Node& node, ValueId input) {
  std::vector<ValueId> all;
  for (std::size_t r = 0; r < replicas_; ++r) all.push_back(clones_.value(r, input));
  return owner_.agreement(target_, node, all, clones_.range());
}

}  // namespace lockstep::internal
