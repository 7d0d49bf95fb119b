// graph/passes/internal/attention_pattern.h - finds the nodes that together are attention, and its gradient.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/transform/rewriter.h"

namespace lockstep::internal {

struct AttentionPattern {
  ValueId q, k, v;
  std::optional<ValueId> mask;
  double scale = 1;
  std::optional<double> rate;
  std::int64_t key = 0;
  std::vector<NodeId> forward;  // all nodes that would be gone; the last one gives out
  // The same backward, if there is a gradient. The last nodes of each way give what flows into q, k and v; invalid: nothing does.
  std::vector<NodeId> backward;
  ValueId flow;  // into out
  NodeId dq, dk, dv;
};

// The attention that ends with this product; none: there is none, or something else reads what would be gone. It says nothing
// about devices, control edges and dtypes.
std::optional<AttentionPattern> find_attention(const Rewriter& edit, NodeId out);

}  // namespace lockstep::internal
