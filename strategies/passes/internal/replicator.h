// strategies/passes/internal/replicator.h - what the pass replicate does to replicated regions.
//
// Replicator makes the nodes outside of replicated regions. Clones (internal/replica_clones.h) makes the
// nodes inside; it calls back here for single nodes and for merge_call, which leaves the replicas.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/strategies/passes/internal/copies.h"

namespace lockstep::internal {

// Rewrites the graph so that it has the nodes of every replicated region once per replica; see
// strategies/passes/replicate.h. Copies of all variables that replicas write must be declared. Throws
// PassError; the graph is then unusable. `first`: the number of the first replica.
void flatten_replicas(Graph& graph, std::int64_t first);

inline constexpr std::string_view kReplicate = "replicate";

// Where nodes are made: the new graph, or a region of it.
struct Target {
  Graph& graph;
  StringId made_by = graph.intern(kReplicate);
  bool has_groups = false;  // some nodes are groups, which order what was one node before
};

// Copies a graph, with the nodes of each replicated region once per replica.
class Replicator {
 public:
  Replicator(const Graph& from, Graph& to, std::int64_t first)
      : from_(from), to_(to), copies_(to), first_(first) {}
  void run();

  const Graph& made() const { return to_; }
  const VariableCopies& copies() const { return copies_; }  // of the variables of the new graph

  // A node like the given one, without inputs.
  static NodeInit copied(const Node& node);
  static Provenance made_from(const Target& target, const Node& node, std::int64_t replica);
  // `same_regions`: the node's regions, if any, do the same as the origin's.
  NodeId add(Target& target, NodeInit&& init, const Node& origin, bool same_regions = false);
  // Called before a body is made, with the values of its parameters.
  void take_arguments(const Target& target, std::span<const ValueId> arguments);
  // Makes the nodes of a graph that belongs to no replica; returns the values of its results.
  std::vector<ValueId> cross(Target& target, const Graph& body, std::span<const ValueId> arguments,
                             std::string_view scope);
  // A node that runs after `controls`; if there is only one control, that one.
  static NodeId group(Target& target, const Node& node, std::span<const NodeId> controls,
                      std::string_view what);
  // One value for all of them: the node is a branch or loop of all replicas. prove-sync proves that the
  // values are equal.
  ValueId agreement(Target& target, const Node& node, std::span<const ValueId> values,
                    const ReplicaRange& range) const;
  // Gives nodes that use a variable direct edges to their predecessors, besides those through groups.
  static void order(const Target& target);

 private:
  static std::string_view text(const Node& node, StringId id) { return node.graph().text(id); }
  // The node as it is, in another graph.
  NodeId keep(Target& target, const Node& node, std::span<const ValueId> inputs,
              std::span<const NodeId> controls, std::vector<Graph> regions = {});
  void infer(Target& target, const Node& made, const Node& origin);
  NodeId merged(Target& target, const Node& node, std::span<const ValueId> inputs,
                std::span<const NodeId> controls, std::vector<Graph> regions, std::string_view scope);
  Graph cross_region(const Graph& region);
  std::vector<ValueId> expand(Target& target, const Node& node, std::span<const ValueId> inputs,
                              std::span<const NodeId> controls, std::vector<NodeId>& effects);

  const Graph& from_;
  Graph& to_;
  VariableCopies copies_;
  std::int64_t first_;
  // True while every spec made so far is the same as that of its origin: neither better known nor different.
  bool knows_as_much_ = true;
};

}  // namespace lockstep::internal
