// graph/ir/internal/shape_values.h - the contents of shape operands.
//
// A shape operand (OpDef::shape_operands) follows from constants and from shapes of values by ops without
// effects, so that its contents are known as soon as shapes are: in part while a graph is built, in full once
// feeds have arrived. An operand that follows from anything else (a fed value, a variable, a random draw) is
// refused with InvalidArgument.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep::internal {

// The elements of an i32 or i64 tensor.
std::vector<std::int64_t> shape_elements(const Tensor& tensor);
// May a shape operand be derived through this node?
bool is_derivable(const Node& node);
// The elements of values as far as the graph alone determines them; elements not known yet are
// kUnknownElement. Through ops that move elements or work element by element, the other elements stay known;
// any other op with an unknown input element gives only unknown ones.
//
// Results are remembered, and the work is limited, since a graph from a file may ask for anything. Throws
// InvalidArgument beyond the limit.
class StaticElements {
 public:
  explicit StaticElements(const Graph& graph);
  ~StaticElements();
  StaticElements(const StaticElements&) = delete;
  StaticElements& operator=(const StaticElements&) = delete;
  const std::vector<std::int64_t>& of(ValueId value);
  // In the form that NodeView takes; this object and the node must outlive it.
  NodeView::ShapeValues for_node(const Node& node) {
    return [this, &node](std::size_t i) { return of(node.inputs()[i]); };
  }

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};
// The same, for one value.
std::vector<std::int64_t> static_elements(const Graph& graph, ValueId value);

// Contents of shape operands once every shape is known.
class HostValues {
 public:
  using SpecOf = std::function<const TensorSpec&(ValueId)>;
  HostValues(const Graph& graph, SpecOf spec_of) : graph_(graph), spec_of_(std::move(spec_of)) {}
  const Tensor& of(ValueId value);
  // All outputs of a node whose contents were asked for, directly or on the way to others; null if they were
  // not.
  const std::vector<Tensor>* find(NodeId node) const {
    const auto found = known_.find(node);
    return found == known_.end() ? nullptr : &found->second;
  }
  // In the form that NodeView takes; this object and the node must outlive it.
  NodeView::ShapeValues for_node(const Node& node) {
    return [this, &node](std::size_t i) { return shape_elements(of(node.inputs()[i])); };
  }

 private:
  const Graph& graph_;
  SpecOf spec_of_;
  std::unordered_map<NodeId, std::vector<Tensor>> known_;
};

// The shape as a tensor: i64[rank].
Tensor shape_tensor(const Shape& shape);

}  // namespace lockstep::internal
