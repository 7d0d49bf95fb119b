// graph/run/internal/variable_stages.h - when the variables of a step are written.
//
// An update whose result nothing else in the step uses runs in the commit stage, in place. Any other update
// writes a shadow, which later reads see and which the commit stage copies.
#pragma once

#include <map>
#include <string>

#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/run/internal/resolved_graph.h"

namespace lockstep::internal {

struct VariableStage {
  bool written = false;
  NodeId in_commit;  // the only update, if it waits for the commit stage; else invalid
};

struct VariableStages {
  std::map<std::string, VariableStage> variables;  // the ones the step uses
  bool draws_random = false;
  bool commits = false;  // writes variables or draws random numbers
};
VariableStages find_variable_stages(const ResolvedGraph& resolved);

}  // namespace lockstep::internal
