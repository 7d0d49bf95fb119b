// Tests: core/version.h
#include "lockstep/core/version.h"

#include <string>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Version, TextIsTheThreeNumbers) {
  EXPECT_EQ(kVersion, std::to_string(LOCKSTEP_VERSION_MAJOR) + "." + std::to_string(LOCKSTEP_VERSION_MINOR) +
                          "." + std::to_string(LOCKSTEP_VERSION_PATCH));
}

}  // namespace
}  // namespace lockstep
