// Tests: core/kernels/gemm.cpp, core/kernels/gemm_neon.cpp
#include "lockstep/core/kernels/gemm.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "support/random_tensors.h"

namespace lockstep::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Case {
  bool transpose_a, transpose_b;
  std::int64_t m, n, k, pad;  // pad: how much longer than needed rows are
};

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::kF16: return 0x1p-10;
    case DType::kBF16: return 0x1p-7;
    case DType::kF32: return 0x1p-20;
    case DType::kF64: return 0x1p-48;
    default: return 0;
  }
}

// What the dtype makes of an exact integer result.
double wrapped(DType dtype, double value) {
  return dtype == DType::kU8
             ? static_cast<double>(static_cast<std::uint8_t>(static_cast<std::int64_t>(value)))
             : value;
}

void check_against_naive(DType dtype, const Case& c, Dice& dice) {
  const std::int64_t a_rows = c.transpose_a ? c.k : c.m, lda = (c.transpose_a ? c.m : c.k) + c.pad;
  const std::int64_t b_rows = c.transpose_b ? c.n : c.k, ldb = (c.transpose_b ? c.k : c.n) + c.pad;
  const std::int64_t ldc = c.n + c.pad;
  const Tensor a = random_tensor(dtype, {a_rows, lda}, dice), b = random_tensor(dtype, {b_rows, ldb}, dice);
  const Tensor before = random_tensor(dtype, {c.m, ldc}, dice);
  Tensor out = before.clone();
  gemm(dtype, c.transpose_a, c.transpose_b, c.m, c.n, c.k, a.raw(), lda, b.raw(), ldb, out.raw(), ldc);
  const auto at = [](const std::vector<double>& values, std::int64_t i) {
    return values[static_cast<std::size_t>(i)];
  };
  const std::vector<double> as = elements(a), bs = elements(b);
  for (std::int64_t i = 0; i < c.m; ++i) {
    for (std::int64_t j = 0; j < c.n; ++j) {
      double sum = 0, magnitude = 0;
      for (std::int64_t l = 0; l < c.k; ++l) {
        const double product = at(as, c.transpose_a ? l * lda + i : i * lda + l) *
                               at(bs, c.transpose_b ? j * ldb + l : l * ldb + j);
        sum += product;
        magnitude += std::abs(product);
      }
      ASSERT_NEAR(element(out, i * ldc + j), wrapped(dtype, sum), tolerance(dtype) * magnitude)
          << dtype << ' ' << c.transpose_a << c.transpose_b << ' ' << c.m << 'x' << c.n << 'x' << c.k;
    }
    for (std::int64_t j = c.n; j < ldc; ++j)
      ASSERT_EQ(element(out, i * ldc + j), element(before, i * ldc + j));
  }
}

TEST(Gemm, EqualsTheNaiveProduct) {
  Dice dice(1);
  for (const DType dtype : kAllDTypes) {
    if (dtype == DType::kBool) continue;
    for (int round = 0; round < 24; ++round) {
      const Case c{.transpose_a = (round & 1) != 0,
                   .transpose_b = (round & 2) != 0,
                   .m = 1 + dice.roll(12),
                   .n = 1 + dice.roll(12),
                   .k = 1 + dice.roll(12),
                   .pad = (round & 4) != 0 ? 3 : 0};
      check_against_naive(dtype, c, dice);
    }
  }
}

TEST(Gemm, EqualsTheNaiveProductBeyondOneBlock) {
  Dice dice(2);
  check_against_naive(DType::kF32,
                      {.transpose_a = false, .transpose_b = true, .m = 40, .n = 33, .k = 70, .pad = 1}, dice);
  check_against_naive(DType::kF64,
                      {.transpose_a = true, .transpose_b = false, .m = 33, .n = 40, .k = 70, .pad = 0}, dice);
}

// Around the sizes at which blocks and their pieces end: 8 rows, 12 columns, 128 rows, 512 terms, 516
// columns.
TEST(Gemm, EqualsTheNaiveProductAroundTheEdgesOfBlocks) {
  Dice dice(3);
  int round = 0;
  for (const auto& [m, n] :
       {std::pair{4, 4}, {7, 11}, {8, 12}, {9, 13}, {16, 25}, {127, 5}, {131, 13}, {5, 530}}) {
    for (const int k : {4, 5, 64, 511, 513, 1030}) {
      check_against_naive(DType::kF32,
                          {.transpose_a = (round & 1) != 0,
                           .transpose_b = (round & 2) != 0,
                           .m = m,
                           .n = n,
                           .k = k,
                           .pad = round % 3},
                          dice);
      ++round;
    }
  }
}

TEST(Gemm, OverNoTermsIsZero) {
  for (const DType dtype : kAllDTypes) {
    if (dtype == DType::kBool) continue;
    Tensor out = Tensor::full(dtype, {2, 4}, 1);
    gemm(dtype, false, false, 2, 3, 0, nullptr, 0, nullptr, 3, out.raw(), 4);
    for (std::int64_t i = 0; i < 8; ++i) EXPECT_EQ(element(out, i), i % 4 == 3 ? 1.0 : 0.0) << dtype;
  }
}

TEST(Gemm, OfNoElementsTouchesNothing) {
  gemm(DType::kF32, false, false, 0, 3, 2, nullptr, 2, nullptr, 3, nullptr, 3);
  gemm(DType::kI32, false, false, 3, 0, 2, nullptr, 2, nullptr, 0, nullptr, 0);
}

TEST(Gemm, DoesNotReadItsOutput) {
  const float a = 2, b = 3;
  float c = NAN;
  gemm(DType::kF32, false, false, 1, 1, 1, &a, 1, &b, 1, &c, 1);
  EXPECT_EQ(c, 6.F);
}

TEST(Gemm, AddsToItsOutputWhereItIsToldTo) {
  Dice dice(4);
  for (const DType dtype : kAllDTypes) {
    if (dtype == DType::kBool) continue;
    for (const std::int64_t n : {3, 40}) {
      const Tensor a = random_tensor(dtype, {n, n}, dice), b = random_tensor(dtype, {n, n}, dice);
      const Tensor before = random_tensor(dtype, {n, n}, dice);
      Tensor product = Tensor::zeros(dtype, {n, n}), sum = before.clone();
      gemm(dtype, false, true, n, n, n, a.raw(), n, b.raw(), n, product.raw(), n);
      gemm(dtype, false, true, n, n, n, a.raw(), n, b.raw(), n, sum.raw(), n, true);
      for (std::int64_t i = 0; i < n * n; ++i) {
        const double expected = element(product, i) + element(before, i);
        const double magnitude = std::abs(element(product, i)) + static_cast<double>(n);
        ASSERT_NEAR(element(sum, i), wrapped(dtype, expected), 4 * tolerance(dtype) * magnitude) << dtype;
      }
      gemm(dtype, false, false, n, n, 0, nullptr, 0, nullptr, n, sum.raw(), n, true);
      EXPECT_NE(element(sum, 0), 0) << "no terms add nothing";
    }
  }
}

TEST(Gemm, IntegersWrapAround) {
  const std::int32_t a[] = {std::numeric_limits<std::int32_t>::max(), 1}, b[] = {1, 1};
  std::int32_t c = 0;
  gemm(DType::kI32, false, false, 1, 1, 2, a, 2, b, 1, &c, 1);
  EXPECT_EQ(c, std::numeric_limits<std::int32_t>::min());
  const std::int64_t wide[] = {std::numeric_limits<std::int64_t>::max()}, two[] = {2};
  std::int64_t product = 0;
  gemm(DType::kI64, false, false, 1, 1, 1, wide, 1, two, 1, &product, 1);
  EXPECT_EQ(product, -2);
}

TEST(Gemm, HalfTypesAccumulateInF32) {
  // In f16, 2048 + 1 is 2048: only a wider sum reaches 2048 + 4 * 1.
  const F16 a[] = {F16(2048.F), F16(1.F), F16(1.F), F16(1.F), F16(1.F)};
  const std::vector<F16> ones(5, F16(1.F));
  F16 c;
  gemm(DType::kF16, false, false, 1, 1, 5, a, 5, ones.data(), 1, &c, 1);
  EXPECT_EQ(static_cast<float>(c), 2052.F);
}

TEST(Gemm, RefusesWhatItCannotDo) {
  float x[4] = {};
  EXPECT_THROW(gemm(DType::kBool, false, false, 1, 1, 1, x, 1, x, 1, x, 1), InvalidArgument);
  EXPECT_THROW(gemm(DType::kF32, false, false, 2, 2, 2, x, 1, x, 2, x, 2), InvalidArgument);
  EXPECT_THROW(gemm(DType::kF32, false, true, 2, 2, 2, x, 2, x, 1, x, 2), InvalidArgument);
  EXPECT_THROW(gemm(DType::kF32, false, false, 2, 2, 2, x, 2, x, 2, x, 1), InvalidArgument);
  EXPECT_THROW(gemm(DType::kF32, false, false, -1, 2, 2, x, 2, x, 2, x, 2), InvalidArgument);
  const std::int64_t huge = std::int64_t{1} << 31U;
  EXPECT_THROW(gemm(DType::kF32, false, false, huge, 1, 1, x, 1, x, 1, x, 1), InvalidArgument);
  EXPECT_THROW(gemm(DType::kF32, false, false, 1, 1, 1, x, huge, x, 1, x, 1), InvalidArgument);
  try {
    gemm(DType::kF32, false, false, 1, huge, 1, x, 1, x, huge, x, huge);
    FAIL() << "n was taken";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.message(), HasSubstr("gemm: n is 2147483648: BLAS takes at most 2147483647"));
  }
}

TEST(Gemm, GivesTheSameBitsOnEveryThread) {
  Dice dice(3);
  const Tensor a = random_tensor(DType::kF32, {64, 64}, dice), b = random_tensor(DType::kF32, {64, 64}, dice);
  std::vector<Tensor> results;
  for (int i = 0; i < 4; ++i) results.push_back(Tensor::zeros({64, 64}));
  std::vector<std::thread> threads;
  for (Tensor& result : results) {
    threads.emplace_back(
        [&] { gemm(DType::kF32, false, false, 64, 64, 64, a.raw(), 64, b.raw(), 64, result.raw(), 64); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Tensor& result : results) EXPECT_TRUE(result.bit_equal(results[0]));
  EXPECT_NE(element(results[0], 0), 0.0);
}

// --- tiles

struct TileCase {
  std::int64_t m, n, k;
};

TEST(GemmTiles, TogetherAreTheProduct) {
  Dice dice(5);
  for (const TileCase c :
       {TileCase{400, 300, 90}, TileCase{40, 600, 300}, TileCase{30, 20, 20'000}, TileCase{3, 4, 5}}) {
    for (int transposes = 0; transposes < 4; ++transposes) {
      const bool ta = (transposes & 1) != 0, tb = (transposes & 2) != 0;
      const Tensor a = random_tensor(DType::kF64, ta ? Shape{c.k, c.m} : Shape{c.m, c.k}, dice);
      const Tensor b = random_tensor(DType::kF64, tb ? Shape{c.n, c.k} : Shape{c.k, c.n}, dice);
      Tensor whole = Tensor::zeros(DType::kF64, {c.m, c.n}),
             tiled = Tensor::full(DType::kF64, {c.m, c.n}, NAN);
      gemm(DType::kF64, ta, tb, c.m, c.n, c.k, a.raw(), ta ? c.m : c.k, b.raw(), tb ? c.k : c.n, whole.raw(),
           c.n);
      const GemmTiles tiles(DType::kF64, ta, tb, c.m, c.n, c.k);
      std::vector<double> scratch(tiles.scratch_bytes() / sizeof(double), NAN);
      for (std::int64_t i = tiles.count(); i-- > 0;)
        tiles.compute(i, a.raw(), b.raw(), tiled.raw(), scratch.data());
      if (tiles.needs_finish()) tiles.finish(tiled.raw(), scratch.data());
      const auto expected = whole.data<double>(), actual = tiled.data<double>();
      for (std::size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(actual[i], expected[i], 1e-12 * static_cast<double>(c.k))
            << c.m << 'x' << c.n << 'x' << c.k;
    }
  }
}

TEST(GemmTiles, SayWhichElementsTheyMake) {
  for (const TileCase c : {TileCase{400, 300, 90}, TileCase{40, 600, 300}, TileCase{30, 20, 20'000},
                           TileCase{1030, 515, 784}, TileCase{3, 4, 5}}) {
    const GemmTiles tiles(DType::kF32, false, false, c.m, c.n, c.k);
    std::vector<std::int64_t> makers(static_cast<std::size_t>(c.m * c.n), 0);
    for (std::int64_t i = 0; i < tiles.count(); ++i) {
      const GemmTiles::Tile tile = tiles.tile(i);
      for (std::int64_t row = tile.row; row < tile.row + tile.rows; ++row) {
        for (std::int64_t column = tile.column; column < tile.column + tile.columns; ++column)
          ++makers.at(static_cast<std::size_t>(row * c.n + column));
      }
    }
    const std::int64_t parts = tiles.needs_finish() ? tiles.count() : 1;
    for (const std::int64_t count : makers) ASSERT_EQ(count, parts) << c.m << 'x' << c.n << 'x' << c.k;
  }
}

TEST(GemmTiles, AreNotTooSmallAndAnEvenNumber) {
  EXPECT_EQ(GemmTiles(DType::kF32, false, false, 64, 10, 512).count(), 1);
  const GemmTiles rows(DType::kF32, false, false, 1024, 512, 784);
  EXPECT_EQ(rows.count(), 8);
  EXPECT_EQ(rows.rows() * rows.columns(), 1024 * 512 / 8);
  EXPECT_GE(rows.rows(), 128);
  EXPECT_GE(rows.columns(), 256);
  const GemmTiles columns(DType::kF32, false, true, 64, 784, 512);
  EXPECT_EQ(columns.count(), 2);
  EXPECT_EQ(columns.rows(), 64);
  const GemmTiles parts(DType::kF32, true, false, 16, 16, 100'000);
  EXPECT_GT(parts.count(), 1);
  EXPECT_TRUE(parts.needs_finish());
  EXPECT_EQ(parts.scratch_bytes(), static_cast<std::size_t>(parts.count()) * 16 * 16 * 4);
  EXPECT_EQ(GemmTiles(DType::kF32, true, false, 16, 16, 100'000, false).count(), 1);
  for (const TileCase c : {TileCase{0, 4, 4}, TileCase{4, 0, 4}, TileCase{4, 4, 0}})
    EXPECT_EQ(GemmTiles(DType::kF32, false, false, c.m, c.n, c.k).count(), 1);
}

}  // namespace
}  // namespace lockstep::kernels
