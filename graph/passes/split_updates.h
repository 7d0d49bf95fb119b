// graph/passes/split_updates.h - merged updates become nodes of their own again.
//
//   merged_updates { sgd @w0, sgd @w1 }    -->    sgd @w0,  sgd @w1
//
// The way back from merge-updates, for passes that look at single updates: insert-all-reduce, clip-by-global-norm and
// accumulate-gradients, for example; enter-replicas runs it first. Each update gets the device of the merged node, and runs
// after what that ran after, except for nodes that only use variables, and none of its own. What ran after the merged node
// runs after all of them. Regions are included. Linear. Thread safety: as any Pass.
#pragma once

#include <memory>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

LOCKSTEP_API std::unique_ptr<Pass> make_split_updates();

}  // namespace lockstep
