// graph/transform/rewriter.h - the few edits that passes need, with invariants, names, identity and source
// lines kept.
//
//   Rewriter edit(graph, name());
//   edit.replace_uses({node, 0}, input);       // immediate: every reader and result follows
//   edit.erase(node);                          // its successors now run after its predecessors
//
// Nodes made here carry provenance: the pass, the replica and the reason given, and the origin of the node
// they stem from. Every edit keeps the use lists up to date. Building a Rewriter is linear; each edit costs
// what it touches. A Rewriter edits one level: for the regions inside a node make another one over
// graph.region(id, i), or let for_each_level() visit them all.
//
// While a Rewriter lives, edit that graph only through it. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/base/small_vector.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/value.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep {

struct Use {
  NodeId user;              // invalid: a result of the graph
  std::uint32_t index = 0;  // which input, or which result
  friend bool operator==(const Use&, const Use&) = default;
};

class LOCKSTEP_API Rewriter {
 public:
  // `outermost` is the graph that declares the variables, if `graph` is a region inside it.
  Rewriter(Graph& graph, std::string_view pass, const Graph* outermost = nullptr);
  ~Rewriter();
  Rewriter(const Rewriter&) = delete;
  Rewriter& operator=(const Rewriter&) = delete;

  const Graph& graph() const { return graph_; }
  bool changed() const { return changed_; }

  // --- who reads what
  std::vector<Use> uses(ValueId value) const;            // by id of the reader, results last
  std::vector<NodeId> control_users(NodeId node) const;  // by id
  bool is_used(NodeId node) const;                       // read by a node, ordered before one, or a result
  bool is_read(NodeId node) const;                       // read by a node, or a result

  // --- making nodes; docs/writing_a_pass.md shows both ways
  // Makes a node that stems from `origin` (may be invalid). Output specs are inferred; the name is made
  // unique; site, device and replica are the origin's unless given. A node made from a gradient, or put in the
  // place of one, counts as a replica's share of it until replicas are combined (see SyncAnalysis).
  struct NewNode {
    std::string_view op;
    std::string_view name = {};  // base; empty: the op's name
    std::vector<ValueId> inputs = {};
    std::vector<Attribute> attributes = {};
    std::vector<NodeId> controls = {};
    std::vector<Graph> regions = {};
    std::vector<TensorSpec> outputs = {};  // for ops whose outputs cannot be inferred
    NodeId origin = {};
    std::int32_t replica = -1;
    std::string_view device = {};
    std::string_view why = {};
  };
  NodeId insert(NewNode node);  // throws PassError naming the pass and the origin if inference refuses
  // Makes nodes as graph-building code does: `make` is given a builder and the values of `inputs`, uses the
  // functions of ops (matmul, cast, cond, ...) and the graph's variables, and returns the results, which
  // become values of this graph. The nodes stem from at.origin and lie in the scope at.scope. Among
  // themselves they use variables in the order in which they are made; order them relative to other nodes of
  // the graph with at.after and add_control(). Declare variables before, with Graph::declare_variable. Throws
  // PassError.
  // Inputs may be shapes of values and what follows from them; their nodes are not made again.
  using BuildFn = std::function<std::vector<Value>(GraphBuilder& builder, std::span<const Value> inputs)>;
  struct BuildAt {
    NodeId origin = {};
    std::string_view scope = {};  // empty: none
    std::string_view why = {};
    std::span<const NodeId> after = {};  // run before each new node that has no inputs, such as a read
  };
  std::vector<ValueId> build(std::span<const ValueId> inputs, const BuildFn& make, const BuildAt& at);
  // A copy of a node of this graph with other inputs and name; the specs are inferred again if the specs of
  // the inputs differ.
  NodeId clone(NodeId node, std::string_view name, std::span<const ValueId> inputs, std::int32_t replica = -1,
               std::string_view why = {});
  // Copies the nodes of a region graph into this one under the scope `prefix`, with arguments in place of
  // parameters; returns the values of the region's results. `controls` run before each copied node that has
  // no inputs.
  std::vector<ValueId> inline_region(const Graph& region, std::span<const ValueId> arguments,
                                     std::string_view prefix, std::int32_t replica = -1,
                                     std::string_view why = {}, std::span<const NodeId> controls = {});

  // --- changing existing nodes
  // Turns the node into another one in place: op, inputs and attributes are those given, output specs are
  // inferred, and name, device, controls and readers stay. It gets a new identity and keeps its origin. A
  // node that is so already stays as it is. Only for nodes without regions.
  void become(NodeId node, NewNode what);
  // Readers and results move to `to`, except that `to`'s own node keeps reading `from` (so that a value can
  // be wrapped).
  void replace_uses(ValueId from, ValueId to);
  // The same for many values, from the first of each pair to the second; linear in the uses of their nodes.
  // No second value may be among the first ones.
  void replace_uses(std::vector<std::pair<ValueId, ValueId>> moves);
  // Data uses of every output move to `to`; nodes that ran after `from` now run after `to`'s nodes and after
  // `from`'s controls. A reader no longer waits for `from`'s controls: put them on the replacement if they
  // matter.
  void replace_node(NodeId from, std::span<const ValueId> to);
  void set_input(NodeId node, std::size_t index, ValueId value);
  void add_control(NodeId node, NodeId before);
  // Nodes that ran after this one now run after its predecessors (its inputs and controls). Throws PassError
  // if an output is still read.
  void erase(NodeId node);
  // replace_node and erase for many nodes at once: linear in everything they touch, even if one node runs
  // after all of them. `to` names no node of the list; it is empty if nothing outside the list reads the
  // node.
  struct Replacement {
    NodeId node;
    SmallVector<ValueId, 1> to = {};
  };
  void replace_and_erase(std::span<const Replacement> nodes);
  void set_attribute(NodeId node, std::string_view name, AttributeValue value);
  void set_device(NodeId node, std::string_view device);
  void set_results(std::vector<ValueId> results);
  void rename(NodeId node, std::string_view name);  // made unique

 private:
  // One edge: a place where `user` names a node. Data edges (whose user is a node or a result) and control
  // edges are in two lists of the node they name; the control edges of one user also form a chain of their
  // own.
  struct Record {
    NodeId user;
    std::uint32_t index = 0;  // data: which input or result; control: the user's next control record
    std::uint32_t prev = 0;
    std::uint32_t next = 0;
  };
  static constexpr std::uint32_t kNone = 0xFFFFFFFFU;

  std::uint32_t take_record();
  void link(std::vector<std::uint32_t>& heads, NodeId used, std::uint32_t record);
  void unlink(std::vector<std::uint32_t>& heads, NodeId used, std::uint32_t record);
  void link_node(NodeId node);
  void link_inputs(NodeId node);
  void unlink_inputs(NodeId node);
  void link_controls(NodeId node);
  void unlink_controls(NodeId node);
  void link_results();
  void replace_controls(NodeId node, std::span<const NodeId> controls);
  void move_use(std::uint32_t record, ValueId to);
  void move_results(std::span<const std::pair<std::uint32_t, ValueId>> moves);
  ValueId value_at(const Record& record) const;
  void rewire(std::span<const Replacement> nodes, bool erasing);
  std::vector<NodeId> redirect_readers(std::span<const Replacement> nodes, bool erasing);
  void redirect_order(NodeId user, std::span<const Replacement> nodes, bool erasing);
  NodeInit infer(NewNode& node, const Node* origin) const;
  // inline_region(), given the values of some of the region's nodes (by node; the others are empty).
  std::vector<ValueId> inline_nodes(const Graph& region, std::vector<std::vector<ValueId>> values,
                                    std::string_view prefix, std::int32_t replica, std::string_view why,
                                    std::span<const NodeId> controls);
  NodeId add_node(NodeInit init, const Node* origin, std::int32_t replica, std::string_view why,
                  std::optional<GradientMark> gradient = std::nullopt);
  GradientMark mark_of(const OpDef& op, std::span<const ValueId> inputs, const Node& origin) const;
  Provenance made_from(const Provenance* origin, std::int32_t replica, std::string_view why);
  [[noreturn]] void fail(const std::string& message, NodeId node) const;

  Graph& graph_;
  const Graph& outermost_;
  std::string pass_name_;
  StringId pass_;
  NodeId built_for_;  // while build() copies its nodes: the node they stem from
  bool changed_ = false;
  std::vector<std::uint32_t> data_head_;      // per node: first record of who reads it
  std::vector<std::uint32_t> control_head_;   // per node: first record of who runs after it
  std::vector<std::uint32_t> first_input_;    // per node: its own input records, one after another
  std::vector<std::uint32_t> first_control_;  // per node: its own control records, chained by `index`
  std::uint32_t first_result_ = 0;            // the result records, one after another
  std::vector<Record> records_;
  std::uint32_t free_ = kNone;
  std::vector<std::uint32_t> mark_;  // rewire: per node, its place in the list
  std::vector<std::uint32_t> seen_;  // rewire: per node, the epoch in which it was last met
  std::uint32_t epoch_ = 0;
};

// Calls `visit` for the graph and every region inside it, innermost first.
LOCKSTEP_API void for_each_level(Graph& graph, const std::function<void(Graph& level)>& visit);

}  // namespace lockstep
