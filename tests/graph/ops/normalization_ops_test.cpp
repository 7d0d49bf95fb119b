// Tests: graph/ops/normalization.cpp
// Moments and layer_norm: values, refusals, programs against the interpreter, gradients.
#include <cmath>

#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/normalization.h"
#include "lockstep/graph/ops/ops.h"
#include "support/gradient_check.h"
#include "support/op_test.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using testing::caught;
using testing::evaluate;
using testing::expect_gradients;
using ::testing::HasSubstr;
using testing::random_tensor;

Tensor as(DType dtype, const Tensor& from) {
  GraphBuilder b;
  b.result(cast(b.placeholder("x", from.dtype(), from.shape()), dtype));
  return Interpreter(b.finish()).run(std::vector<Tensor>{from})[0];
}

TEST(Moments, EqualTheNaiveOnes) {
  const Tensor feed = random_tensor({6, 5}, 1);
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {kUnknown, 5});
  const Moments columns = moments(x, {0});
  const Moments all = moments(x, {}, true);
  for (const Value& v : {columns.mean, columns.variance, all.mean, all.variance}) b.result(v);
  const std::vector<Tensor> results = evaluate(b, {feed});
  EXPECT_EQ(results[2].shape(), (Shape{1, 1}));
  for (std::size_t j = 0; j < 5; ++j) {
    double sum = 0, squares = 0;
    for (std::size_t i = 0; i < 6; ++i) sum += feed.data<double>()[i * 5 + j];
    for (std::size_t i = 0; i < 6; ++i) squares += std::pow(feed.data<double>()[i * 5 + j] - sum / 6, 2);
    EXPECT_NEAR(results[0].data<double>()[j], sum / 6, 1e-14);
    EXPECT_NEAR(results[1].data<double>()[j], squares / 6, 1e-14);
  }
}

TEST(Moments, AreTheSameInProgramsHoweverLarge) {
  for (const std::vector<std::int64_t>& axes : {std::vector<std::int64_t>{0, 1, 2}, {1}, {}}) {
    GraphBuilder b;
    const Moments m = moments(b.placeholder("x", DType::kF32, {16, 30, 40, 8}), axes);
    b.result(m.mean);
    b.result(m.variance);
    evaluate(b, {as(DType::kF32, random_tensor({16, 30, 40, 8}, 1))});
  }
}

TEST(Moments, RefuseIntegers) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kI32, {2});
  EXPECT_THAT(caught([&] { moments(x); }).what, HasSubstr("takes floating values, got i32[2]; cast"));
}

TEST(MomentsGradients, OfBothResults) {
  for (const std::vector<std::int64_t>& axes : {std::vector<std::int64_t>{}, {0}, {-1}, {0, 2}}) {
    for (const bool keepdims : {false, true}) {
      expect_gradients(
          [&](GraphBuilder&, std::span<const Value> x) {
            const Moments m = moments(x[0], axes, keepdims);
            return m.mean * m.mean + m.variance;
          },
          {random_tensor({2, 3, 4}, 1)}, {.elements = 4});
      expect_gradients(
          [&](GraphBuilder&, std::span<const Value> x) { return moments(x[0], axes, keepdims).variance; },
          {random_tensor({2, 3, 4}, 1)}, {.elements = 4});
    }
  }
}

// --- layer_norm

TEST(LayerNorm, EqualsTheNaiveOne) {
  const double epsilon = 1e-3;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    for (const auto& [shape, own] : {std::pair<Shape, Shape>{{4, 7}, {7}},
                                     {{2, 3, 20}, {20}},
                                     {{3, 4, 5}, {4, 5}},
                                     {{5}, {5}},
                                     {{0, 3}, {3}},
                                     {{3, 2500}, {2500}},
                                     {{700, 100}, {100}}}) {
      const Tensor x = as(dtype, random_tensor(shape, 1)), gamma = as(dtype, random_tensor(own, 2)),
                   beta = as(dtype, random_tensor(own, 3));
      GraphBuilder b;
      const Value in_x = b.placeholder("x", dtype, shape);  // one after another: arguments have no order
      const Value in_gamma = b.placeholder("gamma", dtype, own);
      const Value in_beta = b.placeholder("beta", dtype, own);
      b.result(layer_norm(in_x, in_gamma, in_beta, epsilon));
      const Tensor y = as(DType::kF64, evaluate(b, {x, gamma, beta})[0]);
      ASSERT_EQ(y.shape(), shape);
      const Tensor in = as(DType::kF64, x), scale = as(DType::kF64, gamma), shift = as(DType::kF64, beta);
      const auto d = static_cast<std::size_t>(own.num_elements());
      const double tolerance = dtype == DType::kF64   ? 1e-12
                               : dtype == DType::kF32 ? 1e-5
                               : dtype == DType::kF16 ? 4e-3
                                                      : 4e-2;
      for (std::size_t row = 0; row * d < in.data<double>().size(); ++row) {
        const double* values = in.data<double>().data() + row * d;
        double sum = 0, squares = 0;
        for (std::size_t i = 0; i < d; ++i) sum += values[i];
        const double mean = sum / static_cast<double>(d);
        for (std::size_t i = 0; i < d; ++i) squares += (values[i] - mean) * (values[i] - mean);
        const double rstd = 1 / std::sqrt(squares / static_cast<double>(d) + epsilon);
        for (std::size_t i = 0; i < d; ++i) {
          ASSERT_NEAR(y.data<double>()[row * d + i],
                      (values[i] - mean) * rstd * scale.data<double>()[i] + shift.data<double>()[i],
                      tolerance)
              << x.spec();
        }
      }
    }
  }
}

TEST(LayerNorm, RefusesWhatDoesNotFit) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {4, 3});
  const Value three = b.placeholder("three", DType::kF32, {3});
  const Value four = b.placeholder("four", DType::kF32, {4});
  EXPECT_THAT(caught([&] { layer_norm(x, four, four); }).what,
              HasSubstr("takes gamma of the last axes of x, f32[4,3], got f32[4]"));
  EXPECT_THAT(caught([&] { layer_norm(x, three, four); }).what,
              HasSubstr("takes beta like gamma, f32[3], got f32[4]"));
  EXPECT_THAT(caught([&] { layer_norm(x, three, three, -1); }).what, HasSubstr("epsilon is -1, not >= 0"));
}

TEST(LayerNormGradients, OfAllInputs) {
  for (const auto& [shape, own] :
       {std::pair<Shape, Shape>{{3, 4}, {4}}, {{2, 2, 3}, {3}}, {{2, 2, 3}, {2, 3}}, {{6}, {6}}}) {
    expect_gradients(
        [](GraphBuilder&, std::span<const Value> x) { return layer_norm(x[0], x[1], x[2], 1e-2); },
        {random_tensor(shape, 1), random_tensor(own, 2), random_tensor(own, 3)}, {.elements = 5});
  }
}

TEST(LayerNormGradients, OfTheStatistics) {
  expect_gradients(
      [](GraphBuilder& b, std::span<const Value> x) {
        const std::vector<Value> outputs = b.op("layer_norm", x, {{"epsilon", 1e-2}});
        return outputs[1] * outputs[1] + outputs[2];
      },
      {random_tensor({3, 4}, 1), random_tensor({4}, 2), random_tensor({4}, 3)}, {.elements = 5});
}

TEST(LayerNormGradients, AreTheSameInProgramsHoweverLarge) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Shape& shape : {Shape{700, 300}, Shape{40, 3000}, Shape{0, 5}}) {
      const Shape own{shape[1]};
      GraphBuilder b;
      const Value x = b.placeholder("x", dtype, shape);
      const Value gamma = b.placeholder("gamma", dtype, own), beta = b.placeholder("beta", dtype, own);
      const Value y = layer_norm(x, gamma, beta);
      for (const Gradient& g : gradients(sum(y * y), {x, gamma, beta})) b.result(g);
      evaluate(b, {as(dtype, random_tensor(shape, 1)), as(dtype, random_tensor(own, 2)),
                   as(dtype, random_tensor(own, 3))});
    }
  }
}

TEST(LayerNormGradients, RefuseWhatHasAnotherShape) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {4, 3});
  const Value gamma = b.placeholder("gamma", DType::kF32, {3});
  const Value four = b.placeholder("four", DType::kF32, {4});
  const Value one = b.placeholder("one", DType::kF32, {1});
  const Value row = b.placeholder("row", DType::kF32, {1, 3});
  const auto what = [&](const Value& rstd, const Value& g) {
    const Value inputs[] = {x, gamma, four, rstd, g};
    return caught([&] { b.op("layer_norm_grad", inputs, {{"epsilon", 1e-5}}); }).what;
  };
  EXPECT_THAT(what(one, x), HasSubstr("takes statistics f32[4], got f32[1]"));
  EXPECT_THAT(what(four, row), HasSubstr("takes a gradient like x, f32[4,3], got f32[1,3]"));
}

}  // namespace
}  // namespace lockstep
