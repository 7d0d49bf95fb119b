#include "lockstep/core/kernels/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/kernels/random_tensors.h"
#include "lockstep/core/error.h"

namespace lockstep::kernels {
namespace {

using ::testing::ElementsAre;

using Axes = std::vector<std::int64_t>;

bool has(const Axes& axes, std::size_t axis) {
  return std::find(axes.begin(), axes.end(), static_cast<std::int64_t>(axis)) != axes.end();
}

Shape shape_without(const Shape& shape, const Axes& axes) {
  std::vector<std::int64_t> dims;
  for (std::size_t i = 0; i < shape.rank(); ++i) {
    if (!has(axes, i)) dims.push_back(shape[i]);
  }
  return Shape(std::span<const std::int64_t>(dims));
}

Tensor run(const Tensor& in, const Axes& axes) {
  Tensor out = Tensor::full(in.dtype(), shape_without(in.shape(), axes), 7);
  sum(in.dtype(), in.raw(), in.shape(), axes, out.raw(), 0, out.num_elements());
  return out;
}

struct Sums {
  std::vector<double> sum, magnitude;
};

Sums naive(const Tensor& in, const Axes& axes) {
  const Shape out = shape_without(in.shape(), axes);
  const auto count = static_cast<std::size_t>(out.num_elements());
  Sums sums{std::vector<double>(count), std::vector<double>(count)};
  for (std::int64_t i = 0; i < in.num_elements(); ++i) {
    std::int64_t rest = i, at = 0, stride = 1;
    for (std::size_t axis = in.shape().rank(); axis-- > 0;) {
      const std::int64_t coordinate = rest % in.shape()[axis];
      rest /= in.shape()[axis];
      if (has(axes, axis)) continue;
      at += coordinate * stride;
      stride *= in.shape()[axis];
    }
    sums.sum[static_cast<std::size_t>(at)] += element(in, i);
    sums.magnitude[static_cast<std::size_t>(at)] += std::abs(element(in, i));
  }
  return sums;
}

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::kF16: return 0x1p-10;
    case DType::kBF16: return 0x1p-7;
    case DType::kF32: return 0x1p-20;
    case DType::kF64: return 0x1p-48;
    default: return 0;
  }
}

void check_against_naive(const Tensor& in, const Axes& axes) {
  const Tensor out = run(in, axes);
  const Sums expected = naive(in, axes);
  for (std::size_t i = 0; i < expected.sum.size(); ++i) {
    double value = expected.sum[i];
    if (in.dtype() == DType::kU8) value = std::fmod(value, 256);
    ASSERT_NEAR(element(out, static_cast<std::int64_t>(i)), value,
                tolerance(in.dtype()) * expected.magnitude[i])
        << in.spec() << " over " << ::testing::PrintToString(axes) << " at " << i;
  }
}

std::pair<Shape, Axes> random_problem(Dice& dice) {
  const auto rank = static_cast<std::size_t>(dice.roll(7));
  std::vector<std::int64_t> dims(rank);
  Axes axes;
  for (std::size_t i = 0; i < rank; ++i) {
    dims[i] = 1 + dice.roll(rank > 4 ? 4 : 9);
    if (dice.roll(2) == 0) axes.push_back(static_cast<std::int64_t>(i));
  }
  return {Shape(std::span<const std::int64_t>(dims)), axes};
}

TEST(Sum, EqualsTheNaiveSumOnRandomShapes) {
  Dice dice(1);
  for (int round = 0; round < 60; ++round) {
    const auto [shape, axes] = random_problem(dice);
    const DType dtype = kAllDTypes[dice.roll(7)];
    check_against_naive(random_tensor(dtype, shape, dice), axes);
  }
}

TEST(Sum, EqualsTheNaiveSumBeyondOneBlock) {
  Dice dice(2);
  for (const DType dtype : kAllDTypes) {
    if (dtype == DType::kBool) continue;
    check_against_naive(random_tensor(dtype, {2100}, dice), {0});
    check_against_naive(random_tensor(dtype, {3, 1050}, dice), {1});
    check_against_naive(random_tensor(dtype, {150, 7}, dice), {0});
    check_against_naive(random_tensor(dtype, {3, 300}, dice), {0});
    check_against_naive(random_tensor(dtype, {70, 3, 5}, dice), {0, 2});
  }
}

TEST(Sum, CuttingTheOutputChangesNoBit) {
  Dice dice(3);
  std::vector<std::pair<Shape, Axes>> problems = {
      {{70, 600}, {0}}, {{600, 70}, {1}}, {{5, 40, 9}, {1}}, {{4, 3, 50, 2}, {0, 2}}};
  for (int i = 0; i < 60; ++i) problems.push_back(random_problem(dice));
  for (const auto& [shape, axes] : problems) {
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16}) {
      const Tensor in = random_tensor(dtype, shape, dice);
      const Tensor whole = run(in, axes);
      Tensor pieces = Tensor::full(dtype, whole.shape(), 7);
      const std::vector<std::int64_t> cuts = random_cuts(whole.num_elements(), dice);
      for (std::size_t i = 1; i < cuts.size(); ++i) {
        sum(dtype, in.raw(), shape, axes, pieces.raw(), cuts[i - 1], cuts[i]);
      }
      ASSERT_TRUE(pieces.bit_equal(whole)) << in.spec() << ::testing::PrintToString(axes);
    }
  }
}

TEST(Sum, WritesItsRangeOnly) {
  const Tensor in = Tensor::full(DType::kF32, {10, 4}, 1);
  Tensor out = Tensor::zeros({10});
  sum(DType::kF32, in.raw(), in.shape(), Axes{1}, out.raw(), 3, 6);
  for (std::int64_t i = 0; i < 10; ++i) EXPECT_EQ(element(out, i), i >= 3 && i < 6 ? 4.0 : 0.0);
}

TEST(Sum, ExtentsOfOneDoNotChangeTheOrder) {
  Dice dice(4);
  const Tensor in = random_tensor(DType::kF32, {37, 53}, dice);
  const Tensor rows = run(in, {1}), columns = run(in, {0});
  EXPECT_TRUE(run(in.reshape({1, 37, 1, 53, 1}), {3}).reshape({37}).bit_equal(rows));
  EXPECT_TRUE(run(in.reshape({1, 37, 1, 53, 1}), {1, 4}).reshape({53}).bit_equal(columns));
}

TEST(Sum, OverNoElementsIsZero) {
  for (const DType dtype : kAllDTypes) {
    if (dtype == DType::kBool) continue;
    EXPECT_TRUE(run(Tensor::empty(dtype, {3, 0}), {1}).bit_equal(Tensor::zeros(dtype, {3})));
    EXPECT_TRUE(run(Tensor::empty(dtype, {0, 3}), {0, 1}).bit_equal(Tensor::zeros(dtype, {})));
    EXPECT_EQ(run(Tensor::empty(dtype, {0, 3}), {1}).num_elements(), 0);
  }
}

TEST(Sum, OverNoAxesIsACopy) {
  Dice dice(5);
  for (const DType dtype : kAllDTypes) {
    if (dtype == DType::kBool) continue;
    const Tensor in = random_tensor(dtype, {3, 5}, dice);
    EXPECT_TRUE(run(in, {}).bit_equal(in)) << dtype;
    const Tensor scalar = random_tensor(dtype, {}, dice);
    EXPECT_TRUE(run(scalar, {}).bit_equal(scalar)) << dtype;
  }
}

TEST(Sum, IntegersWrapAround) {
  constexpr auto kMax32 = std::numeric_limits<std::int32_t>::max();
  EXPECT_THAT(run(Tensor::from({2}, {kMax32, 1}), {0}).data<std::int32_t>(),
              ElementsAre(std::numeric_limits<std::int32_t>::min()));
  constexpr auto kMax64 = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(run(Tensor::from({2}, {kMax64, std::int64_t{1}}), {0}).data<std::int64_t>(),
              ElementsAre(std::numeric_limits<std::int64_t>::min()));
  EXPECT_THAT(run(Tensor::full(DType::kU8, {3}, 100), {0}).data<std::uint8_t>(), ElementsAre(44));
}

TEST(Sum, HalfTypesAccumulateInF32) {
  EXPECT_EQ(run(Tensor::full(DType::kF16, {4096}, 1), {0}).item(), 4096.0) << "f16 alone would stop at 2048";
  EXPECT_EQ(run(Tensor::full(DType::kBF16, {4096, 2}, 1), {0}).data<BF16>()[1], BF16(4096.F));
}

TEST(Sum, StaysAccurateOverManyElements) {
  const std::int64_t n = 1 << 20;
  const double exact = static_cast<double>(0.1F) * static_cast<double>(n);
  EXPECT_NEAR(run(Tensor::full(DType::kF32, {n}, 0.1), {0}).item(), exact, exact * 1e-4);
  EXPECT_NEAR(element(run(Tensor::full(DType::kF32, {n, 2}, 0.1), {0}), 1), exact, exact * 1e-3);
}

TEST(Sum, CarriesNaN) {
  Tensor in = Tensor::zeros({40});
  in.data<float>()[33] = NAN;
  EXPECT_TRUE(std::isnan(run(in, {0}).item()));
}

TEST(Sum, RefusesAxesAndDTypesItCannotHandle) {
  const Tensor in = Tensor::zeros({2, 3});
  Tensor out = Tensor::zeros({6});
  for (const Axes& axes : {Axes{2}, Axes{-1}, Axes{1, 0}, Axes{0, 0}}) {
    EXPECT_THROW(sum(DType::kF32, in.raw(), in.shape(), axes, out.raw(), 0, 1), InvalidArgument);
  }
  EXPECT_THROW(sum(DType::kBool, in.raw(), in.shape(), Axes{0}, out.raw(), 0, 1), InvalidArgument);
  EXPECT_THROW(sum(DType::kF32, in.raw(), in.shape(), Axes{0}, out.raw(), 0, 4), Error);
}

double sum_in_tiles(const Tensor& in, std::int64_t tile) {
  const std::int64_t n = in.num_elements();
  const std::int64_t count = (n + tile - 1) / tile;
  std::vector<double> partials(static_cast<std::size_t>(count) + 1);  // doubles for their alignment
  auto* bytes = reinterpret_cast<std::byte*>(partials.data());
  for (std::int64_t i = count; i-- > 0;) {  // in any order
    sum_tile(in.dtype(), in.raw(), i * tile, std::min(n, (i + 1) * tile),
             bytes + static_cast<std::size_t>(i) * size_of_partial(in.dtype()));
  }
  Tensor out = Tensor::zeros(in.dtype(), {});
  combine_tiles(in.dtype(), partials.data(), count, out.raw());
  return out.item();
}

TEST(SumTile, TilesAddUpToTheSum) {
  Dice dice(6);
  for (const DType dtype : kAllDTypes) {
    if (dtype == DType::kBool) continue;
    const Tensor in = random_tensor(dtype, {5000}, dice);
    const Sums expected = naive(in, {0});
    double value = expected.sum[0];
    if (dtype == DType::kU8) value = std::fmod(value, 256);
    for (const std::int64_t tile : {64, 999, 5000, 8192}) {
      EXPECT_NEAR(sum_in_tiles(in, tile), value, tolerance(dtype) * expected.magnitude[0])
          << dtype << ' ' << tile;
    }
  }
}

TEST(SumTile, PartialsAreOfTheDocumentedTypes) {
  const Tensor halves = Tensor::full(DType::kF16, {3}, 30000);
  float wide = 0;
  sum_tile(DType::kF16, halves.raw(), 0, 3, &wide);
  EXPECT_NEAR(wide, 90000.F, 100.F) << "more than f16 holds";
  const Tensor bytes = Tensor::full(DType::kU8, {3}, 200);
  std::int64_t whole = 0;
  sum_tile(DType::kU8, bytes.raw(), 0, 3, &whole);
  EXPECT_EQ(whole, 600);
  const Tensor ints = Tensor::full(DType::kI32, {2}, -2147483648.0);
  sum_tile(DType::kI32, ints.raw(), 0, 2, &whole);
  EXPECT_EQ(whole, -4294967296);
}

TEST(SumTile, NothingIsZero) {
  double partial = 7;
  sum_tile(DType::kF64, nullptr, 0, 0, &partial);
  EXPECT_EQ(partial, 0.0);
  float out = 7;
  combine_tiles(DType::kF32, nullptr, 0, &out);
  EXPECT_EQ(out, 0.F);
  EXPECT_THROW(sum_tile(DType::kBool, nullptr, 0, 0, &partial), InvalidArgument);
  EXPECT_THROW(combine_tiles(DType::kBool, nullptr, 0, &partial), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::kernels
