// graph/passes/internal/summed_gradients.h - the gradients of a level, summed over replicas ahead of their updates.
#pragma once

#include <string_view>
#include <vector>

#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/transform/rewriter.h"
#include "lockstep/graph/transform/sync.h"

namespace lockstep::internal {

// The updates by gradients (OpTraits::Update::gradient) of a level.
struct GradientUpdates {
  std::vector<NodeId> common;  // of variables that replicas keep equal, or of a step that has no replicas
  std::vector<NodeId> own;     // of variables of which each replica has its own
  bool replicated = false;     // are there several replicas?
};
GradientUpdates gradient_updates(const SyncAnalysis& sync, const Graph& level);

// The updates of the list whose gradients are only one replica's share.
std::vector<NodeId> unsummed(const SyncAnalysis& sync, const Graph& level,
                             const std::vector<NodeId>& updates);

// Sums the operands of these updates over all replicas (all_reduce; rows and their numbers: all_gather).
void sum_shares(Rewriter& edit, const std::vector<NodeId>& updates);

}  // namespace lockstep::internal
