// graph/passes/dead_node_elimination.h - erases nodes that nothing needs.
//
//   x --> a --> b        (nobody reads b)             x
//   x --> c --> result                          -->   x --> c --> result
//
// Needed nodes are the results, the parameters, every node that must run for its effects (must_run), and
// everything these read. A node that ran after an erased node now runs after that node's predecessors.
// Regions are cleaned too; their parameters stay. Linear.
// Thread safety: as any Pass.
#pragma once

#include <memory>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

LOCKSTEP_API std::unique_ptr<Pass> make_dead_node_elimination();

}  // namespace lockstep
