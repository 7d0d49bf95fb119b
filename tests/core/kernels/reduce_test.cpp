// Tests: core/kernels/reduce.cpp
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

#include "lockstep/core/error.h"
#include "support/random_tensors.h"

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

// --- Reduction

constexpr AxisReduce kOps[] = {AxisReduce::kSum, AxisReduce::kMean,      AxisReduce::kProd,
                               AxisReduce::kMax, AxisReduce::kMin,       AxisReduce::kAny,
                               AxisReduce::kAll, AxisReduce::kLogSumExp, AxisReduce::kMoments};

bool takes(AxisReduce op, DType dtype) {
  switch (op) {
    case AxisReduce::kAny:
    case AxisReduce::kAll: return dtype == DType::kBool;
    case AxisReduce::kMean:
    case AxisReduce::kLogSumExp:
    case AxisReduce::kMoments: return is_floating(dtype);
    default: return dtype != DType::kBool;
  }
}

struct Results {
  Tensor first, second;
};

Results reduce(AxisReduce op, const Tensor& in, const Axes& axes) {
  const Shape shape = shape_without(in.shape(), axes);
  Results results{Tensor::full(in.dtype(), shape, 1), Tensor::full(in.dtype(), shape, 1)};
  Reduction(op, in.dtype(), in.shape(), axes).run_all(in.raw(), results.first.raw(), results.second.raw());
  return results;
}

std::vector<double> doubles(const Tensor& tensor) {
  std::vector<double> result;
  visit_dtype(tensor.dtype(), [&]<class T>(T) {
    for (const T x : tensor.data<T>()) {
      if constexpr (std::is_arithmetic_v<T>) {
        result.push_back(static_cast<double>(x));
      } else {
        result.push_back(static_cast<double>(static_cast<float>(x)));
      }
    }
  });
  return result;
}

// What each output is made of.
std::vector<std::vector<double>> groups(const Tensor& in, const Axes& axes) {
  std::vector<std::vector<double>> result(
      static_cast<std::size_t>(shape_without(in.shape(), axes).num_elements()));
  const std::vector<double> values = doubles(in);
  for (std::int64_t i = 0; i < in.num_elements(); ++i) {
    std::int64_t rest = i, at = 0, stride = 1;
    for (std::size_t axis = in.shape().rank(); axis-- > 0;) {
      const std::int64_t coordinate = rest % in.shape()[axis];
      rest /= in.shape()[axis];
      if (has(axes, axis)) continue;
      at += coordinate * stride;
      stride *= in.shape()[axis];
    }
    result[static_cast<std::size_t>(at)].push_back(values[static_cast<std::size_t>(i)]);
  }
  return result;
}

void check_reduction(AxisReduce op, const Tensor& in, const Axes& axes,
                     const std::vector<std::vector<double>>& all) {
  const Results results = reduce(op, in, axes);
  const std::vector<double> first = doubles(results.first), second = doubles(results.second);
  const double eps = tolerance(in.dtype());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::vector<double>& group = all[i];
    const auto n = static_cast<double>(group.size());
    double sum = 0, magnitude = 0, product = 1, exps = 0, squares = 0;
    for (const double x : group) {
      sum += x;
      magnitude += std::abs(x);
      product *= x;
      exps += std::exp(x);
    }
    for (const double x : group) squares += (x - sum / n) * (x - sum / n);
    double expected = 0, slack = 0;
    switch (op) {
      case AxisReduce::kSum: expected = sum, slack = magnitude; break;
      case AxisReduce::kMean: expected = sum / n, slack = magnitude / n; break;
      case AxisReduce::kMoments: expected = sum / n, slack = magnitude / n; break;
      case AxisReduce::kProd: expected = product, slack = n * std::abs(product); break;
      case AxisReduce::kMax:
      case AxisReduce::kAny: expected = *std::max_element(group.begin(), group.end()); break;
      case AxisReduce::kMin:
      case AxisReduce::kAll: expected = *std::min_element(group.begin(), group.end()); break;
      case AxisReduce::kLogSumExp: expected = std::log(exps), slack = 1 + std::abs(std::log(exps)); break;
    }
    if (is_integer(in.dtype()) &&
        (std::abs(expected) > 1e15 || (in.dtype() == DType::kI32 && std::abs(expected) > 2e9)))
      continue;  // wrapped around
    if (in.dtype() == DType::kU8) expected = std::fmod(expected, 256);
    ASSERT_NEAR(first[i], expected, eps * slack + 1e-300)
        << static_cast<int>(op) << ' ' << in.spec() << " over " << ::testing::PrintToString(axes) << " at "
        << i;
    if (op == AxisReduce::kMoments) {
      ASSERT_NEAR(second[i], squares / n, 8 * eps * (squares / n + 1)) << in.spec() << " at " << i;
    }
  }
}

TEST(Reduction, EqualsTheNaiveOneOnRandomShapes) {
  Dice dice(11);
  for (int round = 0; round < 40; ++round) {
    const auto [shape, axes] = random_problem(dice);
    for (const AxisReduce op : kOps) {
      const DType dtype = kAllDTypes[dice.roll(8)];
      if (!takes(op, dtype)) continue;
      const Tensor in = random_tensor(dtype, shape, dice);
      check_reduction(op, in, axes, groups(in, axes));
    }
  }
}

// Large enough for several shards of outputs, of parts, and of both.
const std::vector<std::pair<Shape, Axes>> kLarge = {
    {{300'000}, {0}},         {{5, 40'000}, {1}},   {{1000, 150}, {1}},     {{1000, 150}, {0}},
    {{40'000, 5}, {0}},       {{600, 500}, {0}},    {{30, 70, 90}, {0, 2}}, {{30, 70, 90}, {1}},
    {{2, 3, 40'000}, {0, 2}}, {{300, 700}, {0, 1}}, {{70, 2, 1500}, {0}}};

TEST(Reduction, EqualsTheNaiveOneInManyShards) {
  Dice dice(12);
  for (const auto& [shape, axes] : kLarge) {
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kI64, DType::kBF16, DType::kBool}) {
      const Tensor in = random_tensor(dtype, shape, dice);
      const std::vector<std::vector<double>> all = groups(in, axes);
      for (const AxisReduce op : kOps) {
        if (!takes(op, dtype) || op == AxisReduce::kProd) continue;
        check_reduction(op, in, axes, all);
      }
    }
  }
}

TEST(Reduction, ShardsMayRunInAnyOrder) {
  Dice dice(13);
  for (const auto& [shape, axes] : kLarge) {
    const Tensor in = random_tensor(DType::kF32, shape, dice);
    for (const AxisReduce op : {AxisReduce::kSum, AxisReduce::kLogSumExp, AxisReduce::kMoments}) {
      const Reduction reduction(op, DType::kF32, shape, axes);
      EXPECT_GT(reduction.shards(), 1) << in.spec();
      const Results expected = reduce(op, in, axes);
      Results actual{Tensor::zeros(expected.first.shape()), Tensor::zeros(expected.first.shape())};
      std::vector<double> scratch(reduction.scratch_bytes() / 8 + 1, 1e300);
      for (std::int64_t i = reduction.shards(); i-- > 0;) {
        reduction.run(in.raw(), actual.first.raw(), scratch.data(), i, actual.second.raw());
      }
      if (reduction.has_finish()) reduction.finish(scratch.data(), actual.first.raw(), actual.second.raw());
      EXPECT_TRUE(actual.first.bit_equal(expected.first)) << in.spec();
      if (op == AxisReduce::kMoments) {
        EXPECT_TRUE(actual.second.bit_equal(expected.second)) << in.spec();
      }
    }
  }
}

TEST(Reduction, OfNothing) {
  const Tensor none = Tensor::zeros({3, 0});
  EXPECT_THAT(reduce(AxisReduce::kSum, none, {1}).first.data<float>(), ElementsAre(0, 0, 0));
  EXPECT_THAT(reduce(AxisReduce::kProd, none, {1}).first.data<float>(), ElementsAre(1, 1, 1));
  EXPECT_TRUE(std::isnan(element(reduce(AxisReduce::kMean, none, {1}).first, 0)));
  EXPECT_TRUE(std::isnan(element(reduce(AxisReduce::kMoments, none, {1}).first, 2)));
  EXPECT_TRUE(std::isnan(element(reduce(AxisReduce::kMoments, none, {1}).second, 2)));
  EXPECT_EQ(element(reduce(AxisReduce::kLogSumExp, none, {1}).first, 0), -HUGE_VAL);
  EXPECT_THROW(Reduction(AxisReduce::kMax, DType::kF32, {3, 0}, Axes{1}), InvalidArgument);
  EXPECT_THROW(Reduction(AxisReduce::kMin, DType::kF32, {0}, Axes{0}), InvalidArgument);
  EXPECT_EQ(reduce(AxisReduce::kMax, none, {0}).first.num_elements(), 0) << "no outputs, nothing to refuse";
  const Tensor bools = Tensor::empty(DType::kBool, {0});
  EXPECT_EQ(reduce(AxisReduce::kAny, bools, {0}).first.item(), 0);
  EXPECT_EQ(reduce(AxisReduce::kAll, bools, {0}).first.item(), 1);
}

TEST(Reduction, NaNWinsWhereverItStands) {
  for (const std::int64_t n : {1, 7, 16, 40, 200'000}) {
    for (const std::int64_t at : {std::int64_t{0}, n / 2, n - 1}) {
      Tensor in = Tensor::full(DType::kF32, {n}, 1);
      in.data<float>()[static_cast<std::size_t>(at)] = NAN;
      for (const AxisReduce op :
           {AxisReduce::kMax, AxisReduce::kMin, AxisReduce::kSum, AxisReduce::kLogSumExp}) {
        EXPECT_TRUE(std::isnan(reduce(op, in, {0}).first.item())) << n << ' ' << at;
      }
    }
  }
}

TEST(Reduction, LogSumExpNeitherOverflowsNorUnderflows) {
  EXPECT_NEAR(reduce(AxisReduce::kLogSumExp, Tensor::full(DType::kF32, {4}, 1000), {0}).first.item(),
              1000 + std::log(4.0), 1e-3);
  EXPECT_NEAR(reduce(AxisReduce::kLogSumExp, Tensor::full(DType::kF32, {4}, -1000), {0}).first.item(),
              -1000 + std::log(4.0), 1e-3);
  for (const std::int64_t n : {3, 100'000}) {  // in one part, and in several
    Tensor in = Tensor::full(DType::kF64, {n}, -HUGE_VAL);
    EXPECT_EQ(reduce(AxisReduce::kLogSumExp, in, {0}).first.item(), -HUGE_VAL);
    in.data<double>()[static_cast<std::size_t>(n - 1)] = -2000;
    EXPECT_EQ(reduce(AxisReduce::kLogSumExp, in, {0}).first.item(), -2000);
    in.data<double>()[0] = HUGE_VAL;
    EXPECT_EQ(reduce(AxisReduce::kLogSumExp, in, {0}).first.item(), HUGE_VAL);
  }
}

TEST(Reduction, VarianceOfValuesFarFromZeroIsRight) {
  for (const auto& [shape, axes] : kLarge) {
    Dice dice(14);
    Tensor in = random_tensor(DType::kF64, shape, dice);
    for (double& x : in.data<double>()) x += 1e6;
    const Tensor variance = reduce(AxisReduce::kMoments, in, axes).second;
    const std::vector<std::vector<double>> all = groups(in, axes);
    double sum = 0, squares = 0;
    for (const double x : all[0]) sum += x - 1e6;
    const double mean = sum / static_cast<double>(all[0].size());
    for (const double x : all[0]) squares += (x - 1e6 - mean) * (x - 1e6 - mean);
    EXPECT_NEAR(element(variance, 0), squares / static_cast<double>(all[0].size()), 1e-6) << in.spec();
  }
}

TEST(Reduction, RefusesDTypesItDoesNotTake) {
  for (const AxisReduce op : kOps) {
    for (const DType dtype : kAllDTypes) {
      if (takes(op, dtype)) continue;
      EXPECT_THROW(Reduction(op, dtype, {2}, Axes{0}), InvalidArgument);
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels
