// strategies/passes/internal/replicator_parts.h - the two halves of replicating: what stands outside of replicated regions, and the
// clones of what stands inside. Shared by replicator.cpp, replica_clones.cpp and replica_joins.cpp.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/graph/ir/graph.h"
#include "lockstep/strategies/passes/internal/copies.h"
#include "lockstep/strategies/passes/internal/variable_order.h"

namespace lockstep::internal {

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

 private:
  friend class Clones;
  static std::string_view text(const Node& node, StringId id) { return node.graph().text(id); }
  // A node to be like another, without inputs.
  NodeInit copied(const Node& node) const;
  // The node as it is, in another graph.
  NodeId keep(Target& target, const Node& node, std::span<const ValueId> inputs,
              std::span<const NodeId> controls, std::vector<Graph> regions = {});
  Provenance made_from(const Target& target, const Node& node, std::int64_t replica) const;
  // `same_regions`: those of the node, if it has any, do what the origin's do.
  NodeId add(Target& target, NodeInit&& init, const Node& origin, bool same_regions = false);
  void infer(Target& target, const Node& made, const Node& origin);
  void take_arguments(const Target& target, std::span<const ValueId> arguments);
  std::vector<ValueId> cross(Target& target, const Graph& body, std::span<const ValueId> arguments,
                             std::string_view scope);
  NodeId merged(Target& target, const Node& node, std::span<const ValueId> inputs,
                std::span<const NodeId> controls, std::vector<Graph> regions, std::string_view scope);
  Graph cross_region(const Graph& region);
  std::vector<ValueId> expand(Target& target, const Node& node, std::span<const ValueId> inputs,
                              std::span<const NodeId> controls, std::vector<NodeId>& effects);
  NodeId group(Target& target, const Node& node, std::span<const NodeId> controls, std::string_view what);
  // Nodes that use a variable are told directly whom they follow, not through groups alone.
  static void order(const Target& target) {
    if (target.has_groups) order_variable_uses(target.graph);
  }
  ValueId agreement(Target& target, const Node& node, std::span<const ValueId> values);

  const Graph& from_;
  Graph& to_;
  VariableCopies copies_;
  // Nothing made so far is known better, or differently, than what it was made from.
  bool knows_as_much_ = true;
};

// The nodes of one body, for all replicas.
class Clones {
 public:
  Clones(Replicator& owner, Target& target, const Graph& body, std::size_t replicas);

  NodeId enter;                 // runs before what has effects
  std::vector<NodeId> effects;  // the made nodes that have effects

  // The results of each replica.
  std::vector<std::vector<ValueId>> make(std::span<const std::vector<ValueId>> arguments);

 private:
  void arrange();
  void find_variables();

  // --- values
  ValueId& base(std::size_t replica, NodeId id) { return bases_[replica * body_.id_bound() + id.index()]; }
  ValueId value(std::size_t replica, ValueId of);
  NodeId last(std::size_t replica, NodeId id);
  void list(std::size_t replica, NodeId id, std::span<const ValueId> values, NodeId after);
  SmallVector<ValueId, 2> inputs_of(const Node& node, std::size_t replica);
  void add_controls(const Node& node, std::size_t replica, SmallVector<NodeId, 2>& controls);
  void note_effects(NodeId made);
  std::string name_for(const Node& node, std::size_t replica) const;

  // --- one node per replica
  void clone(const Node& node, std::size_t replica);
  static void make_constant(NodeInit& init, std::int64_t replica);
  void make_own(Graph& region, std::int64_t replica);

  // --- one node for all replicas
  void join(const Node& node);
  NodeInit joined(const Node& node);
  void join_collective(const Node& node);
  void add_up(const Node& node);
  void merge(const Node& node);
  void join_regions(const Node& node);
  Graph joined_region(const Node& node, const Graph& region, std::span<const std::size_t> originals,
                      std::span<const std::vector<std::size_t>> places, bool condition);
  ValueId agree(const Node& node, ValueId input);

  static constexpr std::uint32_t kListed = std::numeric_limits<std::uint32_t>::max();

  Replicator& owner_;
  Target& target_;
  const Graph& body_;
  std::size_t replicas_;
  std::vector<std::string> prefixes_;  // of names, by replica
  std::vector<ValueId> bases_;  // by replica and node: output i is base + i, or entry base.node + i of lists_
  std::vector<ValueId> lists_;
  std::vector<NodeId> lists_after_;
  // What the body's nodes name, by node: entries first_named_[id] to first_named_[id + 1] of named_.
  struct Named {
    std::uint32_t attribute;  // place in the node's list
    std::uint32_t variable;   // place in the graph's
  };
  std::vector<Named> named_;
  std::vector<std::uint32_t> first_named_;
  std::vector<bool> is_join_;
  std::vector<std::vector<NodeId>> phases_;
};

}  // namespace lockstep::internal
