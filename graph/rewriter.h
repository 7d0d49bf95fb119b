// graph/rewriter.h - the few edits that passes need, with invariants, names, identity and source lines kept.
//
//   Rewriter edit(graph, "remove-identity");
//   edit.replace_uses({node, 0}, input);       // immediate: every reader, control edge and result follows
//   edit.erase(node);
//
// Nodes made here carry provenance: the pass, the replica and the reason given, and as origin that of the node they
// stem from. Use lists are kept up to date by every edit. Building a Rewriter is linear; each edit costs what it touches.
// While a Rewriter lives, edit the graph only through it. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/graph/graph.h"

namespace lockstep {

struct Use {
  NodeId user;              // invalid: a result of the graph
  std::uint32_t index = 0;  // which input, or which result
};

class LOCKSTEP_API Rewriter {
 public:
  Rewriter(Graph& graph, std::string_view pass);
  ~Rewriter();
  Rewriter(const Rewriter&) = delete;
  Rewriter& operator=(const Rewriter&) = delete;

  const Graph& graph() const { return graph_; }
  bool changed() const { return changed_; }

  // --- who reads what
  std::vector<Use> uses(ValueId value) const;
  std::vector<NodeId> control_users(NodeId node) const;
  bool is_used(NodeId node) const;  // read by a node, ordered before one, or a result

  // --- edits
  // Makes a node that stems from `origin` (may be invalid). Output specs are inferred; name is made unique.
  struct NewNode {
    std::string_view op;
    std::string_view name;  // base; empty: the op's name
    std::vector<ValueId> inputs;
    std::vector<Attribute> attributes = {};
    std::vector<NodeId> controls = {};
    NodeId origin = {};
    std::int32_t replica = -1;
    std::string_view why = {};
  };
  NodeId insert(NewNode node);  // throws PassError naming the pass and origin where inference refuses
  // A copy of a node of this graph with other inputs and name.
  NodeId clone(NodeId node, std::string_view name, std::span<const ValueId> inputs, std::int32_t replica = -1,
               std::string_view why = {});
  // Copies the nodes of a region graph into this one under the scope `prefix`, arguments in place of parameters;
  // returns the values of the region's results. `controls` run before each copied node without inputs of its own.
  std::vector<ValueId> inline_region(const Graph& region, std::span<const ValueId> arguments, std::string_view prefix,
                                     std::int32_t replica = -1, std::string_view why = {});
  void replace_uses(ValueId from, ValueId to);
  // Data uses of every output follow `to`; whoever ran after `from` runs after `to`'s nodes.
  void replace_node(NodeId from, std::span<const ValueId> to);
  void set_input(NodeId node, std::size_t index, ValueId value);
  void add_control(NodeId node, NodeId before);
  // Users that ran after the node run after what it ran after. The node's outputs must be unused.
  void erase(NodeId node);
  void set_attribute(NodeId node, std::string_view name, AttributeValue value);
  void set_device(NodeId node, std::string_view device);
  void set_results(std::vector<ValueId> results);

 private:
  struct Record {
    NodeId user;
    std::uint32_t index;
    std::uint32_t next;
  };
  enum class Kind : std::uint8_t { kInput, kControl, kResult };
  void link(NodeId used, Kind kind, NodeId user, std::uint32_t index);
  void unlink(NodeId used, Kind kind, NodeId user, std::uint32_t index);
  void link_node(NodeId node);

  Graph& graph_;
  StringId pass_;
  bool changed_ = false;
  std::vector<std::uint32_t> head_;  // per node: first record of its uses
  std::vector<Record> records_;
  std::uint32_t free_ = 0;
};

}  // namespace lockstep
