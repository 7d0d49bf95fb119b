// graph/passes/recompute_checkpoints.h - gradients compute values again instead of keeping them.
//
//   x --> a --> b --> checkpoint --> c --> loss          x --> a --> b --> checkpoint --> c --> loss
//         |     |                            |                                               |
//         +-----+----> gradients <-----------+    -->    x --> a' --> b' --> gradients <-----+
//
// A value before a checkpoint() that gradient nodes (Provenance::gradient) read is computed once
// more for them, from the nearest checkpoints, feeds, variables and constants. So its memory is free from the
// end of the forward pass until then; the price is the forward work between checkpoints, once. The copies
// wait (control edges) for the gradient that needs them, and for all gradient nodes that read values after
// the next checkpoint: nothing else waits for the gradients of weights, so with several threads they would
// otherwise keep their inputs alive to the end. The control edges also keep common-subexpression-elimination
// from merging copies back. Values after the last checkpoint are needed at once and stay. Nodes with effects
// other than random draws are never repeated; a random op draws the same numbers again. Linear, except for
// control edges: each copy waits for every reader after the next checkpoint.
//
// Run it after gradients are taken and before fuse-elementwise. It leaves graphs without checkpoints alone.
// Thread safety: as any Pass.
#pragma once

#include <memory>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

LOCKSTEP_API std::unique_ptr<Pass> make_recompute_checkpoints();

}  // namespace lockstep
