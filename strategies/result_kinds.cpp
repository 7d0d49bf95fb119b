#include "lockstep/strategies/internal/result_kinds.h"

#include <algorithm>

namespace lockstep::internal {

namespace {

bool is_source(const Node& node, const Graph& outermost) {
  const OpTraits& traits = node.op().traits;
  // A share is this replica's, also where those of all replicas are equal: they add up.
  if (traits.per_replica_source || traits.gives_replica || traits.replica_share) return true;
  const Effect effects = effects_of(node);
  if (has(effects, Effect::kRandom | Effect::kHost | Effect::kOpaque)) return true;
  for (const VariableUse& use : variable_uses(node)) {
    const VariableDecl* decl = outermost.find_variable(use.name);
    if (decl != nullptr && decl->synchronization == Synchronization::kOnRead) return true;
  }
  return std::ranges::any_of(node.regions(), [&](const Graph& region) {
    for (const Node& inner : region.nodes()) {
      if (is_source(inner, outermost)) return true;
    }
    return false;
  });
}

}  // namespace

std::vector<ReplicaKind> result_kinds(const Graph& region, const std::vector<ReplicaKind>& parameters,
                                      const Graph& outermost) {
  std::vector<ReplicaKind> kinds(region.id_bound(), ReplicaKind::kSingle);
  std::vector<std::vector<ReplicaKind>> merged(region.id_bound());  // of merge_call nodes, by output
  const auto kind_of = [&](ValueId value) {
    const auto& outputs = merged[value.node.index()];
    return outputs.empty() ? kinds[value.node.index()] : outputs[value.output];
  };
  std::vector<bool> is_parameter(region.id_bound());
  for (std::size_t i = 0; i < region.parameters().size(); ++i) {
    kinds[region.parameters()[i].index()] = parameters[i];
    is_parameter[region.parameters()[i].index()] = true;
  }
  for (const NodeId id : region.topological_order()) {
    if (is_parameter[id.index()]) continue;
    const Node& node = region.node(id);
    ReplicaKind kind = is_source(node, outermost) ? ReplicaKind::kPerReplica : ReplicaKind::kSingle;
    for (const ValueId input : node.inputs()) kind = std::max(kind, kind_of(input));
    if (const auto* single = node.find<std::vector<std::int64_t>>("single");
        !node.regions().empty() && single) {
      for (const std::int64_t one : *single)
        merged[id.index()].push_back(one != 0 ? ReplicaKind::kMirrored : ReplicaKind::kPerReplica);
      continue;
    }
    if (node.op().traits.same_on_all || node.op().traits.sum_over_replicas) {
      if (kind != ReplicaKind::kSingle) kind = ReplicaKind::kMirrored;
    }
    kinds[id.index()] = kind;
  }
  std::vector<ReplicaKind> results;
  for (const ValueId result : region.results()) results.push_back(kind_of(result));
  return results;
}

}  // namespace lockstep::internal
