// graph/passes/optimize.h - the general passes, in their standard order.
//
//   Program program = compile(optimize(b.finish()), runtime);
//
// The result computes the same bits from fewer and larger nodes: constant values are computed now, equal
// values once, unused values not at all, element-wise neighbours go over memory once, and an optimizer updates all variables
// in one call. A NaN stays a NaN, but its sign and payload may change: the processor chooses which of two NaNs an
// operation returns. On cards, which the topology tells of, attention is one node (passes/fuse_attention.h) and a product takes along
// what follows it (passes/fuse_products.h): both are rounded once instead of after each op. Take gradients first: they are built with the graph, and need to see the user's nodes.
//
// Throws VerifyError if the graph is invalid to begin with. Thread safety: as any function on values.
#pragma once

#include <cstdint>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/passes/constant_folding.h"
#include "lockstep/graph/passes/fuse_attention.h"
#include "lockstep/graph/passes/fuse_elementwise.h"
#include "lockstep/graph/passes/fuse_products.h"
#include "lockstep/graph/transform/pipeline.h"

namespace lockstep {

struct OptimizeOptions {
  ConstantFoldingOptions folding = {};
  // false: every node stays visible to observers and in profiles; products and attention are left as they are too.
  bool fuse = true;
  FuseAttentionOptions attention = {};
  FuseElementwiseOptions fusion = {};
  FuseProductsOptions products = {};
  // false: every update stays a node of its own.
  bool merge_updates = true;
  // Of the machine that the graph will run on (Runtime::topology()); null: CPUs.
  const Topology* topology = nullptr;
  // How the passes are checked: see graph/transform/pipeline.h.
  PipelineChecks checks = default_checks();
};

LOCKSTEP_API Graph optimize(Graph graph, const OptimizeOptions& options = {});
// The passes that optimize() runs, to run after others.
LOCKSTEP_API PassPipeline standard_passes(const OptimizeOptions& options = {});

}  // namespace lockstep
