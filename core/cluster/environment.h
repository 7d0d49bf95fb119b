// core/cluster/environment.h - variables of the environment as a value.
//
//   const Environment now = process_environment();
//   const Environment recorded = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}};
//
// Thread safety: process_environment() while no thread changes the environment.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "lockstep/core/base/export.h"

namespace lockstep {

using Environment = std::map<std::string, std::string, std::less<>>;

// What this process was started with, and has set since. Of a name that is there twice the first counts, as for getenv().
LOCKSTEP_API Environment process_environment();

}  // namespace lockstep
