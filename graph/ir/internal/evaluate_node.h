// graph/ir/internal/evaluate_node.h - evaluates one node on tensors.
//
// The interpreter, the constant folder and nodes with regions run kernels through here: shapes are inferred
// again with what is known now, the op's CPU kernel is made, its shards run in order, then its finish.
// Compiled programs cut the work in the same places, which is why results agree to the bit.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/tensor.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/ir/kernel.h"
#include "lockstep/graph/ir/op.h"

namespace lockstep::internal {

// The outputs that an op's rule gives for a node about to be made; `declared` are the specs that its maker
// states. Throws InvalidArgument for a wrong number of inputs, and whatever the rule throws.
LOCKSTEP_API SmallVector<TensorSpec, 1> infer_new(const OpDef& op, std::string_view name,
                                                  std::span<const TensorSpec> inputs,
                                                  const std::vector<Attribute>& attributes,
                                                  std::span<const Graph> regions,
                                                  const NodeView::VariableSpecs& variables,
                                                  std::span<const TensorSpec> declared,
                                                  const NodeView::ShapeValues* shape_values = nullptr);

struct EvalContext {
  RunInfo run;
  int replica = 0;
  const NodeView::VariableSpecs* variables = nullptr;
  // The current values of the variables that the node itself reads or updates.
  std::span<const Tensor> state = {};
};

// Is this a pure node whose outputs are all empty? It has nothing to compute, and its kernel is not called:
// for f32[n,0] it might walk n rows to find nothing in each.
bool gives_nothing(const Node& node, std::span<const TensorSpec> outputs);

// The node's outputs for these inputs. For a node without regions; placeholders have no value of their own.
// Throws what the op's rule or kernel throws, and Error(kUnimplemented) if there is no CPU kernel; the caller
// adds the place.
LOCKSTEP_API std::vector<Tensor> evaluate(const Node& node, std::span<const Tensor> inputs,
                                          const EvalContext& context);

}  // namespace lockstep::internal
