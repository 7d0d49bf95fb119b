// Tests: core/kernels/cast.cpp
#include "lockstep/core/kernels/cast.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/random_tensors.h"

namespace lockstep::kernels {
namespace {

using ::testing::ElementsAre;

template <class To, class From>
std::vector<To> cast_all(const std::vector<From>& in) {
  Tensor out = Tensor::empty(dtype_of<To>, {static_cast<std::int64_t>(in.size())});
  cast_loop(dtype_of<From>, dtype_of<To>)(in.data(), out.raw(), out.num_elements());
  const std::span<const To> data = out.data<To>();
  return {data.begin(), data.end()};
}

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Cast, FromFloatingTruncatesAndSaturates) {
  const std::vector<double> in = {1.9, -1.9, 300, -5, 3e9, -3e9, 1e30, -kInf, kInf, std::nan(""), 0.0};
  EXPECT_THAT(cast_all<std::int32_t>(in), ElementsAre(1, -1, 300, -5, 2147483647, -2147483648, 2147483647,
                                                      -2147483648, 2147483647, 0, 0));
  constexpr auto kMin = std::numeric_limits<std::int64_t>::min(),
                 kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(cast_all<std::int64_t>(in),
              ElementsAre(1, -1, 300, -5, 3'000'000'000, -3'000'000'000, kMax, kMin, kMax, 0, 0));
  EXPECT_THAT(cast_all<std::uint8_t>(in), ElementsAre(1, 0, 255, 0, 255, 0, 255, 0, 255, 0, 0));
  const std::vector<float> f32 = {2147483648.F, -2147483648.F, 2147483520.F, 9.3e18F};
  EXPECT_THAT(cast_all<std::int32_t>(f32), ElementsAre(2147483647, -2147483648, 2147483520, 2147483647));
  EXPECT_EQ(cast_all<std::int64_t>(f32)[3], kMax);
  EXPECT_EQ(cast_all<std::int32_t>(std::vector<F16>{F16(-7.9F)})[0], -7);
}

TEST(Cast, ToBoolAsksWhetherItIsNotZero) {
  EXPECT_THAT(cast_all<bool>(std::vector<float>{0, -0.F, 1e-45F, std::nanf(""), -2}),
              ElementsAre(false, false, true, true, true));
  EXPECT_THAT(cast_all<bool>(std::vector<std::int64_t>{0, std::int64_t{1} << 40}), ElementsAre(false, true));
  EXPECT_THAT(cast_all<bool>(std::vector<BF16>{BF16(0), BF16(1e-38F)}), ElementsAre(false, true));
}

TEST(Cast, IntegersKeepTheirLowBits) {
  EXPECT_THAT(cast_all<std::uint8_t>(std::vector<std::int64_t>{-1, 256, 511}), ElementsAre(255, 0, 255));
  EXPECT_THAT(cast_all<std::int32_t>(std::vector<std::int64_t>{(std::int64_t{1} << 32) + 5}), ElementsAre(5));
  EXPECT_THAT(cast_all<std::int64_t>(std::vector<std::uint8_t>{200}), ElementsAre(200));
}

// A double exactly between two 16-bit floats, and a hair beside it: going through f32 would lose the hair.
TEST(Cast, To16BitsRoundsOnce) {
  const double middle = 1 + 0x1p-11;
  EXPECT_EQ(static_cast<float>(cast_all<F16>(std::vector<double>{middle})[0]), 1.F);
  EXPECT_EQ(static_cast<float>(cast_all<F16>(std::vector<double>{middle + 0x1p-50})[0]), 1.F + 0x1p-10F);
  EXPECT_EQ(static_cast<float>(cast_all<F16>(std::vector<double>{-middle - 0x1p-50})[0]), -1.F - 0x1p-10F);
  EXPECT_EQ(static_cast<float>(cast_all<BF16>(std::vector<double>{1 + 0x1p-8 + 0x1p-40})[0]), 1.F + 0x1p-7F);
  EXPECT_EQ(static_cast<float>(cast_all<BF16>(std::vector<double>{1e39})[0]), static_cast<float>(kInf));
  EXPECT_TRUE(std::isnan(static_cast<float>(cast_all<BF16>(std::vector<double>{std::nan("")})[0])));
  const std::int64_t large = (std::int64_t{1} << 60) + (std::int64_t{1} << 52);  // between two of bf16
  EXPECT_EQ(static_cast<float>(cast_all<BF16>(std::vector<std::int64_t>{large})[0]), 0x1p60F);
  EXPECT_EQ(static_cast<float>(cast_all<BF16>(std::vector<std::int64_t>{large + 1})[0]), 0x1p60F + 0x1p53F);
  EXPECT_EQ(static_cast<float>(cast_all<BF16>(std::vector<std::int64_t>{-large - 1})[0]), -0x1p60F - 0x1p53F);
  EXPECT_EQ(static_cast<float>(cast_all<BF16>(std::vector<std::int32_t>{(1 << 30) + (1 << 22) + 1})[0]),
            0x1p30F + 0x1p23F);
}

// The vector loops give the bits of F16 and BF16, for every 16-bit float and for floats of all sizes.
TEST(Cast, VectorsConvert16BitsAsF16AndBF16Do) {
  std::vector<F16> halves(1 << 16);
  std::vector<BF16> brains(1 << 16);
  for (std::size_t i = 0; i < halves.size(); ++i) {
    halves[i].bits = static_cast<std::uint16_t>(i);
    brains[i].bits = static_cast<std::uint16_t>(i);
  }
  const std::vector<float> from_halves = cast_all<float>(halves), from_brains = cast_all<float>(brains);
  for (std::size_t i = 0; i < halves.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(from_halves[i]),
              std::bit_cast<std::uint32_t>(static_cast<float>(halves[i])));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(from_brains[i]),
              std::bit_cast<std::uint32_t>(static_cast<float>(brains[i])));
  }
  std::vector<float> floats;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4093)
    floats.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  for (std::uint32_t i = 0; i < 0x7C00U; ++i) {  // the middle of every two neighbours, and beside it
    F16 half;
    half.bits = static_cast<std::uint16_t>(i);
    const std::uint32_t low = std::bit_cast<std::uint32_t>(static_cast<float>(half));
    for (const std::uint32_t step : {0x0FFFU, 0x1000U, 0x1001U})
      floats.push_back(std::bit_cast<float>(low + step));
  }
  const std::vector<F16> to_halves = cast_all<F16>(floats);
  const std::vector<BF16> to_brains = cast_all<BF16>(floats);
  for (std::size_t i = 0; i < floats.size(); ++i) {
    ASSERT_EQ(to_halves[i].bits, F16(floats[i]).bits) << std::hexfloat << floats[i];
    ASSERT_EQ(to_brains[i].bits, BF16(floats[i]).bits) << std::hexfloat << floats[i];
  }
}

// Whole numbers that every dtype holds go anywhere and back; longer than a piece, and of any length.
TEST(Cast, SmallNumbersSurviveEveryPair) {
  Dice dice(7);
  for (const std::int64_t count : {0, 1, 3, 511, 512, 1030}) {
    for (const DType from : kAllDTypes) {
      Tensor in = Tensor::empty(from, {count});
      visit_dtype(from, [&]<class T>(T) {
        for (T& x : in.data<T>()) {
          const std::int64_t number = dice.roll(from == DType::kBool ? 2 : 100);
          if constexpr (std::is_same_v<T, F16> || std::is_same_v<T, BF16>) {
            x = T(static_cast<float>(number));
          } else {
            x = static_cast<T>(number);
          }
        }
      });
      for (const DType to : kAllDTypes) {
        if (to == DType::kBool) continue;
        Tensor there = Tensor::empty(to, {count}), back = Tensor::empty(from, {count});
        cast_loop(from, to)(in.raw(), there.raw(), count);
        cast_loop(to, from)(there.raw(), back.raw(), count);
        EXPECT_TRUE(back.bit_equal(in)) << from << " to " << to;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels
