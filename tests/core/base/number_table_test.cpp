// Tests: core/base/number_table.h
#include "lockstep/core/base/number_table.h"

#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep::internal {
namespace {

constexpr std::uint32_t kNone = NumberTable::kNone;

TEST(NumberTable, FindsNothingBeforeThereIsRoom) {
  const NumberTable table;
  EXPECT_FALSE(table.has_room());
  EXPECT_EQ(table.find(7, [](std::uint32_t) { return true; }), kNone);
}

TEST(NumberTable, TellsKeysOfOneHashApart) {
  NumberTable table;
  table.reset(3);
  for (const std::size_t number : {0U, 1U, 2U}) table.insert(42, number);
  for (const std::uint32_t number : {0U, 1U, 2U})
    EXPECT_EQ(table.find(42, [&](std::uint32_t one) { return one == number; }), number);
  table.erase(42, 1);
  EXPECT_EQ(table.find(42, [](std::uint32_t one) { return one == 1; }), kNone);
  EXPECT_EQ(table.find(42, [](std::uint32_t one) { return one == 2; }), 2U)
      << "behind the one that was erased";
}

TEST(NumberTable, IsEmptyOnceItWasMoved) {
  NumberTable table;
  table.reset(1);
  table.insert(5, 9);
  const NumberTable copy = table;
  const NumberTable moved = std::move(table);
  const auto any = [](std::uint32_t) { return true; };
  EXPECT_EQ(copy.find(5, any), 9U);
  EXPECT_EQ(moved.find(5, any), 9U);
  EXPECT_EQ(table.find(5, any), kNone);  // NOLINT(bugprone-use-after-move): it is empty
  EXPECT_FALSE(table.has_room());
}

// Against std::unordered_map, with hashes that often clash.
TEST(NumberTable, HoldsWhatAMapHolds) {
  std::mt19937 random(3);  // NOLINT(cert-msc51-cpp): the same each time
  NumberTable table;
  std::unordered_map<std::uint32_t, std::uint32_t> numbers;  // by key
  std::vector<std::uint32_t> keys;                           // by number
  const auto hash = [](std::uint32_t key) { return (std::uint64_t{key % 7} << 40U) | (key % 13); };
  for (int i = 0; i < 5000; ++i) {
    const auto key = static_cast<std::uint32_t>(random() % 300);
    const std::uint32_t found =
        table.find(hash(key), [&](std::uint32_t number) { return keys[number] == key; });
    const auto expected = numbers.find(key);
    ASSERT_EQ(found, expected == numbers.end() ? kNone : expected->second);
    if (found != kNone) {
      table.erase(hash(key), found);
      numbers.erase(expected);
      continue;
    }
    if (!table.has_room()) {
      table.reset(2 * (numbers.size() + 1));
      for (const auto& [held, number] : numbers) table.insert(hash(held), number);
    }
    keys.push_back(key);
    table.insert(hash(key), keys.size() - 1);
    numbers.emplace(key, static_cast<std::uint32_t>(keys.size() - 1));
  }
  table.renumber([](std::uint32_t number) { return number + 10'000; });
  for (const auto& [key, number] : numbers) {
    const std::uint32_t wanted = number + 10'000;
    EXPECT_EQ(table.find(hash(key), [&](std::uint32_t one) { return one == wanted; }), wanted);
  }
}

}  // namespace
}  // namespace lockstep::internal
