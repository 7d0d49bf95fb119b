// graph/transform/sync.h - which values are equal on all replicas, why others are not, and which gradients
// replicas have yet to sum.
//
//   const SyncAnalysis sync(graph);
//   if (sync.at(region, value) == ReplicaKind::kPerReplica) throw PassError(name, sync.explain(region, value), ...);
//   // "grad (model.cpp:12) <- x (model.cpp:3, a per-replica input)"
//   if (!sync.is_summed(region, gradient)) ...  // it is this replica's share of the whole batch's
//
// For the region form of a step: one copy of it, inside `replicated` nodes. Every value of such a region, and
// of the regions of cond, while_loop and others in it, is mirrored (the same bits on all replicas) or per
// replica (they may differ).
//
//   per replica by itself    what an op draws, asks the host, or says differs (ReplicaRole::kOwnSource, lambdas);
//                            a variable that is synchronized on read; per-replica inputs of the region; what a merge function gives each replica for itself
//   mirrored                 what a collective gives all replicas (same_on_all), kSumOverReplicas, shared inputs, variables that
//                            replicas keep equal, single results of a merge function; a per-replica input that is one
//                            value for all replicas, or a mirrored result of another replicated node
//   as its inputs            everything else. The result of a cond follows its predicate and both branches, that of a
//                            loop its condition, its first value and its body.
//
// An update of a variable that replicas keep equal counts as if its operand were mirrored: insert-all-reduce
// makes it so. With one replica everything is mirrored.
//
// A gradient is a share of the whole, even if it is the same on all replicas, as the gradient of a bias under
// a linear loss is, or gradients after a forward pass that replicas made together. So a value made by
// gradients() is a share until a collective or a merge function takes it that gradients() did not make: the
// all_reduce of a forward pass, and the way back through it, reduce no gradient. A value that a user computes
// without gradients() has been summed if it is mirrored and depends on anything that replicas made together.
// In a region that carries `update`, and in those inside it, everything is final.
//
// All rules only ever add to what is per replica, so the analysis is one walk from the sources along the
// edges: linear, loops included, and the first way to reach a value is the shortest chain that explains it.
//
// The graph must outlive the analysis and stay unchanged; but a pass may edit a level once it has nothing
// more to ask about it, in the order in which for_each_level() visits levels. Thread safety: constant after
// construction.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/graph/transform/replica_kind.h"

namespace lockstep {

class LOCKSTEP_API SyncAnalysis {
 public:
  explicit SyncAnalysis(const Graph& outermost);

  // A replicated region, or a region inside one, as one replica sees it.
  struct Level {
    const Graph* graph = nullptr;
    std::int64_t replicas = 1;  // of all workers
    bool final = false;         // inside a region that carries `update`: nothing is left to combine
  };
  const std::vector<Level>& levels() const { return levels_; }  // outer ones before inner ones
  bool covers(const Graph& level) const;
  // `level` must be covered.
  const Level& level_of(const Graph& level) const;

  // `level` is one of levels(). Returns kMirrored or kPerReplica.
  ReplicaKind at(const Graph& level, ValueId value) const;
  // For the gradient of a variable that replicas keep equal: is it already the sum over all replicas, so that
  // it must not be summed again?
  bool is_summed(const Graph& level, ValueId gradient) const;
  // Does each replica have its own value of this variable, because it is synchronized on read?
  bool has_own_copies(const std::string& variable) const;
  // From the value back to the cause of its being per replica, outermost regions included.
  struct Link {
    const Node* node = nullptr;
    ValueId value;
  };
  std::vector<Link> chain(const Graph& level, ValueId value) const;  // empty if it is mirrored
  // The chain in one line, with source lines.
  std::string explain(const Graph& level, ValueId value) const;

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFFU;
  static constexpr std::uint32_t kHub = 0xFFFFFFFEU;  // as an output: all inputs of a node lead through it
  struct Cell {
    std::uint32_t level = 0, node = 0, output = 0;
  };
  using Edge = std::pair<std::uint32_t, std::uint32_t>;
  struct Edges;  // while building

  void add_cross(const Graph& graph);
  void add_level(const Graph& graph, std::int64_t replicas, bool final);
  void connect_cross(const Graph& graph, const MergeCall* merge, Edges& edges);
  void connect_replicated(const ReplicatedNode& node, const MergeCall* merge, Edges& edges);
  void connect_level(const Level& level, Edges& edges);
  void connect_node(const Level& level, const Node& node, Edges& edges);
  void connect_regions(const Node& node, Edges& edges);
  bool names_own_copies(const Node& node, const std::string& attribute) const;
  std::string reason(const Node& node) const;
  std::uint32_t cell(const Graph& level, ValueId value) const;

  const Graph& outermost_;
  std::vector<Level> levels_;
  std::vector<std::vector<std::uint32_t>> first_;  // by level and node: the cell of output 0
  std::unordered_map<const Graph*, std::uint32_t> index_;
  std::vector<Cell> cells_;
  std::vector<bool> per_replica_;
  std::vector<bool> share_;          // per replica or made by gradients(), with no collective since
  std::vector<bool> together_;       // depends on what replicas made together
  std::vector<std::uint32_t> from_;  // by cell: the cell that made it per replica; kNone: itself
};

}  // namespace lockstep
