// Tests: graph/train/initializers.cpp
// First values: moments, bounds, fans, and bits that follow from the seed alone.
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/train/initializers.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using initializers::Fans;
using testing::caught;
using ::testing::HasSubstr;

struct Moments {
  double mean = 0, deviation = 0, low = 0, high = 0;
};

Moments moments(const Tensor& tensor) {
  Moments m;
  const std::span<const double> values = tensor.data<double>();
  const auto n = static_cast<double>(values.size());
  for (const double x : values) m.mean += x / n;
  for (const double x : values) m.deviation += (x - m.mean) * (x - m.mean) / n;
  m.deviation = std::sqrt(m.deviation);
  m.low = *std::ranges::min_element(values);
  m.high = *std::ranges::max_element(values);
  return m;
}

TEST(Initializers, FillWithZerosAndConstants) {
  EXPECT_TRUE(initializers::zeros({2, 3}).bit_equal(Tensor::zeros({2, 3})));
  EXPECT_TRUE(initializers::constant({2}, 1.5, DType::kF16).bit_equal(Tensor::full(DType::kF16, {2}, 1.5)));
  EXPECT_TRUE(initializers::constant({}, 3, DType::kI64).bit_equal(Tensor::scalar(std::int64_t{3})));
}

TEST(Initializers, UniformIsUniform) {
  const Moments m = moments(initializers::uniform({100, 500}, 1, {-1, 3}, DType::kF64));
  EXPECT_NEAR(m.mean, 1, 0.02);
  EXPECT_NEAR(m.deviation, 4 / std::sqrt(12.0), 0.02);
  EXPECT_GE(m.low, -1);
  EXPECT_LT(m.high, 3);
  EXPECT_LT(m.low, -0.99);
  EXPECT_GT(m.high, 2.99);
}

TEST(Initializers, NormalIsNormal) {
  const Tensor t = initializers::normal({100, 500}, 1, {2, 0.5}, DType::kF64);
  const Moments m = moments(t);
  EXPECT_NEAR(m.mean, 2, 0.01);
  EXPECT_NEAR(m.deviation, 0.5, 0.005);
  // 68.27 % within one deviation, 95.45 % within two.
  const auto share = [&](double deviations) {
    const auto inside =
        std::ranges::count_if(t.data<double>(), [&](double x) { return std::abs(x - 2) < deviations * 0.5; });
    return static_cast<double>(inside) / 50'000;
  };
  EXPECT_NEAR(share(1), 0.6827, 0.01);
  EXPECT_NEAR(share(2), 0.9545, 0.005);
}

TEST(Initializers, TruncatedNormalStaysWithinTwoDeviations) {
  const Moments m = moments(initializers::truncated_normal({100, 500}, 1, {1, 0.5}, DType::kF64));
  EXPECT_NEAR(m.mean, 1, 0.01);
  EXPECT_NEAR(m.deviation, 0.5 * 0.8796, 0.005);
  EXPECT_GT(m.low, 0);
  EXPECT_LT(m.high, 2);
}

TEST(Initializers, FansCountWhatAnOutputSeesAndAnInputFeeds) {
  const auto expect = [](const Shape& shape, double in, double out) {
    const Fans fans = initializers::fans_of(shape);
    EXPECT_EQ(fans.in, in) << shape.to_string();
    EXPECT_EQ(fans.out, out) << shape.to_string();
  };
  expect({}, 1, 1);
  expect({7}, 7, 7);
  expect({3, 5}, 3, 5);
  expect({3, 5, 8, 16}, 3 * 5 * 8, 3 * 5 * 16);
  expect({4, 8, 2}, 4 * 8, 4 * 2);
}

TEST(Initializers, GlorotAndHeFollowTheFans) {
  const Shape dense{200, 300}, window{3, 3, 40, 60};
  const auto expect = [](const Tensor& tensor, double variance, bool uniform) {
    const Moments m = moments(tensor);
    EXPECT_NEAR(m.mean, 0, 0.002);
    EXPECT_NEAR(m.deviation, std::sqrt(variance), 0.02 * std::sqrt(variance));
    const double bound = uniform ? std::sqrt(3 * variance) : 2 * std::sqrt(variance) / 0.8796;
    EXPECT_LE(m.high, bound);
    EXPECT_GE(m.low, -bound);
    EXPECT_GT(m.high, 0.98 * bound);
  };
  using namespace initializers;
  expect(glorot_uniform(dense, 1, DType::kF64), 2.0 / 500, true);
  expect(glorot_normal(dense, 1, DType::kF64), 2.0 / 500, false);
  expect(he_uniform(dense, 1, DType::kF64), 2.0 / 200, true);
  expect(he_normal(dense, 1, DType::kF64), 2.0 / 200, false);
  expect(glorot_uniform(window, 1, DType::kF64), 2.0 / 900, true);
  expect(he_normal(window, 1, DType::kF64), 2.0 / 360, false);
}

// The largest difference between q q^T (or q^T q, for tall ones) and gain^2 times the identity.
double error_of(const Tensor& tensor, double gain) {
  const std::int64_t columns = tensor.shape().dim(-1), rows = tensor.num_elements() / columns;
  const std::span<const double> q = tensor.data<double>();
  const bool tall = rows >= columns;
  const std::int64_t n = std::min(rows, columns), length = std::max(rows, columns);
  const auto at = [&](std::int64_t vector, std::int64_t i) {
    return q[static_cast<std::size_t>(tall ? i * columns + vector : vector * columns + i)];
  };
  double worst = 0;
  for (std::int64_t a = 0; a < n; ++a) {
    for (std::int64_t b = 0; b < n; ++b) {
      double dot = 0;
      for (std::int64_t i = 0; i < length; ++i) dot += at(a, i) * at(b, i);
      worst = std::max(worst, std::abs(dot - (a == b ? gain * gain : 0)));
    }
  }
  return worst;
}

TEST(Initializers, OrthogonalIsOrthogonal) {
  for (const Shape& shape :
       {Shape{5, 5}, Shape{40, 7}, Shape{7, 40}, Shape{3, 3, 4, 8}, Shape{1, 6}, Shape{64, 64}}) {
    EXPECT_LT(error_of(initializers::orthogonal(shape, 3, 1.5, DType::kF64), 1.5), 1e-12)
        << shape.to_string();
  }
  EXPECT_EQ(initializers::orthogonal({0, 4}, 1).shape(), (Shape{0, 4}));
}

TEST(Initializers, OrthogonalHasNoFavouriteSign) {
  // Without the sign fix, Householder's QR would give the first entry one sign for ever.
  int positive = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    positive += initializers::orthogonal({3, 3}, seed, 1, DType::kF64).data<double>()[0] > 0 ? 1 : 0;
  }
  EXPECT_GT(positive, 70);
  EXPECT_LT(positive, 130);
}

TEST(Initializers, TheSeedDecidesTheBits) {
  using namespace initializers;
  const std::vector<std::function<Tensor(std::uint64_t)>> makers = {[](std::uint64_t s) {
                                                                      return uniform({4, 4}, s);
                                                                    },
                                                                    [](std::uint64_t s) {
                                                                      return normal({4, 4}, s);
                                                                    },
                                                                    [](std::uint64_t s) {
                                                                      return truncated_normal({4, 4}, s);
                                                                    },
                                                                    [](std::uint64_t s) {
                                                                      return glorot_uniform({4, 4}, s);
                                                                    },
                                                                    [](std::uint64_t s) {
                                                                      return he_normal({4, 4}, s);
                                                                    },
                                                                    [](std::uint64_t s) {
                                                                      return orthogonal({4, 4}, s);
                                                                    }};
  for (const auto& make : makers) {
    EXPECT_TRUE(make(5).bit_equal(make(5)));
    EXPECT_FALSE(make(5).bit_equal(make(6)));
  }
  // A longer tensor begins as a shorter one.
  EXPECT_TRUE(normal({8}, 1).slice(0, 3).bit_equal(normal({3}, 1)));
}

TEST(Initializers, SixteenBitsRoundWhatIsDrawn) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    const Tensor exact = initializers::normal({50}, 1, {}, DType::kF64);
    const Tensor rounded = initializers::normal({50}, 1, {}, dtype);
    for (std::int64_t i = 0; i < 50; ++i) {
      EXPECT_NEAR(rounded.slice(i, i + 1).item(), exact.slice(i, i + 1).item(), 1e-3);
    }
  }
}

TEST(Initializers, DeclareVariables) {
  GraphBuilder b;
  VariableDecl decl = initializers::declare("w", initializers::he_uniform({3, 4}, 1));
  decl.trainable = false;
  b.variable(decl);
  b.variable("u", initializers::glorot_uniform({3, 4}, 2));
  const Graph graph = b.finish();
  EXPECT_EQ(graph.find_variable("w")->spec, (TensorSpec{DType::kF32, {3, 4}}));
  EXPECT_TRUE(graph.find_variable("w")->initial.bit_equal(initializers::he_uniform({3, 4}, 1)));
}

TEST(Initializers, RefuseWhatTheyCannotDraw) {
  using namespace initializers;
  EXPECT_THAT(caught([] { uniform({2}, 1, {}, DType::kI32); }).what,
              HasSubstr("uniform: draws floating numbers, not i32"));
  EXPECT_THAT(caught([] { normal({2, kUnknown}, 1); }).what, HasSubstr("needs a known shape, got [2,?]"));
  EXPECT_THAT(caught([] {
                normal({2}, 1, {0, -1});
              }).what,
              HasSubstr("the deviation must be finite and 0 or more"));
  EXPECT_THAT(caught([] {
                uniform({2}, 1, {1, 1});
              }).what,
              HasSubstr("its low end below its high one; got [1, 1)"));
  EXPECT_THAT(caught([] { orthogonal({2}, 1); }).what, HasSubstr("needs rank 2 or more"));
  EXPECT_THAT(caught([] {
                he_normal({2, 2}, 1, DType::kBool);
              }).what,
              HasSubstr("he_normal: draws floating"));
}

}  // namespace
}  // namespace lockstep
