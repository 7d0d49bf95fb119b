// strategies/trace/result_kinds.cpp - how the values of a replicated region differ between replicas.
#include "lockstep/strategies/trace/internal/result_kinds.h"

#include <algorithm>

#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/graph/transform/replica_kind.h"

namespace lockstep::internal {

namespace {

// A share counts: it belongs to this replica even if the shares of all replicas are equal, since they add up.
bool has_difference(const Node& node, const Graph& outermost) {
  if (difference_of(node, outermost) != DifferenceSource::kNone) return true;
  return std::ranges::any_of(node.regions(), [&](const Graph& region) {
    return std::ranges::any_of(region.nodes(),
                               [&](const Node& inner) { return has_difference(inner, outermost); });
  });
}

}  // namespace

void RegionKinds::set(NodeId parameter, ReplicaKind kind) {
  const std::size_t size = std::max(kinds_.size(), parameter.index() + 1);
  kinds_.resize(size, ReplicaKind::kSingle);
  is_set_.resize(size);
  kinds_[parameter.index()] = kind;
  is_set_[parameter.index()] = true;
}

ReplicaKind RegionKinds::known(ValueId value) const {
  const auto& outputs = merged_[value.node.index()];
  return outputs.empty() ? kinds_[value.node.index()] : outputs[value.output];
}

// Nodes are made after their inputs, so their ids are a valid order to walk in.
void RegionKinds::extend() {
  const std::size_t end = region_.id_bound();
  kinds_.resize(std::max(kinds_.size(), end), ReplicaKind::kSingle);
  is_set_.resize(kinds_.size());
  merged_.resize(kinds_.size());
  for (; next_ < end; ++next_) {
    if (is_set_[next_] || !region_.contains(NodeId(next_))) continue;
    const Node& node = region_.node(NodeId(next_));
    ReplicaKind kind = has_difference(node, outermost_) ? ReplicaKind::kPerReplica : ReplicaKind::kSingle;
    for (const ValueId input : node.inputs()) kind = std::max(kind, known(input));
    if (const auto merge = MergeCall::of(node)) {
      merged_[next_] = merged_kinds(*merge);
      continue;
    }
    if (node.op().traits.same_on_all || node.op().traits.is(ReplicaRole::kSumOverReplicas)) {
      if (kind != ReplicaKind::kSingle) kind = ReplicaKind::kMirrored;
    }
    kinds_[next_] = kind;
  }
}

// A value that a merge function returns once is the same on all replicas, and single if it depends on no
// replica.
std::vector<ReplicaKind> RegionKinds::merged_kinds(const MergeCall& merge) const {
  const Graph& region = merge.region();
  RegionKinds inside(region, outermost_);
  for (std::size_t r = 0; r < merge.replicas(); ++r) {
    for (std::size_t i = 0; i < merge.node().inputs().size(); ++i)
      inside.set(region.parameters()[merge.parameter(i, r)], known(merge.node().inputs()[i]));
  }
  const std::vector<std::size_t> firsts = merge.first_results();
  std::vector<ReplicaKind> kinds;
  for (std::size_t i = 0; i < merge.outputs(); ++i) {
    if (!merge.is_single(i)) {
      kinds.push_back(ReplicaKind::kPerReplica);
    } else {
      const bool alone = inside.of(region.results()[firsts[i]]) == ReplicaKind::kSingle;
      kinds.push_back(alone ? ReplicaKind::kSingle : ReplicaKind::kMirrored);
    }
  }
  return kinds;
}

ReplicaKind RegionKinds::of(ValueId value) {
  if (next_ < region_.id_bound()) extend();
  return known(value);
}

ReplicaKind RegionKinds::of(const Value& value) {
  return builder_ == nullptr || &value.builder() != builder_ ? ReplicaKind::kPerReplica : of(value.id());
}

std::vector<ReplicaKind> result_kinds(const Graph& region, const std::vector<ReplicaKind>& parameters,
                                      const Graph& outermost) {
  RegionKinds kinds(region, outermost);
  for (std::size_t i = 0; i < parameters.size(); ++i) kinds.set(region.parameters()[i], parameters[i]);
  std::vector<ReplicaKind> results;
  for (const ValueId result : region.results()) results.push_back(kinds.of(result));
  return results;
}

}  // namespace lockstep::internal
