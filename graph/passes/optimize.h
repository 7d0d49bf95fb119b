// graph/passes/optimize.h - the general passes, in their standard order.
//
//   Program program = compile(optimize(b.finish()), runtime);
//
// The result computes the same bits from fewer and larger nodes: what never changes is computed now, what is
// equal once, what nobody needs not at all, and element-wise neighbours go over memory once. A NaN stays a NaN,
// but its sign and payload may change: which of two NaNs an operation gives is the processor's choice. Gradients
// come first: they are built with the graph, and see the user's nodes.
//
// Throws VerifyError where the graph is broken to begin with. Thread safety: as any function on values.
#pragma once

#include <cstdint>

#include "lockstep/core/export.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/passes/constant_folding.h"
#include "lockstep/graph/passes/fuse_elementwise.h"
#include "lockstep/graph/transform/pipeline.h"

namespace lockstep {

struct OptimizeOptions {
  ConstantFoldingOptions folding = {};
  // false: every node stays visible to observers and in profiles.
  bool fuse = true;
  FuseElementwiseOptions fusion = {};
  // Where the graph will run; null: on CPUs.
  const Runtime* runtime = nullptr;
  // How the passes are checked: see graph/transform/pipeline.h.
  PipelineChecks checks = default_checks();
};

LOCKSTEP_API Graph optimize(Graph graph, const OptimizeOptions& options = {});
// The passes that optimize() runs, to run after others.
LOCKSTEP_API PassPipeline standard_passes(const OptimizeOptions& options = {});

}  // namespace lockstep
