// core/version.h - the version of Lockstep that these headers belong to.
//
// The build reads the three numbers from here: this is the only place where they are written.
#pragma once

#include <string_view>

#define LOCKSTEP_VERSION_MAJOR 0
#define LOCKSTEP_VERSION_MINOR 1
#define LOCKSTEP_VERSION_PATCH 0

#define LOCKSTEP_VERSION_TEXT_OF(major, minor, patch) #major "." #minor "." #patch
#define LOCKSTEP_VERSION_TEXT(major, minor, patch) LOCKSTEP_VERSION_TEXT_OF(major, minor, patch)

namespace lockstep {

inline constexpr std::string_view kVersion =
    LOCKSTEP_VERSION_TEXT(LOCKSTEP_VERSION_MAJOR, LOCKSTEP_VERSION_MINOR, LOCKSTEP_VERSION_PATCH);

}  // namespace lockstep
