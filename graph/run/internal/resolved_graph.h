// graph/run/internal/resolved_graph.h - which nodes of a graph run, and on which shapes, once the feeds'
// shapes are known.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/ir/internal/shape_values.h"

namespace lockstep::internal {

class ResolvedGraph {
 public:
  // Blocks of specs with stable addresses.
  using SpecBlocks = std::vector<std::unique_ptr<TensorSpec[]>>;

  // Adds the specs of all live values to `kept`; all arguments but `feeds` must outlive this object.
  // Throws InvalidArgument if shapes do not fit, or stay unknown.
  ResolvedGraph(const Graph& graph, std::span<const TensorSpec> feeds,
                const NodeView::VariableSpecs& variables, SpecBlocks& kept);
  ResolvedGraph(const ResolvedGraph&) = delete;
  ResolvedGraph& operator=(const ResolvedGraph&) = delete;

  const Graph& graph() const { return graph_; }
  const std::vector<NodeId>& order() const { return order_; }  // topological
  bool is_live(NodeId id) const { return live_[id.index()]; }
  // False if nothing needs the node's contents: it is used only for its shape, or only as a shape operand,
  // which the plan computes.
  bool runs(NodeId id) const { return runs_[id.index()]; }

  const TensorSpec& spec_of(ValueId value) const { return specs_[value.node.index()][value.output]; }
  std::span<const TensorSpec> outputs_of(const Node& node) const {
    return {specs_[node.id().index()], node.outputs().size()};
  }
  // The contents of shape operands.
  HostValues& host_values() { return host_values_; }

  static bool is_shape_operand(const Node& node, std::size_t input);
  // Does the node need this input to be computed when it runs?
  static bool reads_contents(const Node& node, std::size_t input);
  // Is output 0 the memory of input 0?
  bool is_alias(const Node& node) const;

 private:
  void find_running();
  void resolve_shapes(std::span<const TensorSpec> feeds, const NodeView::VariableSpecs& variables,
                      SpecBlocks& kept);
  SmallVector<TensorSpec, 1> infer(const Node& node, std::span<const TensorSpec> inputs,
                                   const NodeView::VariableSpecs& variables);

  const Graph& graph_;
  std::vector<NodeId> order_;
  std::vector<bool> live_;
  std::vector<bool> runs_;
  std::vector<const TensorSpec*> specs_;  // by node
  HostValues host_values_;
};

}  // namespace lockstep::internal
