// strategies/passes/internal/replica_clones.h - the nodes of a replicated region, once per replica.
//
// Clones makes them in the order that strategies/passes/replicate.h describes, and records what each value of
// the region becomes on each replica. Joins (internal/replica_joins.h) makes the nodes that are one for all
// replicas.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/base/small_vector.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/strategies/passes/internal/replicator.h"

namespace lockstep::internal {

// The reason why a branch or loop must be one node for all replicas: a node in its regions that joins
// replicas, or that writes a variable that they keep equal. nullptr: there is none, or the node is not a
// branch or loop.
const Node* joining_node(const Node& node, const VariableCopies& copies);

// The nodes of one body, for all replicas.
class Clones {
 public:
  Clones(Replicator& owner, Target& target, const Graph& body, const ReplicaRange& range);

  NodeId enter;                 // runs before nodes with effects
  std::vector<NodeId> effects;  // the nodes made that have effects

  // The results of each replica.
  std::vector<std::vector<ValueId>> make(std::span<const std::vector<ValueId>> arguments);

  Replicator& owner() const { return owner_; }
  Target& target() const { return target_; }
  std::size_t replicas() const { return replicas_; }
  const ReplicaRange& range() const { return range_; }
  // The number of one of them among those of all workers.
  std::int64_t number(std::size_t replica) const { return range_.first + static_cast<std::int64_t>(replica); }

  // --- what a node of the body became on a replica
  ValueId value(std::size_t replica, ValueId of);
  // Output i of the node is output first.output + i of what was made.
  void set_first_value(std::size_t replica, NodeId id, ValueId first) { base(replica, id) = first; }
  // For outputs that come from several nodes; nodes that run after the node run after `after`.
  void list(std::size_t replica, NodeId id, std::span<const ValueId> values, NodeId after);
  void add_controls(const Node& node, std::size_t replica, SmallVector<NodeId, 2>& controls);
  void note_effects(NodeId made);
  std::string name_for(const Node& node, std::size_t replica) const;

  // Makes the replica's own node.
  void clone(const Node& node, std::size_t replica);

 private:
  void arrange();
  void find_variables();
  ValueId& base(std::size_t replica, NodeId id) { return bases_[replica * body_.id_bound() + id.index()]; }
  NodeId last(std::size_t replica, NodeId id);
  SmallVector<ValueId, 2> inputs_of(const Node& node, std::size_t replica);
  void make_number(NodeInit& init, std::size_t replica) const;
  void make_own(Graph& region, std::size_t replica);

  static constexpr std::uint32_t kListed = std::numeric_limits<std::uint32_t>::max();

  Replicator& owner_;
  Target& target_;
  const Graph& body_;
  ReplicaRange range_;
  std::size_t replicas_;               // those here
  std::vector<std::string> prefixes_;  // of names, by replica
  std::vector<ValueId> bases_;  // by replica and node: output i is base + i, or entry base.node + i of lists_
  std::vector<ValueId> lists_;
  std::vector<NodeId> lists_after_;
  // The variables that the body's nodes name, by node: entries first_named_[id] to first_named_[id + 1] of
  // named_.
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
