// Tests: core/kernels/elementwise.cpp, core/kernels/simd/vector_table.cpp
// The accuracy and the special values of the vectorised functions, against <cmath> in long double.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/core/kernels/elementwise.h"
#include "support/random_tensors.h"

namespace lockstep::kernels {
namespace {

using Real = long double;

Real exact_sigmoid(Real x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }
Real exact_softplus(Real x) { return (x > 0 ? x : 0) + std::log1p(std::exp(-std::abs(x))); }
Real exact_gelu(Real x) {
  return std::isinf(x) ? (x > 0 ? x : 0) : x * std::erfc(-x / std::sqrt(Real{2})) / 2;
}

// Units in the last place of T at `value`.
template <class T>
Real ulp_at(Real value) {
  const T size = std::min(static_cast<T>(std::abs(value)), std::numeric_limits<T>::max());
  const T next = std::nextafter(size, std::numeric_limits<T>::infinity());
  if (std::isinf(next)) return static_cast<Real>(size) - static_cast<Real>(std::nextafter(size, T{0}));
  return static_cast<Real>(next) - static_cast<Real>(size);
}

// How far `actual` is off, in units in the last place; infinite where one is NaN and the other is not.
template <class T>
Real error_in_ulp(T actual, Real expected) {
  if (std::isnan(expected)) return std::isnan(actual) ? 0 : std::numeric_limits<Real>::infinity();
  const T nearest = static_cast<T>(expected);
  if (actual == nearest) return 0;
  if (std::isnan(actual)) return std::numeric_limits<Real>::infinity();
  if (std::isinf(actual)) {
    // Half a step beyond the largest number rounds to infinity; a little less may do so, too.
    const Real top = static_cast<Real>(std::numeric_limits<T>::max());
    return std::signbit(actual) == std::signbit(nearest) ? (top - std::abs(expected)) / ulp_at<T>(expected)
                                                         : std::numeric_limits<Real>::infinity();
  }
  return std::abs(static_cast<Real>(actual) - expected) / ulp_at<T>(expected);
}

// Numbers of all sizes and signs, many of them in [-20, 20], and the special ones.
template <class T>
std::vector<T> samples() {
  std::vector<T> values = {T{0}, -T{0}, T{1}, -T{1}, T(0.5), -T(0.5), T(2), -T(2)};
  using Limits = std::numeric_limits<T>;
  for (const T value :
       {Limits::infinity(), Limits::max(), Limits::min(), Limits::denorm_min(), Limits::epsilon(),
        T(88.72283), T(88.73), T(709.78), T(709.79), T(103.9), T(104.5), T(745.1), T(746), T(39000), T(39001),
        T(1e10), T(3.14159265358979), T(18.7), T(18.8)}) {
    values.push_back(value);
    values.push_back(-value);
  }
  values.push_back(Limits::quiet_NaN());
  Dice dice(11);
  constexpr std::int64_t kWord = std::int64_t{1} << 32;
  for (int i = 0; i < 6'000; ++i) {
    using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    const auto high = static_cast<std::uint64_t>(dice.roll(kWord)),
               low = static_cast<std::uint64_t>(dice.roll(kWord));
    const T any = std::bit_cast<T>(static_cast<Bits>(sizeof(T) == 4 ? high : high << 32U | low));
    if (!std::isnan(any)) values.push_back(any);
    const T unit = static_cast<T>(low) / static_cast<T>(kWord);
    values.push_back((2 * unit - 1) * T(1.5));
    values.push_back((2 * unit - 1) * T(20));
    values.push_back((2 * unit - 1) * T(120));
    if (sizeof(T) == 8) values.push_back((2 * unit - 1) * T(760));
  }
  return values;
}

struct Function {
  UnaryOp op;
  Real (*exact)(Real);
  double ulp;       // allowed
  double epsilons;  // or this much, in absolute terms: relative to max(1, |x|)
};

constexpr double kNone = 0;
const Function kFunctions[] = {
    {UnaryOp::kExp, [](Real x) { return std::exp(x); }, 2, kNone},
    {UnaryOp::kLog, [](Real x) { return std::log(x); }, 4, kNone},
    {UnaryOp::kLog1p, [](Real x) { return std::log1p(x); }, 4, kNone},
    {UnaryOp::kSqrt, [](Real x) { return std::sqrt(x); }, 0.5001, kNone},
    {UnaryOp::kRsqrt, [](Real x) { return 1 / std::sqrt(x); }, 2, kNone},
    {UnaryOp::kReciprocal, [](Real x) { return 1 / x; }, 0.5001, kNone},
    {UnaryOp::kSin, [](Real x) { return std::sin(x); }, 4, 0.5},
    {UnaryOp::kCos, [](Real x) { return std::cos(x); }, 4, 0.5},
    {UnaryOp::kTanh, [](Real x) { return std::tanh(x); }, 5, kNone},
    {UnaryOp::kSigmoid, exact_sigmoid, 4, kNone},
    {UnaryOp::kSoftplus, exact_softplus, 4, kNone},
    {UnaryOp::kErf, [](Real x) { return std::erf(x); }, 4, kNone},
    {UnaryOp::kGelu, exact_gelu, 16, 2},
    {UnaryOp::kSquare, [](Real x) { return x * x; }, 0.5001, kNone},
    {UnaryOp::kAbs, [](Real x) { return std::abs(x); }, 0, kNone},
    {UnaryOp::kNeg, [](Real x) { return -x; }, 0, kNone},
    {UnaryOp::kFloor, [](Real x) { return std::floor(x); }, 0, kNone},
    {UnaryOp::kCeil, [](Real x) { return std::ceil(x); }, 0, kNone},
    {UnaryOp::kRound, [](Real x) { return std::nearbyint(x); }, 0, kNone},
};

template <class T>
void expect_accurate(DType dtype) {
  const std::vector<T> in = samples<T>();
  std::vector<T> out(in.size());
  for (const Function& function : kFunctions) {
    unary_loop(function.op, dtype)(in.data(), out.data(), static_cast<std::int64_t>(in.size()));
    Real worst = 0;
    T worst_at = 0;
    for (std::size_t i = 0; i < in.size(); ++i) {
      const Real expected = function.exact(static_cast<Real>(in[i]));
      const Real off = error_in_ulp<T>(out[i], expected);
      const Real allowed = static_cast<Real>(function.epsilons) *
                           static_cast<Real>(std::numeric_limits<T>::epsilon()) *
                           std::max(Real{1}, std::abs(static_cast<Real>(in[i])));
      if (function.epsilons > 0 && std::abs(static_cast<Real>(out[i]) - expected) <= allowed) continue;
      if (off > worst) {
        worst = off;
        worst_at = in[i];
      }
    }
    EXPECT_LE(worst, static_cast<Real>(function.ulp))
        << to_string(function.op) << ' ' << dtype << " of " << worst_at;
    ::testing::Test::RecordProperty(std::string(to_string(function.op)), std::to_string(worst));
  }
}

TEST(VectorMath, IsAccurateInF32) { expect_accurate<float>(DType::kF32); }
TEST(VectorMath, IsAccurateInF64) { expect_accurate<double>(DType::kF64); }

TEST(VectorMath, ErfOfF64IsWithinOneQuadrillionth) {
  for (double x = -7; x < 7; x += 0.000'913) {
    double y = 0;
    unary_loop(UnaryOp::kErf, DType::kF64)(&x, &y, 1);
    ASSERT_NEAR(y, std::erf(x), 1e-15) << x;
  }
}

TEST(VectorMath, KeepsSignsOfZero) {
  for (const UnaryOp op :
       {UnaryOp::kSqrt, UnaryOp::kSin, UnaryOp::kTanh, UnaryOp::kLog1p, UnaryOp::kErf, UnaryOp::kGelu,
        UnaryOp::kFloor, UnaryOp::kCeil, UnaryOp::kRound, UnaryOp::kRelu}) {
    for (const double zero : {0.0, -0.0}) {
      double y = 1;
      unary_loop(op, DType::kF64)(&zero, &y, 1);
      EXPECT_EQ(std::bit_cast<std::uint64_t>(y), std::bit_cast<std::uint64_t>(zero)) << to_string(op);
      const auto small = static_cast<float>(zero);
      float z = 1;
      unary_loop(op, DType::kF32)(&small, &z, 1);
      EXPECT_EQ(std::bit_cast<std::uint32_t>(z), std::bit_cast<std::uint32_t>(small)) << to_string(op);
    }
  }
}

TEST(VectorMath, PowIsAccurateAndKnowsTheSpecialCases) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> values = {0.F, -0.F, 1.F,   -1.F,   2.F,     -2.F, 0.5F,  -0.5F, 3.F,          -3.F,
                               inf, -inf, 1e10F, 1e-40F, -1e-40F, 2.5F, -2.5F, 1e30F, std::nanf("")};
  Dice dice(5);
  for (int i = 0; i < 60; ++i) values.push_back(static_cast<float>(dice.roll(40'000) - 20'000) / 997.F);
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const float a : values) {
      for (const float b : values) {
        const Real expected = std::pow(static_cast<Real>(a), static_cast<Real>(b));
        if (dtype == DType::kF32) {
          float y = 0;
          binary_loop(BinaryOp::kPow, dtype)(&a, true, &b, true, &y, 1);
          ASSERT_LE(error_in_ulp<float>(y, expected), 1) << a << " ^ " << b << " = " << y;
          if (expected == 0) {
            ASSERT_EQ(std::signbit(y), std::signbit(expected)) << a << " ^ " << b;
          }
        } else {
          const double wide_a = static_cast<double>(a), wide_b = static_cast<double>(b);
          double y = 0;
          binary_loop(BinaryOp::kPow, dtype)(&wide_a, true, &wide_b, true, &y, 1);
          ASSERT_LE(error_in_ulp<double>(y, expected), 1) << a << " ^ " << b << " = " << y;
        }
      }
    }
  }
}

// Any number of elements, from any place on, in place or not, gives the bits that each alone gives.
TEST(VectorMath, DoesNotDependOnTheCuts) {
  Dice dice(3);
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    const Tensor in = random_tensor(dtype, {1200}, dice);
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    for (std::size_t k = 0; k < kNumUnaryOps; ++k) {
      const auto op = static_cast<UnaryOp>(k);
      const UnaryLoop loop = unary_loop(op, dtype);
      if (loop == nullptr || op == UnaryOp::kIsFinite) continue;
      Tensor alone = Tensor::empty(dtype, {1200});
      const auto at = [&](const Tensor& tensor, std::int64_t i) {
        return static_cast<std::byte*>(const_cast<void*>(tensor.raw())) + i * size;
      };
      for (std::int64_t i = 0; i < 1200; ++i) loop(at(in, i), at(alone, i), 1);
      Tensor cut = Tensor::empty(dtype, {1200});
      std::int64_t from = 0;
      for (std::int64_t step = 0; from < 1200; from += step) {
        step = std::min(1200 - from, 1 + dice.roll(70));
        loop(at(in, from), at(cut, from), step);
      }
      EXPECT_TRUE(cut.bit_equal(alone)) << to_string(op) << ' ' << dtype;
      Tensor in_place = in.clone();
      loop(in_place.raw(), in_place.raw(), 1200);
      EXPECT_TRUE(in_place.bit_equal(alone)) << to_string(op) << ' ' << dtype;
    }
  }
}

template <class T>
void expect_slopes_of_gelu(DType dtype) {
  const std::vector<T> in = samples<T>();
  const T one = 1;
  std::vector<T> out(in.size());
  binary_loop(BinaryOp::kGeluGrad, dtype)(&one, false, in.data(), true, out.data(),
                                          static_cast<std::int64_t>(in.size()));
  for (std::size_t i = 0; i < in.size(); ++i) {
    const Real x = in[i];
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(out[i]));
      continue;
    }
    const Real bell =
        std::abs(x) > 100 ? Real{0} : x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi_v<Real>);
    const Real exact = std::erfc(-x / std::sqrt(Real{2})) / 2 + bell;
    ASSERT_NEAR(static_cast<double>(out[i]), static_cast<double>(exact),
                8 * std::numeric_limits<T>::epsilon())
        << in[i];
  }
}
TEST(VectorMath, SlopesOfGelu) {
  expect_slopes_of_gelu<float>(DType::kF32);
  expect_slopes_of_gelu<double>(DType::kF64);
}

TEST(VectorMath, GeluFarBelowZeroIsMinusZero) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const float x : {-15.F, -20.F, -1e3F, -1e10F, -inf}) {
    float y = 1;
    unary_loop(UnaryOp::kGelu, DType::kF32)(&x, &y, 1);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(y), 0x80000000U) << x << " gave " << y;
  }
}

}  // namespace
}  // namespace lockstep::kernels
