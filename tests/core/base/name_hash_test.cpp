// Tests: core/base/name_hash.h, core/base/name_hash.cpp
#include "lockstep/core/base/name_hash.h"

#include <bit>
#include <cstdint>
#include <set>
#include <string>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(NameHash, IsOneNumberForEqualNames) {
  const std::string name = "layer_1/dense/kernel";
  for (std::size_t size = 0; size <= name.size(); ++size) {
    const std::string copy(name, 0, size);
    EXPECT_EQ(hash_name(copy), hash_name(std::string_view(name).substr(0, size)));
  }
}

TEST(NameHash, DependsOnEachByteAndOnTheLength) {
  for (std::size_t size = 1; size < 70; ++size) {
    const std::string name(size, 'a');
    std::set<std::size_t> seen{hash_name(name), hash_name(name + 'a'), hash_name(name + '\0')};
    for (std::size_t i = 0; i < size; ++i) {
      std::string other = name;
      other[i] = 'b';
      seen.insert(hash_name(other));
    }
    EXPECT_EQ(seen.size(), size + 3) << size;
  }
}

// The index of a graph takes the low bits as the place, and the high ones to tell names apart.
TEST(NameHash, SpreadsNumberedNamesOverLowAndHighBits) {
  constexpr std::size_t kNames = 1U << 14U;
  std::set<std::size_t> low;
  std::set<std::size_t> high;
  for (std::size_t i = 0; i < kNames; ++i) {
    const std::size_t hash = hash_name("node_" + std::to_string(i));
    low.insert(hash % kNames);
    high.insert(hash >> 50U);
  }
  // Random numbers fill 1 - 1/e of as many places.
  EXPECT_GT(low.size(), kNames * 6 / 10);
  EXPECT_GT(high.size(), kNames * 6 / 10);
}

TEST(NameHash, ChangesHalfOfItsBitsWithOne) {
  std::size_t changed = 0;
  constexpr std::size_t kNames = 4096;
  for (std::size_t i = 0; i < kNames; ++i) {
    std::string name = "scope/node_" + std::to_string(i);
    const std::size_t before = hash_name(name);
    name.back() = static_cast<char>(name.back() ^ 1);
    changed += static_cast<std::size_t>(std::popcount(static_cast<std::uint64_t>(before ^ hash_name(name))));
  }
  EXPECT_NEAR(static_cast<double>(changed) / kNames, 32.0, 1.0);
}

TEST(NameMap, IsSearchedWithoutACopy) {
  NameMap<int> map;
  map["x"] = 1;
  EXPECT_EQ(map.find(std::string_view("x"))->second, 1);
  EXPECT_EQ(map.find(std::string_view("y")), map.end());
}

}  // namespace
}  // namespace lockstep
