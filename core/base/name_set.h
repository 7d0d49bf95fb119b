// core/base/name_set.h - a set of names from untrusted files (core/base/name_hash.h).
//
// Thread safety: as std::unordered_set.
#pragma once

#include <functional>
#include <string>
#include <unordered_set>

#include "lockstep/core/base/name_hash.h"

namespace lockstep {

using NameSet = std::unordered_set<std::string, NameHash, std::equal_to<>>;

}  // namespace lockstep
