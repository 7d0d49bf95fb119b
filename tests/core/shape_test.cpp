// Tests: core/error.cpp, core/shape.cpp
#include "lockstep/core/shape.h"

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

template <class F>
std::string message_of(F call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "(nothing was thrown)";
}

TEST(Shape, DefaultIsAScalar) {
  const Shape scalar;
  EXPECT_EQ(scalar.rank(), 0U);
  EXPECT_EQ(scalar.num_elements(), 1);
  EXPECT_EQ(scalar.to_string(), "[]");
  EXPECT_TRUE(scalar.is_known());
}

TEST(Shape, PrintsUnknownDimensionsAsQuestionMarks) {
  EXPECT_EQ((Shape{2, kUnknown, 4}).to_string(), "[2,?,4]");
  std::ostringstream out;
  out << Shape{0, 7};
  EXPECT_EQ(out.str(), "[0,7]");
}

TEST(Shape, CountsElements) {
  EXPECT_EQ((Shape{2, 3, 4}).num_elements(), 24);
  EXPECT_EQ((Shape{5, 0, 4}).num_elements(), 0);
  EXPECT_EQ(Shape({std::int64_t{1} << 61U}).num_elements(), std::int64_t{1} << 61U);
}

TEST(Shape, WithUnknownDimensionsHasNoNumberOfElements) {
  const Shape shape{2, kUnknown};
  EXPECT_FALSE(shape.is_known());
  EXPECT_THROW(shape.num_elements(), FailedPrecondition);
  EXPECT_THAT(message_of([&] { shape.num_elements(); }), HasSubstr("[2,?]"));
}

TEST(Shape, RefusesNegativeDimensions) {
  EXPECT_THROW((Shape{2, -2}), InvalidArgument);
  EXPECT_THAT(message_of([] { Shape{2, -2}; }), HasSubstr("dimension -2 of [2,-2] is negative"));
}

TEST(Shape, RefusesMoreElementsThanFitInto62Bits) {
  constexpr std::int64_t big = std::int64_t{1} << 31U;
  EXPECT_NO_THROW((Shape{big, big - 1}));
  EXPECT_THROW((Shape{big, big}), InvalidArgument);
  EXPECT_THROW((Shape{std::int64_t{1} << 62U}), InvalidArgument);
  EXPECT_THROW((Shape{big, kUnknown, big}), InvalidArgument);
  EXPECT_THROW((Shape{big, big, big, big}), InvalidArgument) << "the product wraps to zero in 64 bits";
  EXPECT_THROW((Shape{0, big, big}), InvalidArgument) << "its strides do not fit, though it is empty";
  EXPECT_THAT(message_of([] {
                Shape{big, big};
              }),
              HasSubstr("[2147483648,2147483648] does not fit into 62 bits"));
}

TEST(Shape, RefusesRanksAboveTheLimit) {
  const std::vector<std::int64_t> most(Shape::kMaxRank, 1);
  EXPECT_EQ(Shape(std::span<const std::int64_t>(most)).rank(), 255U);
  const std::vector<std::int64_t> more(Shape::kMaxRank + 1, 1);
  EXPECT_THROW(Shape(std::span<const std::int64_t>(more)), InvalidArgument);
}

TEST(Shape, AxesCountFromBothEnds) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.dim(0), 2);
  EXPECT_EQ(shape.dim(2), 4);
  EXPECT_EQ(shape.dim(-1), 4);
  EXPECT_EQ(shape.dim(-3), 2);
  EXPECT_THROW(shape.dim(3), InvalidArgument);
  EXPECT_THROW(shape.dim(-4), InvalidArgument);
  EXPECT_THROW(Shape{}.dim(0), InvalidArgument);
  EXPECT_THAT(message_of([&] { shape.dim(3); }),
              HasSubstr("axis 3 is outside of [2,3,4]: it must lie in [-3, 3)"));
}

TEST(Shape, CopiesAndMovesAcrossTheInlineLimit) {
  const Shape small{1, 2, 3, 4};
  const Shape large{1, 2, 3, 4, 5, 6};
  for (const Shape& from : {small, large}) {
    for (const Shape& to : {small, large, Shape{}}) {
      Shape copied = to;
      copied = from;
      EXPECT_EQ(copied, from);
      Shape source = from;
      Shape moved = to;
      moved = std::move(source);
      EXPECT_EQ(moved, from);
      source = to;  // a moved-from shape can be used again
      EXPECT_EQ(source, to);
      const Shape constructed(std::move(source));
      EXPECT_EQ(constructed, to);
    }
  }
}

TEST(Shape, AssigningItselfChangesNothing) {
  Shape shape{1, 2, 3, 4, 5};
  Shape& alias = shape;
  shape = alias;
  EXPECT_EQ(shape, (Shape{1, 2, 3, 4, 5}));
  shape = std::move(alias);
  EXPECT_EQ(shape, (Shape{1, 2, 3, 4, 5}));
}

TEST(Shape, ComparesRankAndDimensions) {
  EXPECT_EQ((Shape{1, 2, 3, 4, 5}), (Shape{1, 2, 3, 4, 5}));
  EXPECT_NE((Shape{1, 2, 3, 4, 5}), (Shape{1, 2, 3, 4, 6}));
  EXPECT_NE((Shape{2}), (Shape{2, 1}));
  EXPECT_NE((Shape{kUnknown}), (Shape{1}));
}

TEST(Shape, ReplacesRemovesAndInsertsDimensions) {
  const Shape shape{2, 3, 4, 5};
  EXPECT_EQ(shape.with_dim(1, kUnknown), (Shape{2, kUnknown, 4, 5}));
  EXPECT_EQ(shape.without_dim(3), (Shape{2, 3, 4}));
  EXPECT_EQ(shape.with_inserted(0, 9), (Shape{9, 2, 3, 4, 5}));
  EXPECT_EQ(shape.with_inserted(4, 9), (Shape{2, 3, 4, 5, 9}));
  EXPECT_EQ(Shape{}.with_inserted(0, 1), (Shape{1}));
}

TEST(Shape, RefusesToEditOutsideOfItself) {
  const Shape shape{2, 3};
  EXPECT_THROW(shape.with_dim(2, 1), InvalidArgument);
  EXPECT_THROW(shape.with_dim(0, -5), InvalidArgument);
  EXPECT_THROW(shape.without_dim(2), InvalidArgument);
  EXPECT_THROW(shape.with_inserted(3, 1), InvalidArgument);
  EXPECT_THROW(shape.with_inserted(0, std::int64_t{1} << 61U), InvalidArgument);
}

TEST(Shape, AdmitsWhatItsUnknownsLeaveOpen) {
  const Shape shape{kUnknown, 3};
  EXPECT_TRUE(shape.admits({7, 3}));
  EXPECT_TRUE(shape.admits({0, 3}));
  EXPECT_FALSE(shape.admits({7, 4}));
  EXPECT_FALSE(shape.admits({3}));
  EXPECT_FALSE(shape.admits({1, 7, 3}));
  EXPECT_TRUE(Shape{}.admits({}));
}

TEST(CheckedMul, NamesWhatOverflows) {
  EXPECT_EQ(checked_mul(1 << 20, 1 << 20, "area"), std::int64_t{1} << 40U);
  EXPECT_EQ(checked_mul(0, std::int64_t{1} << 62U, "area"), 0);
  EXPECT_THROW(checked_mul(std::int64_t{1} << 31U, std::int64_t{1} << 31U, "area"), InvalidArgument);
  EXPECT_THROW(checked_mul(std::int64_t{1} << 32U, std::int64_t{1} << 32U, "area"), InvalidArgument);
  EXPECT_THAT(message_of([] { checked_mul(std::int64_t{1} << 61U, 2, "area"); }), HasSubstr("area: "));
}

TEST(CheckedAdd, NamesWhatOverflows) {
  constexpr std::int64_t half = std::int64_t{1} << 61U;
  EXPECT_EQ(checked_add(half, half - 1, "length"), (std::int64_t{1} << 62U) - 1);
  EXPECT_THROW(checked_add(half, half, "length"), InvalidArgument);
  EXPECT_THAT(message_of([] { checked_add(half, half, "length"); }), HasSubstr("length: "));
}

TEST(BroadcastShapes, AlignsFromTheLastDimension) {
  EXPECT_EQ(broadcast_shapes({4, 3}, {3}), (Shape{4, 3}));
  EXPECT_EQ(broadcast_shapes({3}, {4, 3}), (Shape{4, 3}));
  EXPECT_EQ(broadcast_shapes({}, {2, 2}), (Shape{2, 2}));
  EXPECT_EQ(broadcast_shapes({4, 1}, {1, 5}), (Shape{4, 5}));
  EXPECT_EQ(broadcast_shapes({1, 2, 1, 2, 1, 2}, {3, 1, 3, 1}), (Shape{1, 2, 3, 2, 3, 2}));
}

TEST(BroadcastShapes, ZeroIsAnExtentLikeAnyOther) {
  EXPECT_EQ(broadcast_shapes({0}, {1}), (Shape{0}));
  EXPECT_EQ(broadcast_shapes({3, 0}, {0}), (Shape{3, 0}));
  EXPECT_THROW(broadcast_shapes({0}, {2}), InvalidArgument);
}

TEST(BroadcastShapes, UnknownAgainstALengthIsThatLength) {
  EXPECT_EQ(broadcast_shapes({kUnknown}, {5}), (Shape{5}));
  EXPECT_EQ(broadcast_shapes({5}, {kUnknown}), (Shape{5}));
  EXPECT_EQ(broadcast_shapes({kUnknown}, {1}), (Shape{kUnknown}));
  EXPECT_EQ(broadcast_shapes({1}, {kUnknown}), (Shape{kUnknown}));
  EXPECT_EQ(broadcast_shapes({kUnknown}, {kUnknown}), (Shape{kUnknown}));
}

TEST(BroadcastShapes, RefusalNamesBothShapes) {
  EXPECT_THROW(broadcast_shapes({2, 3}, {4, 3}), InvalidArgument);
  const std::string text = message_of([] { broadcast_shapes({2, 3}, {4, 3}); });
  EXPECT_THAT(text, HasSubstr("cannot broadcast [2,3] with [4,3]"));
  EXPECT_THAT(text, HasSubstr("dimensions 2 and 4"));
}

TEST(BroadcastShapes, RefusesAResultThatIsTooLarge) {
  constexpr std::int64_t big = std::int64_t{1} << 31U;
  EXPECT_THROW(broadcast_shapes({big, 1}, {1, big}), InvalidArgument);
}

TEST(JoinShapes, DimensionsThatDifferBecomeUnknown) {
  EXPECT_EQ(join_shapes({2, 3}, {2, 3}), (Shape{2, 3}));
  EXPECT_EQ(join_shapes({2, 3}, {4, 3}), (Shape{kUnknown, 3}));
  EXPECT_EQ(join_shapes({2, kUnknown}, {2, 3}), (Shape{2, kUnknown}));
  EXPECT_THROW(join_shapes({2}, {2, 3}), InvalidArgument);
}

TEST(Shape, MayEqualWhereUnknownDimensionsFit) {
  EXPECT_TRUE((Shape{2, 3}).may_equal({2, 3}));
  EXPECT_TRUE((Shape{2, kUnknown}).may_equal({2, 3}));
  EXPECT_TRUE((Shape{2, 3}).may_equal({kUnknown, 3}));
  EXPECT_TRUE((Shape{kUnknown, 3}).may_equal({2, kUnknown}));
  EXPECT_TRUE(Shape().may_equal({}));
  EXPECT_FALSE((Shape{2, 3}).may_equal({2, 4}));
  EXPECT_FALSE((Shape{kUnknown, 3}).may_equal({2, 4}));
  EXPECT_FALSE((Shape{kUnknown}).may_equal({1, kUnknown}));  // of another rank
  EXPECT_FALSE((Shape{kUnknown}).may_equal({}));
  EXPECT_FALSE((Shape{1}).may_equal({2}));  // what broadcasts is not equal
}

TEST(TensorSpec, MayEqualOnlyOfOneDType) {
  const TensorSpec floats{DType::kF32, {2, kUnknown}};
  EXPECT_TRUE(floats.may_equal({DType::kF32, {kUnknown, 3}}));
  EXPECT_FALSE(floats.may_equal({DType::kF64, {2, kUnknown}}));
  EXPECT_FALSE(floats.may_equal({DType::kF32, {3, kUnknown}}));
}

TEST(TensorSpec, PrintsDTypeAndShape) {
  EXPECT_EQ(to_string(TensorSpec{DType::kF32, {2, kUnknown}}), "f32[2,?]");
  EXPECT_EQ(str(TensorSpec{DType::kBool, {}}), "bool[]");
}

TEST(TensorSpec, CountsBytes) {
  EXPECT_EQ(num_bytes({DType::kF64, {3, 5}}), 120);
  EXPECT_EQ(num_bytes({DType::kU8, {3, 0}}), 0);
  EXPECT_THROW(num_bytes({DType::kF32, {kUnknown}}), FailedPrecondition);
  EXPECT_THROW(num_bytes({DType::kF64, {std::int64_t{1} << 60U}}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
