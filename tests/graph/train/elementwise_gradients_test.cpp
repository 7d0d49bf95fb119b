// Tests: graph/train/gradients.cpp, graph/ops/elementwise_binary.cpp, graph/ops/elementwise_unary.cpp
// Derivatives of element-wise ops against central differences, and at corners.
#include <cmath>

#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/gradients.h"
#include "support/gradient_check.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using testing::expect_gradients;
using testing::floats;
using testing::GradientCheck;
using testing::random_tensor;
using testing::vec;
using Inputs = std::span<const Value>;

struct UnaryCase {
  const char* name;
  Value (*function)(const Operand&);
  double low, high;
};

class UnaryGradient : public ::testing::TestWithParam<UnaryCase> {};

TEST_P(UnaryGradient, AgreesWithCentralDifferences) {
  const UnaryCase& unary = GetParam();
  expect_gradients([&](GraphBuilder&, Inputs x) { return unary.function(x[0]); },
                   {random_tensor({3, 5}, 1, unary.low, unary.high)});
}

INSTANTIATE_TEST_SUITE_P(
    Ops, UnaryGradient,
    ::testing::Values(UnaryCase{"neg", neg, -1, 1}, UnaryCase{"abs_above", abs, 0.5, 1},
                      UnaryCase{"abs_below", abs, -1, -0.5}, UnaryCase{"square", square, -1, 1},
                      UnaryCase{"relu_above", relu, 0.5, 1}, UnaryCase{"relu_below", relu, -1, -0.5},
                      UnaryCase{"exp", exp, -1, 1}, UnaryCase{"log", log, 0.5, 2},
                      UnaryCase{"log1p", log1p, -0.5, 2}, UnaryCase{"sqrt", sqrt, 0.5, 2},
                      UnaryCase{"rsqrt", rsqrt, 0.5, 2}, UnaryCase{"reciprocal", reciprocal, 0.5, 2},
                      UnaryCase{"sin", sin, -3, 3}, UnaryCase{"cos", cos, -3, 3},
                      UnaryCase{"tanh", tanh, -2, 2}, UnaryCase{"sigmoid", sigmoid, -3, 3},
                      UnaryCase{"gelu", gelu, -3, 3}, UnaryCase{"erf", erf, -2, 2},
                      UnaryCase{"softplus", softplus, -3, 3}, UnaryCase{"floor", floor, 0.2, 0.8},
                      UnaryCase{"ceil", ceil, 0.2, 0.8}, UnaryCase{"round", round, 0.2, 0.4},
                      UnaryCase{"sign", sign, 0.2, 0.8}, UnaryCase{"identity", identity, -1, 1}),
    [](const auto& test) { return std::string(test.param.name); });

struct BinaryCase {
  const char* name;
  Value (*function)(const Operand&, const Operand&);
  double a_low, a_high, b_low, b_high;
};

class BinaryGradient : public ::testing::TestWithParam<BinaryCase> {};

TEST_P(BinaryGradient, AgreesWithCentralDifferencesUnderBroadcasting) {
  const BinaryCase& binary = GetParam();
  const std::pair<Shape, Shape> patterns[] = {
      {{2, 3}, {2, 3}}, {{2, 3}, {3}}, {{2, 1}, {1, 3}}, {{}, {2, 3}}, {{4, 1, 2}, {3, 1}}};
  for (const auto& [a, b] : patterns) {
    expect_gradients(
        [&](GraphBuilder&, Inputs x) { return binary.function(x[0], x[1]); },
        {random_tensor(a, 1, binary.a_low, binary.a_high), random_tensor(b, 2, binary.b_low, binary.b_high)});
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ops, BinaryGradient,
    ::testing::Values(BinaryCase{"add", add, -1, 1, -1, 1}, BinaryCase{"sub", sub, -1, 1, -1, 1},
                      BinaryCase{"mul", mul, -1, 1, -1, 1}, BinaryCase{"div", div, -1, 1, 0.5, 2},
                      BinaryCase{"pow", pow, 0.5, 2, -2, 2}, BinaryCase{"maximum_a", maximum, 1, 2, 0, 0.9},
                      BinaryCase{"maximum_b", maximum, 0, 0.9, 1, 2},
                      BinaryCase{"minimum", minimum, 1, 2, 0, 0.9}, BinaryCase{"mod", mod, 2.2, 2.8, 0.9, 1},
                      BinaryCase{"floor_div", floor_div, 2.2, 2.8, 0.9, 1},
                      BinaryCase{"relu_grad", relu_grad, -1, 1, 0.5, 1},
                      BinaryCase{"gelu_grad", gelu_grad, -1, 1, -3, 3}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(ElementwiseGradients, OfWhereClipAndCast) {
  const Tensor mask = Tensor::from<bool>({3, 1}, {true, false, true});
  expect_gradients([](GraphBuilder&, Inputs x) { return where(x[2], exp(x[0]), sin(x[1])); },
                   {random_tensor({3, 4}, 1), random_tensor({4}, 2), mask});
  expect_gradients([](GraphBuilder&, Inputs x) { return square(clip(x[0], -0.5, 0.5)); },
                   {random_tensor({20}, 3, -0.49, 0.49)});
  expect_gradients([](GraphBuilder&, Inputs x) { return clip(x[0], -0.5, 0.5); },
                   {random_tensor({20}, 3, 0.6, 0.9)});
  GradientCheck rough;
  rough.step = 1e-2;
  rough.tolerance = 1e-3;
  rough.second_order = false;
  expect_gradients([](GraphBuilder&, Inputs x) { return cast(square(cast(x[0], DType::kF32)), DType::kF64); },
                   {random_tensor({6}, 4)}, rough);
}

// The derivative of the sum of f over these numbers.
std::vector<float> derivative(const Tensor& at, const std::function<Value(const Value&)>& f) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, at.shape());
  const Value y = sum(f(x));
  const Value g = gradients(y, {x})[0];
  b.result(g);
  return floats(Interpreter(b.finish()).run(std::vector<Tensor>{at})[0]);
}

TEST(ElementwiseGradients, AtCorners) {
  EXPECT_THAT(derivative(vec({-1, 0, 1}), [](const Value& x) { return relu(x); }), ElementsAre(0, 0, 1));
  EXPECT_THAT(derivative(vec({-1, 0, 1}), [](const Value& x) { return abs(x); }), ElementsAre(-1, 0, 1));
  EXPECT_THAT(derivative(vec({-1, 0, 1}), [](const Value& x) { return maximum(x, 0); }), ElementsAre(0, 1, 1))
      << "of equal operands the first gets all";
  EXPECT_THAT(derivative(vec({-1, 0, 1}), [](const Value& x) { return maximum(0, x); }),
              ElementsAre(0, 0, 1));
  EXPECT_THAT(derivative(vec({-1, 0, 1}), [](const Value& x) { return minimum(x, 0); }),
              ElementsAre(1, 1, 0));
  EXPECT_THAT(derivative(vec({-2, -1, 0, 1, 2}), [](const Value& x) { return clip(x, -1, 1); }),
              ElementsAre(0, 1, 1, 1, 0));
  EXPECT_THAT(derivative(vec({0, 0, 2}), [](const Value& x) { return pow(x, 0); }), ElementsAre(0, 0, 0));
  EXPECT_THAT(derivative(vec({0, -3, 2}), [](const Value& x) { return pow(x, 2); }), ElementsAre(0, -6, 4));
  EXPECT_THAT(derivative(vec({-1, 2}), [](const Value& x) { return pow(0, abs(x)); }), ElementsAre(0, 0))
      << "log(0) must not get in";
  EXPECT_THAT(derivative(vec({-1, 2}), [](const Value& x) { return where(x > 0, log(maximum(x, 1e-3)), x); }),
              ElementsAre(1, 0.5));
}

TEST(ElementwiseGradients, StopAtIntegers) {
  EXPECT_THAT(
      derivative(vec({1.5, 2}), [](const Value& x) { return cast(cast(x, DType::kI32), DType::kF32) + x; }),
      ElementsAre(1, 1));
}

}  // namespace
}  // namespace lockstep
