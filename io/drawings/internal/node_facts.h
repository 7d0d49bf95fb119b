// io/drawings/internal/node_facts.h - facts about a node that dumps show, besides its place in the graph.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/transform/sync.h"
#include "lockstep/strategies/proof/congruence.h"

namespace lockstep::internal {

// The value of an attribute as short text: a large tensor is described, a long text is cut off.
std::string short_text(const AttributeValue& value);

// Facts about the nodes of one graph, its regions included, that need the whole graph. The graph must outlive
// this.
class NodeFacts {
 public:
  explicit NodeFacts(const Graph& outermost);

  // "mirrored", "per replica", "mixed" (several outputs), or "" if the node belongs to no replica.
  std::string_view replication(const Node& node) const;
  // Estimated work of one run; absent for nodes with regions, and if the op's model needs more than specs.
  struct Work {
    Cost cost;
    bool unknown = false;  // unknown dimensions were counted as 1
  };
  std::optional<Work> work(const Node& node) const;

 private:
  void add_level(const Graph& level, const LevelClasses& classes);

  NodeView::VariableSpecs variables_;
  std::optional<SyncAnalysis> sync_;
  std::optional<Congruence> congruence_;
  std::unordered_map<const Graph*, std::pair<const LevelClasses*, std::vector<ReplicaKind>>> levels_;
};

// "model.cpp:42", or empty.
std::string site_text(const Node& node);

}  // namespace lockstep::internal
