// Tests: core/base/chunked_vector.h
#include "lockstep/core/base/chunked_vector.h"

#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace lockstep::internal {
namespace {

ChunkedVector<std::string> numbered(std::size_t size) {
  ChunkedVector<std::string> made;
  for (std::size_t i = 0; i < size; ++i) made.emplace_back() = std::to_string(i);
  return made;
}

TEST(ChunkedVector, KeepsElementsWhereTheyAre) {
  ChunkedVector<std::string> list;
  std::string& first = list.emplace_back();
  first = "first";
  for (int i = 0; i < 1000; ++i) list.emplace_back();
  EXPECT_EQ(&list[0], &first);
  EXPECT_EQ(list.size(), 1001U);
  // Also those of a copy whose last chunk is not full.
  ChunkedVector<std::string> copy = list;
  const std::string* last = &copy[1000];
  copy.emplace_back();
  EXPECT_EQ(&copy[1000], last);
  EXPECT_EQ(copy[0], "first");
}

TEST(ChunkedVector, IsEmptyOnceItWasMoved) {
  ChunkedVector<std::string> list = numbered(20);
  ChunkedVector<std::string> moved = std::move(list);
  EXPECT_EQ(list.size(), 0U);  // NOLINT(bugprone-use-after-move): it is empty
  EXPECT_EQ(moved[19], "19");
  list = std::move(moved);
  EXPECT_EQ(list[19], "19");
  EXPECT_EQ(moved.size(), 0U);  // NOLINT(bugprone-use-after-move)
  moved.emplace_back() = "again";
  EXPECT_EQ(moved[0], "again");
}

TEST(ChunkedVector, DropsTheLastElements) {
  for (const std::size_t kept : {0U, 1U, 7U, 8U, 9U, 23U, 24U, 25U, 100U}) {
    ChunkedVector<std::string> list = numbered(100);
    list.truncate(kept);
    ASSERT_EQ(list.size(), kept);
    if (kept > 0) {
      EXPECT_EQ(list[kept - 1], std::to_string(kept - 1));
    }
    list.emplace_back() = "next";
    EXPECT_EQ(list[kept], "next");
  }
}

}  // namespace
}  // namespace lockstep::internal
