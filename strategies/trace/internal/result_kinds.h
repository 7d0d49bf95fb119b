// strategies/trace/internal/result_kinds.h - how the values of a replicated region differ between replicas.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/strategies/trace/values.h"

namespace lockstep::internal {

// The kinds of a region's values, also while it is being traced: every query looks only at the nodes added
// since the last one, so that any number of queries costs one walk. kSingle: depends on no replica, not even
// through a collective.
class RegionKinds {
 public:
  // `outermost` declares the variables. Parameters without a set() call are single: captured values are
  // shared.
  RegionKinds(const Graph& region, const Graph& outermost) : region_(region), outermost_(outermost) {}
  RegionKinds(GraphBuilder& region, const Graph& outermost)
      : region_(region.graph()), outermost_(outermost), builder_(&region) {}

  void set(NodeId parameter, ReplicaKind kind);
  ReplicaKind of(ValueId value);
  ReplicaKind of(const Value& value);  // a value of another graph is per replica

 private:
  void extend();
  std::vector<ReplicaKind> merged_kinds(const MergeCall& merge) const;
  ReplicaKind known(ValueId value) const;

  const Graph& region_;
  const Graph& outermost_;
  GraphBuilder* builder_ = nullptr;
  std::vector<ReplicaKind> kinds_;  // by node
  std::vector<bool> is_set_;
  std::vector<std::vector<ReplicaKind>> merged_;  // of merge_call nodes, by output
  std::size_t next_ = 0;                          // the first node not yet looked at
};

// The kind of each result of the region, given the kind of each parameter.
std::vector<ReplicaKind> result_kinds(const Graph& region, const std::vector<ReplicaKind>& parameters,
                                      const Graph& outermost);

}  // namespace lockstep::internal
