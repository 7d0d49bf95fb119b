// strategies/passes/internal/replicator.h - what the pass replicate does to replicated regions.
//
// Replicator makes the nodes that stand outside of replicated regions; those inside are made by Clones
// (internal/replica_clones.h), which come back here for single nodes and for what merge_call leaves the
// replicas for.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/graph/ir/graph.h"
#include "lockstep/strategies/passes/internal/copies.h"

namespace lockstep::internal {

// Makes the graph one with the nodes of every replicated region once per replica; see
// strategies/passes/replicate.h. All variables that replicas write have their copies declared. Throws
// PassError; the graph is then of no use.
void flatten_replicas(Graph& graph);

inline constexpr std::string_view kReplicate = "replicate";

// Where nodes are made: the new graph, or a region of it.
struct Target {
  Graph& graph;
  StringId made_by = graph.intern(kReplicate);
  bool has_groups = false;  // which order what was one node before
};

// Copies a graph, with the nodes of each replicated region once per replica.
class Replicator {
 public:
  Replicator(const Graph& from, Graph& to) : from_(from), to_(to), copies_(to) {}
  void run();

  const Graph& made() const { return to_; }
  const VariableCopies& copies() const { return copies_; }  // of the variables of the new graph

  // A node to be like another, without inputs.
  static NodeInit copied(const Node& node);
  static Provenance made_from(const Target& target, const Node& node, std::int64_t replica);
  // `same_regions`: those of the node, if it has any, do what the origin's do.
  NodeId add(Target& target, NodeInit&& init, const Node& origin, bool same_regions = false);
  // Before a body is made whose parameters are these values.
  void take_arguments(const Target& target, std::span<const ValueId> arguments);
  // Makes the nodes of a graph that is no replica's; gives the values of its results.
  std::vector<ValueId> cross(Target& target, const Graph& body, std::span<const ValueId> arguments,
                             std::string_view scope);
  // A node that runs after `controls`, or the one of them.
  static NodeId group(Target& target, const Node& node, std::span<const NodeId> controls,
                      std::string_view what);
  // One value for all of them, which prove-sync proves equal: the node is a branch or loop of all replicas.
  ValueId agreement(Target& target, const Node& node, std::span<const ValueId> values) const;
  // Nodes that use a variable are told directly whom they follow, not through groups alone.
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
  // Nothing made so far is known better, or differently, than what it was made from.
  bool knows_as_much_ = true;
};

}  // namespace lockstep::internal
