// Tests: core/kernels/random.cpp
#include "lockstep/core/kernels/random.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/core/tensor.h"
#include "support/random_tensors.h"

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

// --- normal

std::vector<double> normals(DType dtype, std::int64_t n, double mean = 0, double stddev = 1) {
  Tensor out = Tensor::zeros(dtype, {n});
  normal(dtype, kStream, mean, stddev, out.raw(), 0, n);
  std::vector<double> values;
  visit_dtype(dtype, [&]<class T>(T) {
    for (const T value : out.data<T>()) {
      if constexpr (std::is_same_v<T, double>) {
        values.push_back(value);
      } else {
        values.push_back(static_cast<double>(static_cast<float>(value)));
      }
    }
  });
  return values;
}

// Box and Muller's formula with the library's functions.
TEST(Normal, ElementsFollowFromPairsOfWords) {
  const std::vector<double> f32 = normals(DType::kF32, 4001), f64 = normals(DType::kF64, 4001);
  for (std::size_t i = 0; i < 4000; i += 2) {
    const Philox::Block block = kStream.block(i / 4);
    const double u = static_cast<double>(static_cast<float>(block[i % 4] | 1U)) * 0x1p-32;
    const double angle = static_cast<double>(block[i % 4 + 1]) * 0x1p-32 * 2 * std::numbers::pi;
    const double radius = std::sqrt(-2 * std::log(u));
    ASSERT_NEAR(f32[i], radius * std::cos(angle), 1e-6) << i;
    ASSERT_NEAR(f32[i + 1], radius * std::sin(angle), 1e-6) << i;
    const Philox::Block wide = kStream.block(i / 2);
    const auto word = [&](std::size_t at) { return std::uint64_t{wide[at]} << 32U | wide[at + 1]; };
    const double fine = std::sqrt(-2 * std::log(static_cast<double>(word(0) | 1U) * 0x1p-64));
    const double turn = static_cast<double>(word(2)) * 0x1p-64 * 2 * std::numbers::pi;
    ASSERT_NEAR(f64[i], fine * std::cos(turn), 4e-15) << i;
    ASSERT_NEAR(f64[i + 1], fine * std::sin(turn), 4e-15) << i;
  }
}

TEST(Normal, HasTheMomentsAndTheDistribution) {
  constexpr std::int64_t n = 40'000;
  for (const DType dtype : kFloats) {
    std::vector<double> values = normals(dtype, n, 3, 2);
    double sum = 0, squares = 0, cubes = 0, fourths = 0, neighbours = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double z = (values[i] - 3) / 2;
      sum += z;
      squares += z * z;
      cubes += z * z * z;
      fourths += z * z * z * z;
      neighbours += z * (values[i ^ 1U] - 3) / 2;
    }
    const double limit = 4 / std::sqrt(static_cast<double>(n));  // four standard errors
    EXPECT_NEAR(sum / n, 0, limit) << dtype;
    EXPECT_NEAR(squares / n, 1, limit * std::sqrt(2)) << dtype;
    EXPECT_NEAR(cubes / n, 0, limit * std::sqrt(15)) << dtype;
    EXPECT_NEAR(fourths / n, 3, limit * std::sqrt(96)) << dtype;
    EXPECT_NEAR(neighbours / n, 0, limit * std::sqrt(2)) << dtype;
    // Kolmogorov and Smirnov's distance, but for the steps of the 16-bit types.
    std::ranges::sort(values);
    double distance = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double expected = std::erfc(-(values[i] - 3) / 2 / std::numbers::sqrt2) / 2;
      distance = std::max(distance, std::abs(expected - static_cast<double>(i) / n));
    }
    EXPECT_LT(distance, 1.63 / std::sqrt(static_cast<double>(n)) + (dtype == DType::kBF16 ? 0.01 : 0.001))
        << dtype;
  }
}

TEST(Normal, CuttingTheRangeChangesNothing) {
  Dice dice(2);
  for (const DType dtype : kFloats) {
    Tensor whole = Tensor::zeros(dtype, {403});
    normal(dtype, kStream, 1, 2, whole.raw(), 0, 403);
    for (int round = 0; round < 10; ++round) {
      Tensor pieces = Tensor::zeros(dtype, {403});
      const std::vector<std::int64_t> cuts = random_cuts(403, dice);
      for (std::size_t i = 1; i < cuts.size(); ++i)
        normal(dtype, kStream, 1, 2, pieces.raw(), cuts[i - 1], cuts[i]);
      ASSERT_TRUE(pieces.bit_equal(whole)) << dtype;
    }
  }
}

TEST(Normal, TakesNoSpreadAndRefusesNonsense) {
  for (const double value : normals(DType::kF32, 9, 5, 0)) EXPECT_EQ(value, 5);
  float x = 0;
  EXPECT_THROW(normal(DType::kI32, kStream, 0, 1, &x, 0, 1), InvalidArgument);
  EXPECT_THROW(normal(DType::kF32, kStream, 0, -1, &x, 0, 1), InvalidArgument);
  EXPECT_THROW(normal(DType::kF32, kStream, NAN, 1, &x, 0, 1), InvalidArgument);
  EXPECT_THROW(normal(DType::kF32, kStream, 0, INFINITY, &x, 0, 1), InvalidArgument);
}

// --- integers

TEST(Integers, AreEquallyLikely) {
  constexpr std::int64_t n = 20'000;
  Tensor out = Tensor::zeros(DType::kI32, {n});
  integers(DType::kI32, kStream, -3, 5, out.raw(), 0, n);
  std::vector<int> counts(8);
  for (const std::int32_t value : out.data<std::int32_t>()) {
    ASSERT_GE(value, -3);
    ASSERT_LT(value, 5);
    ++counts[static_cast<std::size_t>(value + 3)];
  }
  for (const int count : counts) EXPECT_NEAR(count, n / 8, 250);
}

TEST(Integers, ReachFarAndAreCutAnywhere) {
  constexpr std::int64_t low = std::numeric_limits<std::int64_t>::min(),
                         high = std::numeric_limits<std::int64_t>::max();
  Tensor whole = Tensor::zeros(DType::kI64, {200}), pieces = Tensor::zeros(DType::kI64, {200});
  integers(DType::kI64, kStream, low, high, whole.raw(), 0, 200);
  integers(DType::kI64, kStream, low, high, pieces.raw(), 0, 71);
  integers(DType::kI64, kStream, low, high, pieces.raw(), 71, 200);
  EXPECT_TRUE(whole.bit_equal(pieces));
  const auto values = whole.data<std::int64_t>();
  EXPECT_LT(*std::ranges::min_element(values), low / 2);
  EXPECT_GT(*std::ranges::max_element(values), high / 2);
}

TEST(Integers, RefuseRangesThatTheDTypeDoesNotHold) {
  std::int64_t x = 0;
  integers(DType::kU8, kStream, 255, 256, &x, 0, 1);
  EXPECT_EQ(*reinterpret_cast<std::uint8_t*>(&x), 255);
  EXPECT_THROW(integers(DType::kU8, kStream, 0, 257, &x, 0, 1), InvalidArgument);
  EXPECT_THROW(integers(DType::kI32, kStream, 3, 3, &x, 0, 1), InvalidArgument);
  EXPECT_THROW(integers(DType::kF32, kStream, 0, 3, &x, 0, 1), InvalidArgument);
}

TEST(Permutation, HoldsEachNumberOnceInManyOrders) {
  for (const std::int64_t n : {0, 1, 2, 100, 1000}) {
    std::vector<std::int64_t> values(static_cast<std::size_t>(n)), sorted(static_cast<std::size_t>(n));
    permutation(kStream, n, values.data());
    std::iota(sorted.begin(), sorted.end(), 0);
    EXPECT_TRUE(std::ranges::is_permutation(values, sorted));
    EXPECT_TRUE(n < 100 || values != sorted) << n;
  }
  // All orders of three are equally likely.
  std::vector<int> counts(27);
  for (std::uint64_t step = 0; step < 6000; ++step) {
    std::int64_t v[3];
    permutation({.seed = 1, .key = 2, .replica = 0, .step = step}, 3, v);
    ++counts[static_cast<std::size_t>(v[0] * 9 + v[1] * 3 + v[2])];
  }
  int seen = 0;
  for (const int count : counts) {
    if (count == 0) continue;
    ++seen;
    EXPECT_NEAR(count, 1000, 130);
  }
  EXPECT_EQ(seen, 6);
}

// --- dropout

TEST(Dropout, KeepsAndScalesOrGivesZero) {
  constexpr std::int64_t n = 20'000;
  for (const DType dtype : kFloats) {
    const Tensor x = Tensor::full(dtype, {n}, 3);
    Tensor out = Tensor::full(dtype, {n}, 9);
    dropout(dtype, kStream, 0.25, x.raw(), out.raw(), 0, n / 3);
    dropout(dtype, kStream, 0.25, x.raw(), out.raw(), n / 3, n);
    std::int64_t kept = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const bool keep =
          kStream.block(static_cast<std::uint64_t>(i / 4))[static_cast<std::size_t>(i % 4)] >= 1U << 30U;
      ASSERT_EQ(element(out, i), keep ? 4.0 : 0.0) << dtype << ' ' << i;
      kept += keep ? 1 : 0;
    }
    EXPECT_NEAR(static_cast<double>(kept) / n, 0.75, 0.02);
  }
}

TEST(Dropout, OfAPartThatLiesByItself) {
  constexpr std::int64_t n = 1000;
  for (const DType dtype : kFloats) {
    const Tensor x = Tensor::full(dtype, {n}, 3);
    Tensor whole = Tensor::full(dtype, {n}, 9);
    dropout(dtype, kStream, 0.25, x.raw(), whole.raw(), 0, n);
    for (const auto& [begin, end] :
         {std::pair<std::int64_t, std::int64_t>{0, 7}, {7, 7}, {61, 200}, {129, n}}) {
      Tensor part = Tensor::full(dtype, {end - begin}, 3);
      dropout_part(dtype, kStream, 0.25, part.raw(), part.raw(), begin, end);
      for (std::int64_t i = begin; i < end; ++i)
        ASSERT_EQ(element(part, i - begin), element(whole, i)) << dtype << ' ' << i;
    }
  }
}

TEST(Dropout, AtItsEnds) {
  std::vector<float> x = {1, NAN, -INFINITY, 2}, out(4, 9);
  dropout(DType::kF32, kStream, 1, x.data(), out.data(), 0, 4);
  EXPECT_EQ(out, std::vector<float>(4, 0));
  dropout(DType::kF32, kStream, 0, x.data(), out.data(), 0, 4);
  EXPECT_EQ(out[0], 1);
  EXPECT_TRUE(std::isnan(out[1]));
  EXPECT_EQ(out[2], -INFINITY);
  EXPECT_THROW(dropout(DType::kF32, kStream, 1.5, x.data(), out.data(), 0, 4), InvalidArgument);
  EXPECT_THROW(dropout(DType::kF32, kStream, NAN, x.data(), out.data(), 0, 4), InvalidArgument);
  EXPECT_THROW(dropout(DType::kI32, kStream, 0.5, x.data(), out.data(), 0, 4), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::kernels
