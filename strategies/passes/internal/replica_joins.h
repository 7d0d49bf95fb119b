// strategies/passes/internal/replica_joins.h - nodes of a replicated region that are one for all replicas.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/strategies/passes/internal/replicator.h"

namespace lockstep::internal {

class Clones;

// Makes such nodes from the values of the clones before them, and tells the clones what their outputs became.
class Joins {
 public:
  explicit Joins(Clones& clones);
  void join(const Node& node);

 private:
  NodeInit joined(const Node& node);
  void join_collective(const Node& node);
  void add_up(const Node& node);
  void merge(const MergeCall& call);
  void join_regions(const Node& node);
  Graph joined_region(const Node& node, const Graph& region, std::span<const std::size_t> originals,
                      std::span<const std::vector<std::size_t>> places, bool condition);
  ValueId agree(const Node& node, ValueId input);

  Clones& clones_;
  Replicator& owner_;
  Target& target_;
  std::size_t replicas_;
};

}  // namespace lockstep::internal
