// Tests: core/kernels/random.cpp
#include "lockstep/core/random.h"

#include <set>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Philox, GivesThePublishedKnownAnswers) {
  EXPECT_EQ(Philox::generate({0, 0, 0, 0}, {0, 0}),
            (Philox::Block{0x6627E8D5U, 0xE169C58DU, 0xBC57AC4CU, 0x9B00DBD8U}));
  EXPECT_EQ(
      Philox::generate({0xFFFFFFFFU, 0xFFFFFFFFU, 0xFFFFFFFFU, 0xFFFFFFFFU}, {0xFFFFFFFFU, 0xFFFFFFFFU}),
      (Philox::Block{0x408F276DU, 0x41C83B0EU, 0xA20BC7C6U, 0x6D5451FDU}));
  EXPECT_EQ(
      Philox::generate({0x243F6A88U, 0x85A308D3U, 0x13198A2EU, 0x03707344U}, {0xA4093822U, 0x299F31D0U}),
      (Philox::Block{0xD16CFE09U, 0x94FDCCEBU, 0x5001E420U, 0x24126EA1U}));
}

TEST(Philox, UnitNumbersLieInTheHalfOpenInterval) {
  EXPECT_EQ(Philox::to_unit_float(0), 0.F);
  EXPECT_EQ(Philox::to_unit_float(0x80000000U), 0.5F);
  EXPECT_EQ(Philox::to_unit_float(0xFFFFFFFFU), 1.F - 0x1p-24F);
  EXPECT_EQ(Philox::to_unit_double(0, 0), 0.0);
  EXPECT_EQ(Philox::to_unit_double(0x80000000U, 0), 0.5);
  EXPECT_EQ(Philox::to_unit_double(0xFFFFFFFFU, 0xFFFFFFFFU), 1.0 - 0x1p-53);
  EXPECT_EQ(Philox::to_unit_double(0, 1U << 11U), 0x1p-53) << "the low word counts";
}

TEST(RandomStream, TheSamePlaceGivesTheSameBits) {
  constexpr RandomStream stream{.seed = 1, .key = 2, .replica = 3, .step = 4};
  constexpr Philox::Block block = stream.block(5);
  EXPECT_EQ(block, (RandomStream{.seed = 1, .key = 2, .replica = 3, .step = 4}.block(5)));
}

TEST(RandomStream, EveryPartOfThePlaceMatters) {
  std::set<Philox::Block> blocks;
  std::size_t places = 0;
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    for (std::uint64_t key = 0; key < 3; ++key) {
      for (std::uint32_t replica = 0; replica < 3; ++replica) {
        for (std::uint64_t step = 0; step < 3; ++step) {
          for (const std::uint64_t index : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32U}) {
            blocks.insert(
                RandomStream{.seed = seed, .key = key, .replica = replica, .step = step}.block(index));
            ++places;
          }
        }
      }
    }
  }
  EXPECT_EQ(blocks.size(), places);
}

}  // namespace
}  // namespace lockstep
