// strategies/passes/allow_drift.h - lets the copies of some variables drift apart.
//
//   var @w        -->     var @w [synchronization=on_read]
//
// A variable that may drift is synchronized on read and has no aggregation: each replica has its own copy and
// changes it by its own gradient, and nothing is concluded from copies being equal. All analyses and passes
// know such variables, so the declaration is all that drifting needs (docs/decisions/0008). Run it before
// insert-all-reduce.
//
// Options: variables, by name; their copies are declared along with them. A name that the graph does not
// declare is an error, unless strict=false: it may belong to another step. Changes only declarations. Linear.
// Thread safety: as any Pass.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

struct AllowDriftOptions {
  std::vector<std::string> variables = {};
  bool strict = true;
};

LOCKSTEP_API std::unique_ptr<Pass> make_allow_drift(AllowDriftOptions options);

}  // namespace lockstep
