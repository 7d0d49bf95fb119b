// graph/ir/internal/shape_values.h - what shape operands hold.
//
// A shape operand (OpDef::shape_operands) follows from constants and from shapes of values by ops without
// effects, so that its contents are known as soon as shapes are: in part while a graph is built, in full once
// feeds have arrived. Whatever does not (a fed value, a variable, a random draw) is refused with
// InvalidArgument.
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
// May a shape operand follow from this node's inputs by way of it?
bool is_derivable(const Node& node);
// What the graph alone says of the elements of values; those not known yet are kUnknownElement. An unknown
// element stays one through ops that move elements or work element by element; other ops give nothing known
// then.
//
// It remembers what it has computed, and computes only so much: a graph from a file may ask for anything.
// Throws InvalidArgument beyond that.
class StaticElements {
 public:
  explicit StaticElements(const Graph& graph);
  ~StaticElements();
  StaticElements(const StaticElements&) = delete;
  StaticElements& operator=(const StaticElements&) = delete;
  const std::vector<std::int64_t>& of(ValueId value);
  // As NodeView asks for them; this and the node must outlive it.
  NodeView::ShapeValues for_node(const Node& node) {
    return [this, &node](std::size_t i) { return of(node.inputs()[i]); };
  }

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};
// Of one value.
std::vector<std::int64_t> static_elements(const Graph& graph, ValueId value);

// Contents of shape operands once every shape is known.
class HostValues {
 public:
  using SpecOf = std::function<const TensorSpec&(ValueId)>;
  HostValues(const Graph& graph, SpecOf spec_of) : graph_(graph), spec_of_(std::move(spec_of)) {}
  const Tensor& of(ValueId value);
  // All outputs of a node whose contents were asked for, directly or on the way to others; null where nobody
  // did.
  const std::vector<Tensor>* find(NodeId node) const {
    const auto found = known_.find(node);
    return found == known_.end() ? nullptr : &found->second;
  }
  // As NodeView asks for them; this and the node must outlive it.
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
