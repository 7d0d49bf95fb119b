// Tests: io/files/crc32c.cpp
#include "lockstep/io/files/crc32c.h"

#include <cstdint>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/io/files/internal/crc32c_table.h"

namespace lockstep {
namespace {

TEST(Crc32c, GivesThePublishedNumbers) {
  std::string ascending(32, '\0');
  for (std::size_t i = 0; i < ascending.size(); ++i) ascending[i] = static_cast<char>(i);
  const std::string descending(ascending.rbegin(), ascending.rend());
  const struct {
    std::string bytes;
    std::uint32_t sum;
  } cases[] = {
      {"", 0},
      {"123456789", 0xE3069283},
      // RFC 3720, appendix B.4.
      {std::string(32, '\0'), 0x8A9136AA},
      {std::string(32, '\xFF'), 0x62A8AB43},
      {ascending, 0x46DD794E},
      {descending, 0x113FDB5C},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(crc32c(c.bytes), c.sum);
    EXPECT_EQ(internal::crc32c_by_table(c.bytes), c.sum);
  }
}

TEST(Crc32c, IsTheSameByTableAndInPieces) {
  std::mt19937 random(7);
  std::string bytes(300, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  for (std::size_t begin = 0; begin < 9; ++begin) {  // every alignment
    for (std::size_t size = 0; begin + size <= bytes.size(); size += 1 + size / 8) {
      const std::string_view part = std::string_view(bytes).substr(begin, size);
      const std::uint32_t sum = crc32c(part);
      EXPECT_EQ(internal::crc32c_by_table(part), sum);
      EXPECT_EQ(crc32c(part.substr(size / 3), crc32c(part.substr(0, size / 3))), sum);
    }
  }
}

}  // namespace
}  // namespace lockstep
