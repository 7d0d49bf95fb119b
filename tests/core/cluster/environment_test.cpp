// Tests: core/cluster/environment.cpp
#include "lockstep/core/cluster/environment.h"

#include <cstdlib>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Environment, IsTheProcesses) {
  ASSERT_EQ(setenv("LOCKSTEP_TEST_OF_ENVIRONMENT", "a=b", 1), 0);
  ASSERT_EQ(setenv("LOCKSTEP_TEST_OF_NOTHING", "", 1), 0);
  const Environment now = process_environment();
  EXPECT_EQ(now.at("LOCKSTEP_TEST_OF_ENVIRONMENT"), "a=b");
  EXPECT_EQ(now.at("LOCKSTEP_TEST_OF_NOTHING"), "");
  ASSERT_EQ(unsetenv("LOCKSTEP_TEST_OF_ENVIRONMENT"), 0);
  EXPECT_FALSE(process_environment().contains("LOCKSTEP_TEST_OF_ENVIRONMENT"));
}

}  // namespace
}  // namespace lockstep
