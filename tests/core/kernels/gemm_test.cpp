#include "lockstep/core/kernels/gemm.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/kernels/random_tensors.h"
#include "lockstep/core/error.h"

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
  for (std::int64_t i = 0; i < c.m; ++i) {
    for (std::int64_t j = 0; j < c.n; ++j) {
      double sum = 0, magnitude = 0;
      for (std::int64_t l = 0; l < c.k; ++l) {
        const double product = element(a, c.transpose_a ? l * lda + i : i * lda + l) *
                               element(b, c.transpose_b ? j * ldb + l : l * ldb + j);
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

}  // namespace
}  // namespace lockstep::kernels
