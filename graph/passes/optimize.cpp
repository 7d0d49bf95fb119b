// graph/passes/optimize.cpp - the general passes, in their standard order.
#include "lockstep/graph/passes/optimize.h"

#include "lockstep/graph/passes/common_subexpression_elimination.h"
#include "lockstep/graph/passes/dead_node_elimination.h"
#include "lockstep/graph/passes/identity_removal.h"
#include "lockstep/graph/passes/merge_updates.h"
#include "lockstep/graph/passes/recompute_checkpoints.h"

namespace lockstep {

PassPipeline standard_passes(const OptimizeOptions& options) {
  PassPipeline passes;
  // While checkpoint markers are still there, and before equal nodes are merged.
  passes.add(make_recompute_checkpoints());
  // Identities go next: they make a value look like another one to all passes that follow.
  passes.add(make_identity_removal());
  // Folding makes constants, some of them equal, which the next pass merges together with the nodes that read
  // them.
  passes.add(make_constant_folding(options.folding));
  passes.add(make_common_subexpression_elimination());
  // Both leave nodes that nothing reads. A dead reader would turn a value inside a group into an output of
  // it.
  passes.add(make_dead_node_elimination());
  if (options.fuse) {
    // Attention first: the next passes would take parts of it.
    passes.add(make_fuse_attention(options.attention));
    // Products next: a bias or a relu beside one costs nothing there.
    passes.add(make_fuse_products(options.products));
    // The passes above do not look into what this one and the next make.
    passes.add(make_fuse_elementwise(options.fusion));
  }
  if (options.merge_updates) passes.add(make_merge_updates());
  return passes;
}

Graph optimize(Graph graph, const OptimizeOptions& options) {
  PassContext context{options.topology};
  standard_passes(options).run(graph, context, {.verify = options.checks});
  return graph;
}

}  // namespace lockstep
