// io/drawings/graph_view.h - a graph, or several states of one, folded so that it can be drawn.
//
//   const GraphView view(graph);
//   for (const ViewNode& node : view.nodes()) ...        // boxes, in a tree of scopes: view.scopes()
//
// What to_dot, to_html and to_model_explorer_json draw:
//   scopes     the tree of name scopes ("encoder/layer_0/matmul" lies in encoder, layer_0). The nodes of a region lie in a
//              scope named like the node that holds it. A scope with one thing in it is left out, its name kept.
//   replicas   equal nodes of several replicas are one box. They are equal if op, specs, attributes and
//              inputs are, replica by replica, and their names differ only in the replica. A `replicated`
//              node is shown as its region's nodes, times its number of replicas, so that a step looks alike
//              before and after it is replicated.
//   layers     sibling scopes of one structure (layer_0 ... layer_11) are one scope.
//   parts      a scope with very many things in it is cut into parts, in topological order.
//   stages     for several states of one graph (before and after, one per pass) the view holds the union:
//              each box says in which stages it is there, and how it changed. This follows from the
//              identities that nodes keep (Provenance), renamed nodes included, if two stages share an
//              origin; else from names, as with graphs from text files, which keep no identities.
//              compared_by() says which.
//
// Linear in nodes and edges of all stages, but for sorting. Broken graphs (nodes that read erased ones) can
// be viewed. The graphs must outlive the view, unchanged. Thread safety: constant after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/io/graphs/graph_diff.h"

namespace lockstep {

namespace internal {
class ViewMaker;
class ViewFolder;
}  // namespace internal

struct ViewOptions {
  bool fold_replicas = true;       // off: every replica by itself, replicated regions as scopes
  bool fold_layers = true;         // off: every scope by itself
  std::size_t max_children = 100;  // of a scope, before it is cut into parts; 0: never cut
};

// One state of a graph.
struct ViewStage {
  std::string name;  // "before", "insert-all-reduce"
  const Graph* graph = nullptr;
};

// The kind of a box, for marking it.
enum class ViewKind : std::uint8_t {
  kCompute,
  kParameter,
  kConstant,
  kRead,        // of a variable
  kUpdate,      // of a variable
  kCollective,  // joins replicas
  kCopy,        // moves a value from one device to another
  kRegions,     // holds graphs
};
LOCKSTEP_API std::string_view to_string(ViewKind kind);  // "compute", "parameter", ...

// How a box changed from the stage before to this one.
enum class ViewChange : std::uint8_t {
  kNone,     // nothing, or there is no stage before
  kAdded,    // it is new
  kRewired,  // the same nodes read other values, or run after others
  kChanged,  // the same nodes have other attributes or specs, another device or name
  kRemade,   // other nodes stand in its place: cloned, fewer or more of them
};
LOCKSTEP_API std::string_view to_string(ViewChange change);  // "none", "added", ...

// The nodes of a box in one stage.
struct ViewAppearance {
  std::uint32_t stage = 0;
  ViewChange change = ViewChange::kNone;
  std::uint64_t copies = 1;        // replicas that it stands for
  std::vector<const Node*> nodes;  // one per replica; one for all replicas of a replicated region
  std::string name = {};           // in this stage, if it differs from the box's
};

struct LOCKSTEP_API ViewNode {
  std::string name;   // "encoder/layer_0/matmul": of the first replica and stage, regions' scopes included
  std::string label;  // the part of the name inside its scope
  const OpDef* op = nullptr;
  ViewKind kind = ViewKind::kCompute;
  std::uint32_t scope = 0;
  std::uint32_t drawn_as = 0;               // itself, or its twin in the scope that its own is folded into
  std::uint64_t stages = 0;                 // bit s: it is there in stage s
  bool result = false;                      // of the outermost graph, in some stage
  std::vector<ViewAppearance> appearances;  // by stage

  const ViewAppearance* at(std::size_t stage) const;  // null: not there
  const ViewAppearance& last() const { return appearances.back(); }
};

struct ViewScope {
  static constexpr std::uint32_t kNoHolder = 0xFFFFFFFFU;
  std::string name;   // "encoder/layer_0"; empty for the root
  std::string label;  // the part of the name inside its parent
  std::uint32_t parent = 0;
  std::uint32_t depth = 0;            // 0 for the root
  std::vector<std::uint32_t> scopes;  // drawn in it, in order
  std::vector<std::uint32_t> nodes;   // drawn in it, in order
  // Names of the scopes that it stands for, itself first; empty: only itself.
  std::vector<std::string> copies;
  std::uint32_t holder = kNoHolder;  // the box whose regions it shows
  bool chained = false;              // these copies feed one another
  bool part = false;                 // not a scope of names: one of the parts of its parent
  std::vector<std::size_t> sizes;    // by stage: nodes in it, replicas and copies counted
  std::uint64_t stages = 0;
};

// A data edge per output, or a control edge, between boxes. Between copies of one scope there is none.
struct ViewEdge {
  std::uint32_t from = 0, to = 0;  // places in nodes()
  std::uint32_t output = 0;        // of `from`
  bool control = false;
  std::uint64_t stages = 0;
};

class LOCKSTEP_API GraphView {
 public:
  static constexpr std::size_t kMaxStages = 48;

  explicit GraphView(const Graph& graph, const ViewOptions& options = {});
  explicit GraphView(Graph&&, const ViewOptions& = {}) = delete;  // the graph would be gone
  // Throws InvalidArgument if there is no stage, if there are more than kMaxStages, or if one has no graph.
  GraphView(std::vector<ViewStage> stages, const ViewOptions& options = {});

  const std::vector<ViewStage>& stages() const { return stages_; }
  // Nodes in scopes that are folded into others (drawn_as is another node) are in no scope's list, and have
  // no edges.
  const std::vector<ViewNode>& nodes() const { return nodes_; }
  const std::vector<ViewScope>& scopes() const {
    return scopes_;
  }                                                              // [0] is the root; parents before children
  const std::vector<ViewEdge>& edges() const { return edges_; }  // sorted

  // How this stage and the one before were compared; the first stage counts as compared by identity.
  DiffBy compared_by(std::size_t stage) const { return compared_by_[stage]; }
  // "f32[?,784]": what flows along a data edge in this stage, or empty.
  std::string spec_of(const ViewEdge& edge, std::size_t stage) const;
  // The child scope of `ancestor` that a box lies in; kHere if it lies in `ancestor` itself; else kElsewhere.
  static constexpr std::uint32_t kHere = 0xFFFFFFFFU, kElsewhere = 0xFFFFFFFEU;
  std::uint32_t child_of(std::uint32_t ancestor, std::uint32_t node) const;

 private:
  friend class internal::ViewMaker;
  friend class internal::ViewFolder;
  std::vector<ViewStage> stages_;
  std::vector<DiffBy> compared_by_;  // by stage
  std::vector<ViewNode> nodes_;
  std::vector<ViewScope> scopes_;
  std::vector<ViewEdge> edges_;
};

}  // namespace lockstep
