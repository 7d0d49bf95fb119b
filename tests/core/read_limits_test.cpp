// Tests: core/read_limits.h, core/read_limits.cpp
#include "lockstep/core/read_limits.h"

#include <cstdint>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kAll = std::numeric_limits<std::uint64_t>::max();

TEST(ReadLimits, GrowWithTheFile) {
  EXPECT_EQ(ReadLimits().memory_for(0), 64U << 20U);
  EXPECT_EQ(ReadLimits().memory_for(1000), (64U << 20U) + 4000U);
  EXPECT_EQ((ReadLimits{.base_bytes = 10, .bytes_per_byte = 0}).memory_for(1U << 20U), 10U);
}

TEST(ReadLimits, NeverOverflow) {
  EXPECT_EQ(ReadLimits().memory_for(kAll), kAll);
  EXPECT_EQ(ReadLimits().memory_for(kAll / 4), kAll);
  EXPECT_EQ(ReadLimits::unlimited().memory_for(0), kAll);
  EXPECT_EQ(ReadLimits::unlimited().memory_for(1), kAll);
}

TEST(ReadBudget, RefusesWhatIsNotLeftAndSaysHowToRaiseIt) {
  ReadBudget budget({.base_bytes = 100, .bytes_per_byte = 2}, 10);
  budget.take(100, "a tensor");
  EXPECT_EQ(budget.left(), 20U);
  try {
    budget.take(21, "a tensor");
    FAIL() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.message(),
                testing::AllOf(testing::HasSubstr("more than 120 bytes"), testing::HasSubstr("a tensor"),
                               testing::HasSubstr("ReadLimits::base_bytes")));
  }
  budget.take(20, "what was left");
}

}  // namespace
}  // namespace lockstep
