// graph/passes/common_subexpression_elimination.h - computes equal things once.
//
//   x --+--> add --> y                x --+--> add --+--> y
//   w --+                       -->   w --+          |
//   w --+--> add' --> z                              +--> z
//   x --+
//
// Two nodes are equal when op, inputs, controls, attributes (bit by bit), output specs and device agree;
// inputs of a commutative op may be swapped. They must be pure, or draw random numbers by equal keys for the
// same replica: whatever reads or writes state stays. The node that comes first stays. Nodes with regions are
// left alone; inside a region its own nodes are compared. Linear.
// Thread safety: as any Pass.
#pragma once

#include <memory>

#include "lockstep/core/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

LOCKSTEP_API std::unique_ptr<Pass> make_common_subexpression_elimination();

}  // namespace lockstep
