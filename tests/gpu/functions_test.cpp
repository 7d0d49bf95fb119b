// Tests: graph/cuda/elementwise.cpp, graph/cuda/prelude.cpp
// How far the functions of a card are from the true value, in units of the last place (docs/gpu.md states them).
#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "support/on_card.h"

namespace lockstep {
namespace {

struct Function {
  const char* op;
  double low, high;  // the arguments
  double f32, f64;   // units, at most
};

constexpr Function kFunctions[] = {
    {"exp", -80, 80, 2, 1},     {"log", 1e-6, 1e6, 1, 1},           {"log1p", -0.9, 1e4, 1, 1},
    {"sin", -1e4, 1e4, 2, 2},   {"cos", -1e4, 1e4, 2, 2},           {"tanh", -10, 10, 2, 2},
    {"erf", -4, 4, 2, 2},       {"sqrt", 0, 1e6, 0.5, 0.5},         {"rsqrt", 1e-6, 1e6, 2, 2},
    {"sigmoid", -20, 20, 4, 4}, {"reciprocal", 0.1, 1e6, 0.5, 0.5},
};

constexpr std::int64_t kCount = 100'003;

// Spread over the range, the same ones each time.
Tensor arguments(const Function& function, DType dtype) {
  Tensor x = Tensor::empty(DType::kF64, {kCount});
  for (std::int64_t i = 0; i < kCount; ++i) {
    const double part = std::fmod(static_cast<double>(i) * 0.6180339887498949, 1.0);
    x.data<double>()[static_cast<std::size_t>(i)] =
        function.low > 0 ? function.low * std::pow(function.high / function.low, part)
                         : function.low + (function.high - function.low) * part;
  }
  GraphBuilder b;
  b.result(cast(b.placeholder("x", DType::kF64, {kCount}), dtype));
  return Interpreter(b.finish()).run({x})[0];
}

// Of the true value, as a number of the dtype.
template <class T>
double unit_at(double value) {
  const T near = static_cast<T>(std::abs(value));
  return static_cast<double>(std::nextafter(near, std::numeric_limits<T>::infinity())) -
         static_cast<double>(near);
}

template <class T>
double worst(const Function& function, const Tensor& x, const Tensor& there) {
  GraphBuilder b;
  const Value wide = cast(b.placeholder("x", dtype_of<T>, {kCount}), DType::kF64);
  b.result(b.op1(function.op, {wide}));
  const Tensor truth = Interpreter(b.finish()).run({x})[0];
  double most = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(kCount); ++i) {
    const double expected = truth.data<double>()[i];
    if (expected == 0 || std::abs(expected) < static_cast<double>(std::numeric_limits<T>::min())) continue;
    const double distance = std::abs(static_cast<double>(there.data<T>()[i]) - expected);
    if (std::isnan(distance)) return std::numeric_limits<double>::infinity();
    most = std::max(most, distance / unit_at<T>(expected));
  }
  return most;
}

TEST(CardFunctions, AreWithinTheUnitsThatAreStated) {
  if (!testing::has_card()) GTEST_SKIP() << "this machine has no card";
  for (const Function& function : kFunctions) {
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      const Tensor x = arguments(function, dtype);
      GraphBuilder b;
      b.result(b.op1(function.op, {b.placeholder("x", dtype, {kCount})}));
      const std::vector<std::vector<Tensor>> runs =
          testing::run_on_card(b.finish(), std::vector<std::vector<Tensor>>{{x}});
      const Tensor there = runs[0][0].host();
      const double most =
          dtype == DType::kF32 ? worst<float>(function, x, there) : worst<double>(function, x, there);
      // What is called true is the CPU's function of f64, which may be one unit off itself.
      const double allowed = dtype == DType::kF32 ? function.f32 + 0.01 : function.f64 + 1;
      EXPECT_LE(most, allowed) << function.op << " of " << dtype;
      std::cout << function.op << ' ' << to_string(dtype) << ' ' << most << '\n';
    }
  }
}

}  // namespace
}  // namespace lockstep
