// strategies/proof/congruence.h - which values of a flat graph are proven equal, bit by bit.
//
//   const Congruence proof(graph);                       // after `replicate`
//   proof.top().of(a) == proof.top().of(b)               // a and b always hold the same bits
//
// Every value gets a class by value numbering in topological order; two values of one class are equal in
// every run. Two values are of one class if they are the same output of nodes with equal op, attributes and
// kind of device whose inputs are of one class. Besides:
//   variables     hold a class that changes with each update. Copies that replicas keep equal start in one class (that is
//                 what prove-sync proves for the end of the step, by induction over the steps); copies that are synchronized
//                 on read, and variables given as drifting, never do. A read is what the variable holds
//   random        equal key, inputs and replica
//   collectives   same_on_all: tensor t is of one class on all replicas. Lowered: a copy is its input, joined chunks go by chunks and shape
//   cond          output j by the predicate and what both regions give for it, regions numbered over the arguments' classes
//   while_loop    carried values and written variables are assumed equal if they start equal, and told apart until
//                 the body confirms the rest
//   unknown       what is per replica, opaque, of the host, or a lambda equals only itself
//
// Of a step that several workers run, each with replicas of its own, the graph has those of one. It is numbered once more for a
// stand-in, another worker: its feeds, its own copies of variables and what its replicas draw are its own, and what a collective
// over all workers gives is the same for both. A value that has the same class for both is equal on all workers.
//
// So nodes that hold all replicas in their regions and nodes that exist once per replica are judged by the
// same rules. Linear in the nodes except for loops, whose bodies are numbered until nothing splits (mostly
// once or twice).
//
// Thread safety: as a value. The graph must outlive it and stay unchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/base/name_set.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/transform/replica_kind.h"

namespace lockstep {

// The classes of the values of one graph: the outermost one or a region.
class LOCKSTEP_API LevelClasses {
 public:
  std::uint32_t of(ValueId value) const { return classes_[index(value)]; }
  // A number for each value, below size().
  std::size_t index(ValueId value) const { return first_[value.node.index()] + value.output; }
  std::size_t size() const { return classes_.size(); }
  // The region of a cond or a while_loop.
  const LevelClasses& region(NodeId node, std::size_t i) const { return regions_.at(node)[i]; }
  bool has_regions(NodeId node) const { return regions_.contains(node); }

  // The updates of variables, in order. A node with regions stands for the updates inside it.
  struct Update {
    std::uint32_t variable = 0;  // place in Congruence::graph().variables()
    NodeId node;
    std::uint32_t before = 0, after = 0;  // classes
  };
  const std::vector<Update>& updates() const { return updates_; }

 private:
  friend class CongruenceMaker;
  std::vector<std::uint32_t> first_;  // by node
  std::vector<std::uint32_t> classes_;
  std::vector<Update> updates_;
  std::unordered_map<NodeId, std::vector<LevelClasses>> regions_;
};

class LOCKSTEP_API Congruence {
 public:
  enum class Workers : std::uint8_t { kOne, kSeveral };
  // `drifting`: variables (not the names of copies) whose copies are not assumed to be equal when the step
  // begins.
  explicit Congruence(const Graph& outermost, const NameSet& drifting = {}, Workers workers = Workers::kOne);

  const Graph& graph() const { return *graph_; }
  const LevelClasses& top() const { return top_; }
  std::size_t num_classes() const { return num_classes_; }  // classes are below this
  // The class that variable i of the graph holds when the step begins, and when it ends.
  std::uint32_t initial(std::size_t variable) const { return initial_[variable]; }
  std::uint32_t final(std::size_t variable) const { return final_[variable]; }
  // The place of the variable that it is a copy of; its own place if it is not a copy.
  std::size_t original(std::size_t variable) const { return originals_[variable]; }
  // The variables whose copies begin the step equal but do not end it so.
  std::vector<std::string> drifting() const;
  // The same of copies that different workers have; and the classes of the stand-in, empty for one worker.
  std::vector<std::string> drifting_between_workers() const;
  const LevelClasses& stand_in() const { return stand_in_; }

 private:
  friend class CongruenceMaker;
  const Graph* graph_;
  std::size_t num_classes_ = 0;
  LevelClasses top_, stand_in_;
  std::vector<std::uint32_t> initial_, final_;
  std::vector<std::uint32_t> stand_in_initial_, stand_in_final_;  // empty for one worker
  std::vector<std::size_t> originals_;
};

// The proof with the strongest assumption that holds: variables whose copies a step lets drift apart are
// found, and are not assumed to be equal.
LOCKSTEP_API Congruence consistent_congruence(const Graph& outermost);

// For dumps: whether a value belongs to no replica, may differ between replicas, or is equal on all of them.
// Indexed by LevelClasses::index.
LOCKSTEP_API std::vector<ReplicaKind> replica_kinds_of(const Graph& level, const LevelClasses& classes);
// The replica a value belongs to, even if its node is one for all replicas; -1: none.
LOCKSTEP_API std::int64_t replica_of(const Graph& level, ValueId value);

}  // namespace lockstep
