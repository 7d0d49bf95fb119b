// graph/interpret/internal/evaluator.h - runs graphs and regions node by node on tensors.
//
// One Evaluator is one step: it reads and writes its own map of variables, which the caller commits or
// discards. The interpreter consists of nothing else.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/ir/kernel.h"

namespace lockstep::internal {

// By id: the nodes that the results, or the nodes that must run for their effects, depend on. All other nodes
// change nothing, not even the step counter.
std::vector<bool> live_nodes(const Graph& graph, std::span<const NodeId> topological_order);

// The topological orders of a graph and of all regions below it, computed once.
class GraphOrders {
 public:
  explicit GraphOrders(const Graph& graph);
  const std::vector<NodeId>& of(const Graph& graph) const { return orders_.at(&graph); }

 private:
  void add(const Graph& graph);
  void add_regions(const Node& node);
  std::unordered_map<const Graph*, std::vector<NodeId>> orders_;
};

class Evaluator {
 public:
  using Variables = std::map<std::string, Tensor>;

  // `orders` must outlive the evaluator and know every graph that is run.
  Evaluator(RunInfo info, NodeView::VariableSpecs specs, Variables variables, std::int64_t max_trips,
            const GraphOrders& orders)
      : info_(info),
        specs_(std::move(specs)),
        variables_(std::move(variables)),
        max_trips_(max_trips),
        orders_(&orders) {}

  // replica -1: nothing is replicated here. Errors carry the place of the inner node, with the original error
  // nested.
  std::vector<Tensor> run_graph(const Graph& graph, std::span<const Tensor> arguments, int replica);
  std::vector<Tensor> run_regions(const Node& node, std::span<const Tensor> inputs, int replica);
  Variables& variables() { return variables_; }

 private:
  std::vector<Tensor> run_node(const Node& node, std::span<const Tensor> inputs, int replica);
  std::vector<Tensor> run_while(const Node& node, std::span<const Tensor> inputs, int replica);
  std::vector<Tensor> run_replicated(const Node& node, std::span<const Tensor> inputs);

  RunInfo info_;
  NodeView::VariableSpecs specs_;
  Variables variables_;
  std::int64_t max_trips_;
  const GraphOrders* orders_;
};

}  // namespace lockstep::internal
