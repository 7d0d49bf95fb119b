// graph/ir/replica_nodes.cpp - views of nodes about replicas, with names for their attributes and inputs.
#include "lockstep/graph/ir/replica_nodes.h"

#include <algorithm>

#include "lockstep/core/error.h"

namespace lockstep {

namespace {

const std::int64_t* replicas_attribute(const Node& node) { return node.find<std::int64_t>("replicas"); }

ReplicaRange range_of(const Node& node, std::int64_t local) {
  const auto* world = node.find<std::int64_t>("world");
  const auto* first = node.find<std::int64_t>("first");
  return {local, first == nullptr ? 0 : *first, world == nullptr ? local : *world};
}

}  // namespace

std::optional<ReplicatedNode> ReplicatedNode::of(const Node& node) {
  if (node.op().region_kind != RegionKind::kReplicated || node.regions().size() != 1) return std::nullopt;
  const std::int64_t* replicas = replicas_attribute(node);
  const auto* shared = node.find<std::int64_t>("shared");
  if (replicas == nullptr || *replicas < 1 || *replicas > kMaxReplicas) return std::nullopt;
  if (shared == nullptr || *shared < 0) return std::nullopt;
  const auto n = static_cast<std::size_t>(*replicas), common = static_cast<std::size_t>(*shared);
  const Graph& region = node.regions()[0];
  const std::size_t parameters = region.parameters().size();
  if (parameters < common || common + (parameters - common) * n != node.inputs().size()) return std::nullopt;
  if (node.outputs().size() != region.results().size() * n) return std::nullopt;
  const bool* update = node.find<bool>("update");
  return ReplicatedNode(node, n, common, update != nullptr && *update);
}

ReplicaRange ReplicatedNode::range() const { return range_of(*node_, static_cast<std::int64_t>(replicas_)); }

ReplicatedNode::ReplicatedNode(const Node& node) : ReplicatedNode(node, 1, 0, false) {
  const std::optional<ReplicatedNode> view = of(node);
  LOCKSTEP_CHECK(view.has_value(), "'", node.name(), "' is no replicated node that holds together");
  *this = *view;
}

std::optional<MergeCall> MergeCall::of(const Node& node) {
  if (node.regions().size() != 1 || node.op().region_kind != RegionKind::kNone) return std::nullopt;
  if (!has(node.op().effects, Effect::kCollective)) return std::nullopt;
  const std::int64_t* replicas = replicas_attribute(node);
  const auto* single = node.find<std::vector<std::int64_t>>("single");
  if (replicas == nullptr || *replicas > kMaxReplicas || single == nullptr) return std::nullopt;
  const auto n = static_cast<std::size_t>(std::max<std::int64_t>(*replicas, 1));
  const auto ones =
      static_cast<std::size_t>(std::ranges::count_if(*single, [](auto one) { return one != 0; }));
  const Graph& region = node.regions()[0];
  if (region.parameters().size() != node.inputs().size() * n) return std::nullopt;
  if (region.results().size() != ones + (single->size() - ones) * n) return std::nullopt;
  return MergeCall(node, n, *single);
}

MergeCall::MergeCall(const Node& node) : MergeCall(node, 1, {}) {
  const std::optional<MergeCall> view = of(node);
  LOCKSTEP_CHECK(view.has_value(), "'", node.name(), "' is no merge_call that holds together");
  *this = *view;
}

std::vector<std::size_t> MergeCall::first_results() const {
  std::vector<std::size_t> first{0};
  for (std::size_t i = 0; i < outputs(); ++i) first.push_back(first.back() + (is_single(i) ? 1 : replicas_));
  return first;
}

namespace {

bool is_replica_code(const Graph& graph, const Graph& level, bool inside) {
  if (&graph == &level) return inside;
  for (const NodeId id : graph.region_owners()) {
    const Node& node = graph.node(id);
    const RegionKind kind = node.op().region_kind;
    const auto replicated = ReplicatedNode::of(node);
    // A node that ReplicatedNode::of() does not accept is being rewritten: assume several replicas.
    const bool here = kind == RegionKind::kReplicated ? !replicated || replicated->range().world > 1
                                                      : inside && kind != RegionKind::kNone;
    for (const Graph& region : node.regions()) {
      if (is_replica_code(region, level, here)) return true;
    }
  }
  return false;
}

}  // namespace

bool is_replica_code(const Graph& outermost, const Graph& level) {
  return is_replica_code(outermost, level, false);
}

bool combines_replicas(const OpDef& op) {
  return op.traits.is(ReplicaRole::kCollective) || op.traits.is(ReplicaRole::kSumOverReplicas) ||
         has(op.effects, Effect::kCollective);
}

std::size_t joined_replicas(const Node& collective) {
  const std::int64_t* replicas = replicas_attribute(collective);
  return replicas == nullptr ? 1 : static_cast<std::size_t>(std::max<std::int64_t>(*replicas, 1));
}

ReplicaRange joined_range(const Node& collective) {
  return range_of(collective, static_cast<std::int64_t>(joined_replicas(collective)));
}

void set_range(std::vector<Attribute>& attributes, const ReplicaRange& range) {
  if (!range.is_part()) return;
  if (range.first != 0) attributes.push_back({"first", range.first});
  attributes.push_back({"world", range.world});
}

bool awaits_joining(const Node& node) {
  const std::int64_t* replicas = replicas_attribute(node);
  return node.op().traits.is(ReplicaRole::kCollective) && replicas != nullptr && *replicas == 0;
}

}  // namespace lockstep
