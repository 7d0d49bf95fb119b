// graph/passes/merge_updates.h - updates of many variables by one op become one node.
//
//   g0 --> sgd @w0        g0 --> merged_updates { sgd @w0, sgd @w1 }
//   lr ----^          -->       ^
//   lr ----v                 lr-+
//   g1 --> sgd @w1        g1 ---+
//
// Each update is a call, on a card a launch, and a step has as many as variables. The merged node is one call, which a CPU
// splits by the elements of all variables together, and few launches on a card.
//
// Updates are merged if they are of one op, with equal attributes but for the variables, of one dtype, device and replica,
// and share their inputs but for the operand (learning rate, number of the step), if their variables live where they run, and
// if the kernel set of their device can do it (KernelDef::merge). They must be updates that a plan makes in the commit stage:
// nothing reads them or runs after them, they are outside of regions, write each variable as the only ones in the step, and
// read no variable that the step writes. So no path leads from one to another, and they need no more memory than before:
// their operands are kept until the commit anyway. What such an update runs after, the merged node does. Updates by rows
// (OpTraits::Update::indices) stay apart.
//
// Results keep their bits. split-updates is the way back, for passes that look at single updates. Linear.
// Thread safety: as any Pass.
#pragma once

#include <memory>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

LOCKSTEP_API std::unique_ptr<Pass> make_merge_updates();

}  // namespace lockstep
