// graph/ir/replica_nodes.h - views of nodes about replicas, with names for their attributes and inputs.
//
//   if (const auto replicated = ReplicatedNode::of(node)) {
//     for (std::size_t r = 0; r < replicated->replicas(); ++r)
//       visit(replicated->arguments(node.inputs(), r));
//   }
//
// A view holds a reference to its node: it is valid as long as the node, and has to be made anew after a
// change of the node. Views are values; threads may share them as they share the graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/graph/ir/graph.h"

namespace lockstep {

// More would be a mistake, and rules that count them would take for ever.
inline constexpr std::int64_t kMaxReplicas = 1 << 20;

// The replicas that a graph has, and the place they have among those of all workers: `local` of them, of which the first is number
// `first` of `world`. A step of one worker has all there are.
struct ReplicaRange {
  // NOLINTNEXTLINE(google-explicit-constructor)
  ReplicaRange(std::int64_t all) : local(all), world(all) {}
  ReplicaRange(std::int64_t local_ones, std::int64_t first_one, std::int64_t all)
      : local(local_ones), first(first_one), world(all) {}
  bool is_part() const { return world != local; }  // other workers have others

  std::int64_t local, first = 0, world;
};

// A `replicated` node: its region is the code of one replica, and runs once for each.
//
// The region's first parameters are shared: each takes one input of the node, which all replicas see. Each
// further parameter takes one input per replica. The node has one output per replica for each result of the
// region.
class LOCKSTEP_API ReplicatedNode {
 public:
  // Empty for any other node, and for one that verify() would refuse.
  static std::optional<ReplicatedNode> of(const Node& node);
  // Throws InternalError if of() is empty.
  explicit ReplicatedNode(const Node& node);

  const Node& node() const { return *node_; }
  const Graph& region() const { return node_->regions()[0]; }
  std::size_t replicas() const { return replicas_; }
  ReplicaRange range() const;                     // replicas(), and those of other workers
  std::size_t shared() const { return shared_; }  // parameters that all replicas see
  bool is_update() const { return update_; }      // made by Extended::update

  // The number of the node's input that a parameter takes on a replica.
  std::size_t input(std::size_t parameter, std::size_t replica) const {
    return parameter < shared_ ? parameter : shared_ + (parameter - shared_) * replicas_ + replica;
  }
  // The inputs that a parameter stands for: one, or one per replica.
  std::span<const ValueId> inputs(std::size_t parameter) const {
    return node_->inputs().subspan(input(parameter, 0), parameter < shared_ ? 1 : replicas_);
  }
  // Picks the items of a replica's parameters, given one item for each input of the node.
  template <class T>
  std::vector<T> arguments(std::span<const T> inputs, std::size_t replica) const {
    std::vector<T> mine;
    mine.reserve(region().parameters().size());
    for (std::size_t i = 0; i < region().parameters().size(); ++i) mine.push_back(inputs[input(i, replica)]);
    return mine;
  }
  // The output that holds a result of the region on a replica, and the result that an output holds.
  std::size_t output(std::size_t result, std::size_t replica) const { return result * replicas_ + replica; }
  std::size_t result(std::size_t output) const { return output / replicas_; }

 private:
  ReplicatedNode(const Node& node, std::size_t replicas, std::size_t shared, bool update)
      : node_(&node), replicas_(replicas), shared_(shared), update_(update) {}

  const Node* node_;
  std::size_t replicas_;
  std::size_t shared_;
  bool update_;
};

// A `merge_call` node: replicas leave their code together, for a region over the arguments of all of them.
//
// The region takes the inputs of replica 0, then those of replica 1, and so on. An output is either single
// (one result of the region) or has one result per replica.
class LOCKSTEP_API MergeCall {
 public:
  // As ReplicatedNode::of.
  static std::optional<MergeCall> of(const Node& node);
  explicit MergeCall(const Node& node);

  const Node& node() const { return *node_; }
  const Graph& region() const { return node_->regions()[0]; }
  std::size_t replicas() const { return replicas_; }
  std::size_t outputs() const { return single_.size(); }
  bool is_single(std::size_t output) const { return single_[output] != 0; }

  // The parameter of the region that takes an input of a replica.
  std::size_t parameter(std::size_t input, std::size_t replica) const {
    return replica * node_->inputs().size() + input;
  }
  // For each output the number of its first result of the region; then the number of all results.
  std::vector<std::size_t> first_results() const;

 private:
  MergeCall(const Node& node, std::size_t replicas, std::span<const std::int64_t> single)
      : node_(&node), replicas_(replicas), single_(single) {}

  const Node* node_;
  std::size_t replicas_;
  std::span<const std::int64_t> single_;
};

// Is `level`, `outermost` itself or a region somewhere inside it, code of one replica that stands for several?
LOCKSTEP_API bool is_replica_code(const Graph& outermost, const Graph& level);
// Does the op combine values of several replicas, inside the code of one?
LOCKSTEP_API bool combines_replicas(const OpDef& op);
// How many replicas' inputs a collective has: 1 until passes join those of several.
LOCKSTEP_API std::size_t joined_replicas(const Node& collective);
// Those it has, and those of other workers that it combines them with.
LOCKSTEP_API ReplicaRange joined_range(const Node& collective);
// The attributes that say so, besides `replicas`; none for all there are.
LOCKSTEP_API void set_range(std::vector<Attribute>& attributes, const ReplicaRange& range);
// Is it a collective that is still to be joined (its attribute `replicas` is 0)?
LOCKSTEP_API bool awaits_joining(const Node& node);

}  // namespace lockstep
