// graph/passes/internal/attention_layout.h - attention reads and writes values as they lie, instead of transposed ones.
#pragma once

#include "lockstep/graph/transform/rewriter.h"

namespace lockstep::internal {

// Gives an `attention` node and the gradients that belong to it another layout, if that saves transposes; all nodes that are no
// longer read are erased.
void fold_layout(Rewriter& edit, NodeId attention);

}  // namespace lockstep::internal
