// Tests: core/read_limits.h
#include "lockstep/core/read_limits.h"

#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace lockstep
