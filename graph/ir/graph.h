// graph/ir/graph.h - the dataflow of one step, as a value.
//
// A Graph holds nodes. A node is an operation (OpDef) with data inputs, control inputs (run-before edges
// without data), typed attributes, output specs, a device, regions (sub-graphs), the user's source line and a
// lasting identity. A graph also has parameters (its placeholders, in order), results (what a run returns, or
// what a region hands out) and, outermost only, declared variables.
//
// Graphs are values: copying copies everything, regions included. Ids are dense: a fresh or compacted graph
// of n nodes uses ids 0..n-1. erase() leaves a gap that compact() closes. A reference to a node stays valid
// until the node is erased or the graph compacted; no pointer to a node should outlive a call.
//
// Editing keeps names unique and refuses nothing else: verify() (graph/check/verifier.h) judges the result.
// To build graphs by hand use GraphBuilder; to edit them in a pass use Rewriter.
//
// Thread safety: any number of readers, or one writer. unique_name() counts as writing: it remembers the
// numbers it has tried.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/core/base/chunked_vector.h"
#include "lockstep/core/base/export.h"
#include "lockstep/core/base/name_hash.h"
#include "lockstep/core/base/number_table.h"
#include "lockstep/core/base/small_vector.h"
#include "lockstep/core/error.h"
#include "lockstep/core/shape.h"
#include "lockstep/core/source_site.h"
#include "lockstep/core/tensor.h"
#include "lockstep/graph/ir/attribute.h"
#include "lockstep/graph/ir/graph_parts.h"
#include "lockstep/graph/ir/ids.h"
#include "lockstep/graph/ir/op.h"
#include "lockstep/graph/ir/variable_decl.h"

namespace lockstep {

// Is a node part of a gradient, as this replica computes it for its share of the batch? SyncAnalysis asks.
enum class GradientMark : std::uint8_t {
  kNone,
  kShare,   // gradients() made it, or a pass made it from such a node or put it in the place of one
  kSummed,  // a pass made it by combining such nodes of all replicas, or from what it combined
};

// Where a node comes from. Identities are unique in the process and survive copying, cloning graphs and
// compaction.
struct Provenance {
  std::uint64_t identity = 0;  // of this node
  std::uint64_t origin = 0;    // identity of the user's node it stems from; its own for a user's node
  StringId made_by;            // the pass that made it; invalid: the user
  StringId why;                // the pass's reason in a few words, if it gave one
  std::int32_t replica = -1;   // the replica it is for; -1: none in particular
  GradientMark gradient = GradientMark::kNone;
};

class Graph;

class LOCKSTEP_API Node {
 public:
  NodeId id() const { return id_; }
  const Graph& graph() const { return *graph_; }  // the graph that holds it
  const std::string& name() const { return name_; }
  const OpDef& op() const { return *op_; }
  std::span<const ValueId> inputs() const { return {inputs_.data(), inputs_.size()}; }
  std::span<const NodeId> controls() const { return {controls_.data(), controls_.size()}; }
  // Sorted by name.
  const std::vector<Attribute>& attributes() const {
    return attributes_ == nullptr ? no_attributes() : *attributes_;
  }
  std::span<const TensorSpec> outputs() const { return {outputs_.data(), outputs_.size()}; }
  // Canonical device name; empty: not placed.
  const std::string& device() const;
  std::span<const Graph> regions() const;
  SourceSite site() const;
  const Provenance& provenance() const { return provenance_; }

  template <class T>
  const T* find(std::string_view attribute) const {
    const AttributeValue* value = find_attribute(attributes(), attribute);
    return value == nullptr ? nullptr : std::get_if<T>(value);
  }

 private:
  friend class Graph;
  bool alive() const { return op_ != nullptr; }
  static const std::vector<Attribute>& no_attributes();

  // Walks over large graphs are bound by memory: a node begins on a cache line, and the fields that most
  // walks read come first.
  alignas(64) const OpDef* op_ = nullptr;  // null: erased
  const Graph* graph_ = nullptr;
  Provenance provenance_;
  NodeId id_;
  StringId device_;
  std::uint32_t site_ = 0;
  SmallVector<ValueId, 2> inputs_;
  SmallVector<NodeId, 2> controls_;
  std::vector<Graph> regions_;
  // Null: no attributes. Shared by copies of the node, so never changed in place.
  std::shared_ptr<const std::vector<Attribute>> attributes_;
  SmallVector<TensorSpec, 1> outputs_;
  std::string name_;
};

// Everything needed to make a node. Name and outputs are taken as they are.
struct NodeInit {
  const OpDef* op = nullptr;
  std::string name;
  SmallVector<ValueId, 2> inputs;
  SmallVector<NodeId, 2> controls;
  SmallVector<TensorSpec, 1> outputs;
  std::vector<Attribute> attributes;    // any order
  const Node* attributes_of = nullptr;  // if set, that node's attributes are used instead, without a copy
  std::vector<Graph> regions;
  std::string_view device;
  SourceSite site;
  std::optional<Provenance> provenance;  // absent: a new identity, which is its own origin

  // `attributes`, for the caller to change; if `attributes_of` is set, its attributes are copied here first.
  LOCKSTEP_API std::vector<Attribute>& own_attributes();
};

class LOCKSTEP_API Graph {
 public:
  // Defined in the library, not here: with a whole graph's parts they would be compiled in every program.
  Graph() noexcept;
  Graph(const Graph& other);
  Graph(Graph&& other) noexcept;
  Graph& operator=(const Graph& other);
  Graph& operator=(Graph&& other) noexcept;
  ~Graph();

  // --- reading
  std::size_t size() const { return parts_.live; }              // live nodes
  std::size_t id_bound() const { return parts_.nodes.size(); }  // every id is below this
  bool contains(NodeId id) const { return id.index() < id_bound() && slot(id).alive(); }
  const Node& node(NodeId id) const {  // internal error if there is none
    if (!contains(id)) [[unlikely]]
      throw_missing(id);
    return slot(id);
  }
  NodeId find(std::string_view name) const;  // invalid if there is none
  bool has_output(ValueId value) const {
    return contains(value.node) && value.output < node(value.node).outputs().size();
  }
  const TensorSpec& spec(ValueId value) const { return node(value.node).outputs()[value.output]; }
  const std::vector<NodeId>& parameters() const { return parts_.parameters; }
  const std::vector<ValueId>& results() const { return parts_.results; }
  const std::vector<VariableDecl>& variables() const { return parts_.variables.list(); }
  const VariableDecl* find_variable(std::string_view name) const { return parts_.variables.find(name); }
  std::string_view text(StringId id) const {
    return id.valid() ? std::string_view(parts_.strings[id]) : std::string_view();
  }

  // Live nodes in order of id: for (const Node& node : graph.nodes()). The loop may add and erase nodes: it
  // does not come to nodes that were added after nodes() was called.
  class NodeIterator {
   public:
    using value_type = Node;
    using difference_type = std::ptrdiff_t;
    using iterator_category = std::forward_iterator_tag;
    using reference = const Node&;
    using pointer = const Node*;
    NodeIterator() = default;
    NodeIterator(const Graph* graph, std::size_t index, std::size_t end)
        : graph_(graph), index_(index), end_(end) {
      skip();
    }
    const Node& operator*() const { return graph_->slot(NodeId(index_)); }
    const Node* operator->() const { return &**this; }
    NodeIterator& operator++() {
      ++index_;
      skip();
      return *this;
    }
    NodeIterator operator++(int) {
      NodeIterator old = *this;
      ++*this;
      return old;
    }
    friend bool operator==(const NodeIterator& a, const NodeIterator& b) { return a.index_ == b.index_; }

   private:
    void skip() {
      while (index_ < end_ && !graph_->slot(NodeId(index_)).alive()) ++index_;
    }
    const Graph* graph_ = nullptr;
    std::size_t index_ = 0;
    std::size_t end_ = 0;
  };
  struct NodeRange {
    const Graph* graph;
    std::size_t end_id;
    NodeIterator begin() const { return {graph, 0, end_id}; }
    NodeIterator end() const { return {graph, end_id, end_id}; }
  };
  NodeRange nodes() const { return {this, id_bound()}; }
  // The nodes that have regions, by id; costs nothing for the others.
  std::vector<NodeId> region_owners() const;

  // Inputs before users (controls count), otherwise in order of id: a graph whose ids already are in such an
  // order keeps it. Nodes on a cycle come in some order; `cycle`, if given, receives one cycle as a path
  // whose last node feeds its first, and stays empty if there is none. Linear.
  std::vector<NodeId> topological_order(std::vector<NodeId>* cycle = nullptr) const;

  // --- editing
  // Throws InvalidArgument for an empty or taken name.
  NodeId add(NodeInit init);
  // The base, or the base with the first free suffix: "add", "add_1", ... Amortised constant time.
  std::string unique_name(std::string_view base) const;
  void erase(NodeId id);
  void set_op(NodeId id, const OpDef& op);
  void set_input(NodeId id, std::size_t index, ValueId value);
  void set_inputs(NodeId id, std::span<const ValueId> inputs);
  void add_control(NodeId id, NodeId before);  // adds the edge once, however often it is called
  void set_controls(NodeId id, std::span<const NodeId> controls);
  void set_outputs(NodeId id, std::span<const TensorSpec> outputs);
  void set_attribute(NodeId id, std::string_view name, AttributeValue value);
  void remove_attribute(NodeId id, std::string_view name);
  void set_device(NodeId id, std::string_view device);
  void set_provenance(NodeId id, const Provenance& provenance);
  void rename(NodeId id, std::string name);  // throws InvalidArgument for a taken name
  Graph& region(NodeId id, std::size_t index);
  void add_parameter(NodeId id);
  void add_result(ValueId value);
  void set_parameters(std::vector<NodeId> parameters);
  void set_results(std::vector<ValueId> results);
  // Throws InvalidArgument for a taken name, an unknown shape, or an initial value of another spec.
  void declare_variable(VariableDecl decl) { parts_.variables.declare(std::move(decl)); }
  // Replaces the declaration of that name; its `copy_of` must stay the same. If the spec changes, copies get
  // the new spec too and start with the variable's initial value; the caller must change the nodes that use
  // it. Throws InvalidArgument for a copy whose spec differs from its original's, and as declare_variable().
  void redeclare_variable(VariableDecl decl) { parts_.variables.redeclare(std::move(decl)); }
  // Removes its copies too; the caller must change the nodes that use it. Throws InvalidArgument if there is
  // no such variable.
  void remove_variable(std::string_view name) { parts_.variables.remove(name); }
  // Renumbers in topological order without gaps. Returns the new id of each old one (invalid: erased).
  std::vector<NodeId> compact();
  StringId intern(std::string_view text) { return parts_.strings.add(text); }
  void reserve(std::size_t nodes);

  // Reserves `count` identities that no node has, and returns the first.
  static std::uint64_t new_identity(std::uint64_t count = 1);

 private:
  friend class Node;
  Node& slot(NodeId id) { return parts_.nodes[id.index()]; }
  const Node& slot(NodeId id) const { return parts_.nodes[id.index()]; }
  Node& at(NodeId id) {
    if (!contains(id)) [[unlikely]]
      throw_missing(id);
    return slot(id);
  }
  [[noreturn]] static void throw_missing(NodeId id);
  Node& append_slot();
  void keep_op(const OpDef& op);
  void reserve_name();
  void rebuild_name_index(std::size_t capacity);
  void adopt() noexcept;  // points every node at this graph
  static bool names_earlier(const Node& node);

  // Everything a graph holds. Copied and moved member by member, except that adopt() points the nodes at
  // their new graph.
  struct Parts {
    internal::ChunkedVector<Node> nodes;  // by id
    std::size_t live = 0;
    bool in_order = true;               // nodes come after the existing nodes they name; false: not known
    std::vector<NodeId> region_owners;  // by id; includes erased nodes until compaction
    internal::NumberTable names;        // ids of live nodes, by name
    std::vector<NodeId> parameters;
    std::vector<ValueId> results;
    internal::VariableTable variables;
    internal::InternedStrings strings;
    internal::InternedSites sites;
    mutable NameMap<std::uint32_t> next_suffix;  // for unique_name
    // Unregistered ops of nodes that are, or were, in this graph.
    std::unordered_map<const OpDef*, std::shared_ptr<const OpDef>> unknown_ops;
  };
  Parts parts_;
};

inline std::span<const Graph> Node::regions() const { return {regions_.data(), regions_.size()}; }

// All effects of a node, those of its regions' nodes included.
LOCKSTEP_API Effect effects_of(const Node& node);
// Variables that a node reads or writes, its regions' nodes included; sorted, each name once.
struct VariableUse {
  std::string name;
  bool reads = false;
  bool writes = false;
};
LOCKSTEP_API std::vector<VariableUse> variable_uses(const Node& node);
// The variables that the node itself updates, in the order of its outputs: the variable, then its slots, as
// OpTraits::Update lists them; of merged updates, those of each in turn. Empty for other nodes.
LOCKSTEP_API SmallVector<std::string, 1> updated_variables(const Node& node);
// The place of a node, for errors.
LOCKSTEP_API ErrorPlace place_of(const Node& node);
LOCKSTEP_API std::vector<TensorSpec> input_specs(const Graph& graph, const Node& node);
// A view of a node for its op's rules, over input specs that may be more precise than the graph's. A view:
// `inputs` and `variables` must outlive it.
LOCKSTEP_API NodeView view_of(const Node& node, std::span<const TensorSpec> inputs,
                              const NodeView::VariableSpecs& variables,
                              const NodeView::ShapeValues* shape_values = nullptr);
// The outputs that the op's inference rule gives. Throws InvalidArgument with the node's place. If
// `shape_values` is null, only the node's graph tells what shape operands hold.
LOCKSTEP_API SmallVector<TensorSpec, 1> infer_outputs(const Node& node, std::span<const TensorSpec> inputs,
                                                      const NodeView::VariableSpecs& variables,
                                                      const NodeView::ShapeValues* shape_values = nullptr);
// A lookup, for rules, of the specs of the variables that a graph declares. The graph must outlive it.
LOCKSTEP_API NodeView::VariableSpecs variable_specs(const Graph& outermost);

}  // namespace lockstep
