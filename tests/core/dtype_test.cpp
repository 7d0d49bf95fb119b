// Tests: core/dtype.cpp
#include "lockstep/core/dtype.h"

#include <cmath>
#include <limits>
#include <sstream>
#include <type_traits>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

float f16(float value) { return static_cast<float>(F16(value)); }
float bf16(float value) { return static_cast<float>(BF16(value)); }

TEST(DType, NamesReadBack) {
  for (const DType dtype : kAllDTypes) EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
  EXPECT_EQ(to_string(DType::kBF16), "bf16");
  EXPECT_EQ(to_string(DType::kBool), "bool");
  EXPECT_EQ(parse_dtype("f8"), std::nullopt);
  EXPECT_EQ(parse_dtype(""), std::nullopt);
  EXPECT_EQ(parse_dtype("F32"), std::nullopt);
}

TEST(DType, PrintsItsName) {
  std::ostringstream out;
  out << DType::kI64;
  EXPECT_EQ(out.str(), "i64");
}

TEST(DType, VisitGivesTheTypeOfTheDType) {
  for (const DType dtype : kAllDTypes) {
    const bool matches =
        visit_dtype(dtype, [&]<class T>(T) { return dtype_of<T> == dtype && sizeof(T) == size_of(dtype); });
    EXPECT_TRUE(matches) << dtype;
  }
}

TEST(DType, IsOfOneKind) {
  for (const DType dtype : kAllDTypes) {
    const int kinds =
        (is_floating(dtype) ? 1 : 0) + (is_integer(dtype) ? 1 : 0) + (dtype == DType::kBool ? 1 : 0);
    EXPECT_EQ(kinds, 1) << dtype;
  }
}

TEST(F16, HoldsTheValuesThatItCanExactly) {
  for (const float value :
       {0.F, 1.F, -2.F, 0.5F, 65504.F, -65504.F, 0x1p-14F, 0x1p-24F, 1023.F * 0x1p-24F, 2048.F}) {
    EXPECT_EQ(f16(value), value);
  }
  EXPECT_EQ(F16(1.F).bits, 0x3C00U);
  EXPECT_EQ(F16(-2.F).bits, 0xC000U);
  EXPECT_EQ(F16(65504.F).bits, 0x7BFFU);
}

TEST(F16, RoundsTiesToEven) {
  EXPECT_EQ(f16(2049.F), 2048.F);
  EXPECT_EQ(f16(2051.F), 2052.F);
  EXPECT_EQ(f16(2049.01F), 2050.F);
  EXPECT_EQ(f16(-2049.F), -2048.F);
}

TEST(F16, RoundsSubnormalsTiesToEven) {
  EXPECT_EQ(f16(0.5F * 0x1p-24F), 0.F);
  EXPECT_EQ(f16(1.5F * 0x1p-24F), 2 * 0x1p-24F);
  EXPECT_EQ(f16(2.5F * 0x1p-24F), 2 * 0x1p-24F);
  EXPECT_EQ(f16(0.51F * 0x1p-24F), 0x1p-24F);
  EXPECT_EQ(f16(1023.5F * 0x1p-24F), 0x1p-14F) << "carries into the normal numbers";
}

TEST(F16, OverflowsToInfinityFromTheMiddleOfTheNextStep) {
  EXPECT_EQ(f16(65519.F), 65504.F);
  EXPECT_EQ(f16(65520.F), std::numeric_limits<float>::infinity());
  EXPECT_EQ(f16(1e30F), std::numeric_limits<float>::infinity());
  EXPECT_EQ(f16(-1e30F), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(f16(std::numeric_limits<float>::infinity()), std::numeric_limits<float>::infinity());
}

TEST(F16, KeepsNaNAndTheSignOfZero) {
  EXPECT_TRUE(std::isnan(f16(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(f16(std::bit_cast<float>(0x7F800001U))))
      << "a payload that does not fit must not give infinity";
  EXPECT_TRUE(std::signbit(f16(-0.F)));
  EXPECT_FALSE(F16(NAN) == F16(NAN));
  EXPECT_TRUE(F16(0.F) == F16(-0.F));
}

TEST(F16, EveryNumberConvertsThereAndBack) {
  for (std::uint32_t bits = 0; bits <= 0xFFFFU; ++bits) {
    F16 half;
    half.bits = static_cast<std::uint16_t>(bits);
    const float value = static_cast<float>(half);
    if (std::isnan(value)) continue;
    ASSERT_EQ(F16(value).bits, half.bits);
  }
}

// Between two neighbours everything goes to the nearer one, and the middle to the even one.
TEST(F16, RoundsToTheNearestBetweenAllNeighbours) {
  for (std::uint16_t bits = 0; bits < 0x7BFFU; ++bits) {
    F16 low, high;
    low.bits = bits;
    high.bits = static_cast<std::uint16_t>(bits + 1);
    const float middle = (static_cast<float>(low) + static_cast<float>(high)) / 2;
    ASSERT_EQ(F16(middle).bits, (bits & 1U) == 0 ? low.bits : high.bits) << bits;
    ASSERT_EQ(F16(std::nextafter(middle, 0.F)).bits, low.bits);
    ASSERT_EQ(F16(std::nextafter(middle, 1e9F)).bits, high.bits);
  }
}

TEST(BF16, RoundsTiesToEven) {
  EXPECT_EQ(bf16(1.F), 1.F);
  EXPECT_EQ(BF16(1.F).bits, 0x3F80U);
  EXPECT_EQ(bf16(257.F), 256.F);
  EXPECT_EQ(bf16(259.F), 260.F);
  EXPECT_EQ(bf16(257.01F), 258.F);
}

TEST(BF16, KeepsInfinityNaNAndSubnormals) {
  EXPECT_EQ(bf16(std::numeric_limits<float>::infinity()), std::numeric_limits<float>::infinity());
  EXPECT_EQ(bf16(std::numeric_limits<float>::max()), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(bf16(std::bit_cast<float>(0x7F800001U)))) << "must not become infinity";
  EXPECT_TRUE(std::isnan(bf16(std::bit_cast<float>(0x7FFFFFFFU)))) << "must not wrap to zero";
  EXPECT_EQ(bf16(std::bit_cast<float>(0x00010000U)), std::bit_cast<float>(0x00010000U));
  EXPECT_TRUE(std::signbit(bf16(-0.F)));
}

TEST(BF16, EveryNumberConvertsThereAndBack) {
  for (std::uint32_t bits = 0; bits <= 0xFFFFU; ++bits) {
    BF16 brain;
    brain.bits = static_cast<std::uint16_t>(bits);
    const float value = static_cast<float>(brain);
    if (std::isnan(value)) continue;
    ASSERT_EQ(BF16(value).bits, brain.bits);
  }
}

}  // namespace
}  // namespace lockstep
