// core/cluster/internal/node_list.h - lists of hosts as Slurm writes them.
//
//   expand_node_list("node[001,007-009],login2", "SLURM_STEP_NODELIST")  // node001 node007 node008 node009 login2
//
// Several brackets in one name multiply, the last one changing fastest. Numbers keep their leading zeros.
//
//   failure   InvalidArgument, which names the variable, for a list that is none and for more than 65536 hosts
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"

namespace lockstep::internal {

LOCKSTEP_API std::vector<std::string> expand_node_list(std::string_view list, std::string_view variable);

}  // namespace lockstep::internal
