// graph/ops/rules/internal/floating.h - shared by ops on floating values: the refusal of other dtypes, and a
// cost by elements.
#pragma once

#include <span>

#include "lockstep/core/error.h"
#include "lockstep/graph/ir/op.h"

namespace lockstep::internal {

// Fails unless input 0 holds floating values.
inline void require_floating(const InferContext& c) {
  if (!is_floating(c.input(0).dtype)) {
    NodeView::fail(str("takes floating values, got ", c.input(0), "; cast(x, DType::kF32) first"));
  }
}

// `work` operations for each element of input 0; all inputs are read and all outputs written once.
inline Cost cost_by_elements(const NodeView& node, std::span<const TensorSpec> outputs, double work) {
  Cost cost{work * static_cast<double>(node.input(0).shape.num_elements()), 0, 0};
  for (const TensorSpec& input : node.inputs()) cost.bytes += static_cast<double>(num_bytes(input));
  for (const TensorSpec& output : outputs) cost.bytes += static_cast<double>(num_bytes(output));
  return cost;
}

}  // namespace lockstep::internal
