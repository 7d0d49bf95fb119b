#include "lockstep/core/kernels/random.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "core/kernels/random_tensors.h"
#include "lockstep/core/error.h"
#include "lockstep/core/tensor.h"

namespace lockstep::kernels {
namespace {

constexpr RandomStream kStream{.seed = 1, .key = 2, .replica = 3, .step = 4};
constexpr DType kFloats[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

Tensor draw(DType dtype, std::int64_t n, double low, double high, const RandomStream& stream = kStream) {
  Tensor out = Tensor::zeros(dtype, {n});
  uniform(dtype, stream, low, high, out.raw(), 0, n);
  return out;
}

TEST(Uniform, ElementsAreTheWordsOfTheStream) {
  const Tensor f32 = draw(DType::kF32, 11, 0, 1), f64 = draw(DType::kF64, 11, 0, 1);
  for (std::uint64_t i = 0; i < 11; ++i) {
    EXPECT_EQ(f32.data<float>()[i], Philox::to_unit_float(kStream.block(i / 4)[i % 4]));
    const Philox::Block block = kStream.block(i / 2);
    EXPECT_EQ(f64.data<double>()[i], Philox::to_unit_double(block[2 * (i % 2)], block[2 * (i % 2) + 1]));
  }
}

TEST(Uniform, CuttingTheRangeChangesNothing) {
  Dice dice(1);
  for (const DType dtype : kFloats) {
    const Tensor whole = draw(dtype, 103, -2, 5);
    for (int round = 0; round < 10; ++round) {
      Tensor pieces = Tensor::zeros(dtype, {103});
      const std::vector<std::int64_t> cuts = random_cuts(103, dice);
      for (std::size_t i = 1; i < cuts.size(); ++i) {
        uniform(dtype, kStream, -2, 5, pieces.raw(), cuts[i - 1], cuts[i]);
      }
      ASSERT_TRUE(pieces.bit_equal(whole)) << dtype;
    }
  }
}

TEST(Uniform, FillsTheIntervalEvenly) {
  for (const DType dtype : kFloats) {
    constexpr std::int64_t n = 20000;
    const Tensor values = draw(dtype, n, -1, 3);
    std::vector<int> counts(4);
    for (std::int64_t i = 0; i < n; ++i) {
      const double value = element(values, i);
      ASSERT_GE(value, -1.0) << dtype;
      ASSERT_LT(value, 3.0) << dtype;
      ++counts[static_cast<std::size_t>(std::floor(value) + 1)];
    }
    for (const int count : counts) EXPECT_NEAR(count, n / 4, 400) << dtype;
  }
}

// Close above and far below the bound, nearly everything would round up to it.
TEST(Uniform, NeverGivesTheUpperBound) {
  for (const DType dtype : kFloats) {
    const double step = dtype == DType::kF16    ? 0x1p-10
                        : dtype == DType::kBF16 ? 0x1p-7
                        : dtype == DType::kF32  ? 0x1p-23
                                                : 0x1p-52;
    const Tensor up = draw(dtype, 200, 1, 1 + 2 * step);
    const Tensor down = draw(dtype, 200, -1 - 2 * step, -1);
    const Tensor to_zero = draw(dtype, 200, -1, 0);
    for (std::int64_t i = 0; i < 200; ++i) {
      ASSERT_TRUE(element(up, i) == 1 || element(up, i) == 1 + step) << dtype;
      ASSERT_TRUE(element(down, i) == -1 - 2 * step || element(down, i) == -1 - step) << dtype;
      ASSERT_LT(element(to_zero, i), 0.0) << dtype;
    }
  }
}

TEST(Uniform, StreamsDiffer) {
  const Tensor one = draw(DType::kF32, 8, 0, 1);
  EXPECT_TRUE(one.bit_equal(draw(DType::kF32, 8, 0, 1)));
  EXPECT_FALSE(one.bit_equal(draw(DType::kF32, 8, 0, 1, {.seed = 1, .key = 2, .replica = 3, .step = 5})));
  EXPECT_FALSE(one.bit_equal(draw(DType::kF32, 8, 0, 1, {.seed = 1, .key = 2, .replica = 4, .step = 4})));
}

TEST(Uniform, RefusesIntervalsAndDTypesItCannotFill) {
  EXPECT_THROW(draw(DType::kI32, 1, 0, 1), InvalidArgument);
  EXPECT_THROW(draw(DType::kBool, 1, 0, 1), InvalidArgument);
  EXPECT_THROW(draw(DType::kF32, 1, 1, 1), InvalidArgument);
  EXPECT_THROW(draw(DType::kF32, 1, 2, 1), InvalidArgument);
  EXPECT_THROW(draw(DType::kF32, 1, NAN, 1), InvalidArgument);
  EXPECT_THROW(draw(DType::kF32, 1, 0, INFINITY), InvalidArgument);
  EXPECT_THROW(draw(DType::kF32, 1, -3e38, 3e38), InvalidArgument);
  EXPECT_THROW(draw(DType::kF16, 1, 1, 1.0001), InvalidArgument) << "no f16 lies between";
}

}  // namespace
}  // namespace lockstep::kernels
