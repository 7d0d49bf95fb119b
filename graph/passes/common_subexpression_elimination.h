// graph/passes/common_subexpression_elimination.h - computes equal things once.
//
//   x --+--> add --> y                x --+--> add --+--> y
//   w --+                       -->   w --+          |
//   w --+--> add' --> z                              +--> z
//   x --+
//
// Two nodes are equal if op, inputs, controls, attributes (bit by bit), output specs and device agree; inputs
// of a commutative op may be swapped. They must be pure, or draw random numbers by equal keys for the same
// replica: nodes that read or write state stay. Of equal nodes the first stays. Nodes with regions are left
// alone; the nodes inside a region are compared with each other. Linear.
// Thread safety: as any Pass.
#pragma once

#include <memory>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

LOCKSTEP_API std::unique_ptr<Pass> make_common_subexpression_elimination();

}  // namespace lockstep
