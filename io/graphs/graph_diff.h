// io/graphs/graph_diff.h - the differences between two graphs, node by node.
//
//   GraphDiff diff = diff_graphs(before, after);
//   if (!diff.same()) std::cerr << to_text(diff);
//
// Nodes are matched by identity if both graphs share an origin (one was made from the other, or both from a
// third: by passes, or through files that keep identities), so that renamed and moved nodes are recognised
// and nothing is guessed. Otherwise they are matched by name, regions included; GraphDiff::by says which.
// Identity 0 means none and matches nothing. Nodes of all levels are compared; one inside a region is called
// "loop{1}/x": node x in region 1 of the node loop.
//
// Ids, source lines and code inside lambdas do not count. Linear in the nodes of both. Thread safety: plain
// functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep {

enum class DiffBy : std::uint8_t { kIdentity, kName };

// What happened to a node that both graphs have. Several may hold.
struct NodeChange {
  std::string name;         // in the second graph
  std::string before;       // its name in the first
  bool op = false;          // another operation
  bool rewired = false;     // other inputs or control inputs, or its regions take or return other values
  bool attributes = false;  // added, removed or with other values
  bool moved = false;       // another device or replica
  bool specs = false;       // other outputs
  bool renamed() const { return name != before; }
  std::vector<std::string> details = {};  // one line each: "input 0: %x -> %copy"
};

// A node that only one of the graphs has.
struct OneSidedNode {
  std::string name;
  std::string text;  // "clip[high=1.0](%x) : f32[4] on "cpu:0" after(%y)", long parts shortened
  // "%x, by replicate, replica 1", if it stems from a node of the other graph; else empty.
  std::string from;
};

struct GraphDiff {
  DiffBy by = DiffBy::kName;
  std::vector<OneSidedNode> added;     // in the order of the second graph
  std::vector<OneSidedNode> removed;   // in the order of the first
  std::vector<NodeChange> changed;     // in the order of the second
  std::vector<std::string> interface;  // parameters, results and variables, one line for each difference
  std::size_t unchanged = 0;           // nodes
  bool same() const { return added.empty() && removed.empty() && changed.empty() && interface.empty(); }
};

LOCKSTEP_API GraphDiff diff_graphs(const Graph& before, const Graph& after);
// A summary, then a line or a few for each difference: '+' added, '-' removed, '~' changed, '*' the graph's
// interface.
LOCKSTEP_API std::string to_text(const GraphDiff& diff);

}  // namespace lockstep
