// graph/check/internal/verifier_rules.h - the rules of the verifier, and the data they work on.
//
// A rule is a small function over one node or over one graph (the outermost one or a region). The driver in
// graph/check/verifier.cpp walks all nodes once and asks every node rule about each, in the order of kRules;
// regions come before the node that holds them. To add a rule: a function here, a line in kRules, a paragraph
// in docs/graph_rules.md, a case in tests/invalid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/core/base/name_set.h"
#include "lockstep/core/base/small_vector.h"
#include "lockstep/graph/check/verifier.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/ir/internal/shape_values.h"

namespace lockstep::internal::verifier {

// The violations found, and the data that all rules share.
struct Run {
  const Graph& outermost;
  const Topology* topology;
  bool first_only;  // keep only the violation that comes first in the order of rules
  NodeView::VariableSpecs variables;
  const OpDef* placeholder;
  // Work that the search for paths may still do: keeps the whole check linear (see variable-order).
  std::size_t search_budget;

  struct Found {
    std::size_t rule;
    Violation violation;
  };
  std::vector<Found> found = {};
  std::size_t lowest = static_cast<std::size_t>(-1);  // lowest rule in `found`

  // Scratch that rules use again and again, so that no node costs an allocation.
  std::vector<TensorSpec> input_specs = {};
  std::vector<NodeId> node_ids = {};
  NameSet good_devices = {};
  const std::string* last_device = nullptr;  // the last good one, by address: a graph keeps each name once

  bool wants(std::size_t rule) const { return !first_only || rule < lowest; }
};

struct VariableAccess {
  std::string_view name;
  bool reads = false;
  bool writes = false;
};

struct GraphCheck {
  Run& run;
  const Graph& graph;
  const Node* holder;  // the node whose region this is; null for the outermost graph
  std::string path;    // "loop/body" for a region, else empty
  std::size_t rule = 0;
  bool sound = true;  // no graph rule broken so far

  // The contents of shape operands, for the rule infer; null until a node has one.
  std::unique_ptr<StaticElements> elements = nullptr;

  // The rule acyclic fills these in for the rules after it.
  std::vector<NodeId> order = {};
  bool cyclic = false;
  // Accesses to variables by the regions of a node, by node; only for nodes with regions.
  std::unordered_map<NodeId, std::vector<VariableAccess>> region_accesses = {};
  // Accesses to variables by the whole graph, each name once; the rule variable-order fills it in.
  std::vector<VariableAccess> accesses = {};

  void fail(const std::string& message);                       // at the graph
  void fail_at(const Node& node, const std::string& message);  // at one of its nodes
};

struct NodeCheck {
  Run& run;
  GraphCheck& graph_check;
  const Graph& graph;
  const Node& node;
  bool sound = true;          // no rule broken so far: later rules may rely on what earlier ones have checked
  bool regions_sound = true;  // parameters and results of all regions are what they should be
  std::size_t rule = 0;
  SmallVector<TensorSpec, 1> inferred = {};

  void fail(const std::string& message);
};

struct Rule {
  std::string_view name;
  void (*check_node)(NodeCheck&);    // null: it says nothing about single nodes
  void (*check_graph)(GraphCheck&);  // asked after all nodes; null: nothing about the graph
};
std::span<const Rule> rules();

// Appends the accesses to variables of a node itself, without those of its regions.
void add_own_accesses(const Node& node, std::vector<VariableAccess>& accesses);
// "then", "body", ...: what the regions of each kind are called.
std::string region_label(RegionKind kind, std::size_t index);

// --- over one node
void known_ops(NodeCheck& check);
void unique_names(NodeCheck& check);
void live_inputs(NodeCheck& check);
void control_inputs(NodeCheck& check);
void arity(NodeCheck& check);
void attributes(NodeCheck& check);
void region_count(NodeCheck& check);
void region_signature(NodeCheck& check);
void variables_declared(NodeCheck& check);
void infer(NodeCheck& check);
void output_count(NodeCheck& check);
void dtypes(NodeCheck& check);
void shapes(NodeCheck& check);
void device_known(NodeCheck& check);

// --- over one graph
void acyclic(GraphCheck& check);
void region_variables(GraphCheck& check);
void parameters(GraphCheck& check);
void results(GraphCheck& check);
void merge_calls(GraphCheck& check);
void variable_device_known(GraphCheck& check);
void variable_order(GraphCheck& check);

}  // namespace lockstep::internal::verifier
