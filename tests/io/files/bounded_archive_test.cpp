// Tests: io/files/internal/bounded_archive.h
#include "lockstep/io/files/internal/bounded_archive.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using internal::BoundedLimits;
using internal::from_portable_bytes;
using internal::to_portable_bytes;
using testing::HasSubstr;

struct Leaf {
  std::string name;
  std::vector<std::int64_t> dims;
  bool flag = false;
  double number = 0;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(name, dims, flag, CEREAL_NVP(number));
  }
  friend bool operator==(const Leaf&, const Leaf&) = default;
};

struct Tree {
  std::vector<Tree> children;
  std::vector<Leaf> leaves;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(children, leaves);
  }
  friend bool operator==(const Tree&, const Tree&) = default;
};

struct Nothing {
  template <class Archive>
  void serialize(Archive& /*archive*/) {}
};

Tree example() {
  Tree tree;
  tree.leaves = {{"a", {1, -2, std::numeric_limits<std::int64_t>::max()}, true, 0.1}, {"", {}, false, -0.0}};
  tree.children.resize(2);
  tree.children[1].leaves = {{std::string("\0x", 2), {7}, false, 1e300}};
  return tree;
}

template <class Record>
std::string refusal(std::string_view bytes, BoundedLimits limits = {}) {
  try {
    from_portable_bytes<Record>(bytes, "the test", limits);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
    return error.message();
  }
  return "accepted";
}

TEST(BoundedBinaryInput, ReadsWhatCerealWrote) {
  const Tree tree = example();
  EXPECT_EQ(from_portable_bytes<Tree>(to_portable_bytes(tree), "the test"), tree);
}

TEST(BoundedBinaryInput, RefusesEveryTruncationAndWhatFollows) {
  const std::string bytes = to_portable_bytes(example());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(refusal<Tree>(std::string_view(bytes).substr(0, size)), "accepted") << size;
  }
  EXPECT_THAT(refusal<Tree>(bytes + "x"), HasSubstr("1 bytes follow behind the last record"));
}

TEST(BoundedBinaryInput, BelievesNoCount) {
  // Little endian, then a count that only the bytes themselves could prove.
  for (const std::uint64_t count : {std::uint64_t{9}, std::uint64_t{1} << 30U, std::uint64_t{1} << 61U,
                                    std::numeric_limits<std::uint64_t>::max()}) {
    std::string bytes = "\x01";
    for (unsigned i = 0; i < 8; ++i) bytes += static_cast<char>((count >> (8 * i)) & 0xffU);
    bytes += "8 bytes.";
    EXPECT_THAT(refusal<std::string>(bytes), HasSubstr("does not fit into the 8 bytes that are left"));
    EXPECT_THAT(refusal<std::vector<std::int64_t>>(bytes), HasSubstr("does not fit"));
    EXPECT_THAT(refusal<std::vector<Leaf>>(bytes), HasSubstr("does not fit"));
  }
}

TEST(BoundedBinaryInput, RefusesElementsWithoutBytes) {
  EXPECT_THAT(refusal<std::vector<Nothing>>(std::string("\1\1\0\0\0\0\0\0\0x", 10)),
              HasSubstr("takes no bytes"));
}

TEST(BoundedBinaryInput, BoundsDepth) {
  Tree tree;
  for (int i = 0; i < 10; ++i) {
    Tree outer;
    outer.children.push_back(std::move(tree));
    tree = std::move(outer);
  }
  const std::string bytes = to_portable_bytes(tree);
  EXPECT_THAT(refusal<Tree>(bytes, {.max_depth = 20}), HasSubstr("deeper than 20 levels"));
  EXPECT_EQ(refusal<Tree>(bytes, {.max_depth = 22}), "accepted");
}

TEST(BoundedBinaryInput, RefusesOtherByteOrdersAndTruthValues) {
  EXPECT_THAT(refusal<bool>(std::string("\0\1", 2)), HasSubstr("not little endian"));
  EXPECT_THAT(refusal<bool>("\1\2"), HasSubstr("neither 0 nor 1"));
}

}  // namespace
}  // namespace lockstep
