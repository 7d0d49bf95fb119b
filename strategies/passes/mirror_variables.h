// strategies/passes/mirror_variables.h - a copy of each variable for every replica.
//
//   var @w                                  var @w
//   replicated[replicas=2] {        -->     var @"w/replica_1"    [device="cpu:1", copy_of=@w, replica=1]
//     read @w ... }                         replicated[replicas=2] { read @w ... }
//
// Every variable that a replicated region uses gets a copy for each replica except the first, whose copy is
// the variable itself. When a program is compiled, a copy starts with the value of the variable, whatever its
// initial value says: a broadcast, not a second initialisation. Nodes still name the variable; `replicate`
// gives each replica its own. Slots of optimizers are ordinary variables, so they get copies too.
// Synchronization and aggregation are copied: a copy that is synchronized on write is kept equal to the
// others (prove-sync proves it), one that is synchronized on read belongs to its replica.
//
// Option: devices, one per replica (none: copies are not placed). Linear. Changes nothing if every copy is there
// already, or there are no replicated regions. Thread safety: as any Pass.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

struct MirrorVariablesOptions {
  std::vector<std::string> devices = {};  // by replica; any spelling
};

LOCKSTEP_API std::unique_ptr<Pass> make_mirror_variables(MirrorVariablesOptions options = {});

}  // namespace lockstep
