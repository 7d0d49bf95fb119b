// Tests: graph/ops/softmax.cpp
// Softmax and cross entropy: values, refusals, programs against the interpreter, gradients.
#include <cmath>
#include <map>

#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/ops/softmax.h"
#include "lockstep/graph/text/text.h"
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

// The f64 tensor's numbers in another dtype.
Tensor as(DType dtype, const Tensor& from) {
  Tensor result = Tensor::empty(dtype, from.shape());
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (!std::is_integral_v<T>) {
      for (std::size_t i = 0; i < from.data<double>().size(); ++i) {
        const double x = from.data<double>()[i];
        if constexpr (std::is_same_v<T, double>) {
          result.data<T>()[i] = x;
        } else {
          result.data<T>()[i] = T(static_cast<float>(x));
        }
      }
    }
  });
  return result;
}

std::vector<double> doubles(const Tensor& tensor) {
  std::vector<double> values;
  visit_dtype(tensor.dtype(), [&]<class T>(T) {
    for (const T x : tensor.data<T>()) {
      if constexpr (std::is_same_v<T, double>) {
        values.push_back(x);
      } else {
        values.push_back(static_cast<double>(static_cast<float>(x)));
      }
    }
  });
  return values;
}

double tolerance(DType dtype) {
  return dtype == DType::kF64 ? 1e-12 : dtype == DType::kF32 ? 2e-6 : dtype == DType::kF16 ? 2e-3 : 1e-2;
}

struct Along {
  Shape shape;
  std::int64_t axis;
};
const Along kAlong[] = {{{4, 7}, -1},    {{4, 7}, 0},    {{2, 3, 5}, 1}, {{2, 3, 300}, 1},
                        {{9}, 0},        {{3, 0}, 1},    {{0, 3}, 1},    {{300, 200}, -1},
                        {{300, 200}, 0}, {{2, 5000}, 1}, {{5, 1, 4}, 1}, {{400, 10}, -1}};

TEST(Softmax, EqualsTheNaiveOneAlongAnyAxis) {
  for (const auto& [shape, axis] : kAlong) {
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
      const Tensor feed = as(dtype, random_tensor(shape, 5, -4, 4));
      GraphBuilder b;
      const Value x = b.placeholder("x", dtype, shape);
      b.result(softmax(x, axis));
      b.result(log_softmax(x, axis));
      const std::vector<Tensor> results = evaluate(b, {feed});
      const std::vector<double> in = doubles(feed), out = doubles(results[0]), logs = doubles(results[1]);
      std::size_t inner = 1;
      const std::size_t at_axis = static_cast<std::size_t>((axis + static_cast<std::int64_t>(shape.rank())) %
                                                           static_cast<std::int64_t>(shape.rank()));
      for (std::size_t i = at_axis + 1; i < shape.rank(); ++i) inner *= static_cast<std::size_t>(shape[i]);
      const auto n = static_cast<std::size_t>(shape[at_axis]);
      std::map<std::size_t, double> totals;  // by first element of each row along the axis
      const auto base_of = [&](std::size_t i) { return i / (n * inner) * (n * inner) + i % inner; };
      for (std::size_t i = 0; i < in.size(); ++i) totals[base_of(i)] += std::exp(in[i]);
      for (std::size_t i = 0; i < in.size(); ++i) {
        const double total = totals[base_of(i)];
        ASSERT_NEAR(out[i], std::exp(in[i]) / total, tolerance(dtype))
            << feed.spec() << ' ' << axis << ' ' << i;
        ASSERT_NEAR(logs[i], in[i] - std::log(total), tolerance(dtype) * 12) << feed.spec() << ' ' << axis;
      }
    }
  }
}

TEST(Softmax, DoesNotOverflow) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {3});
  b.result(softmax(x));
  b.result(log_softmax(x));
  const std::vector<Tensor> results = evaluate(b, {testing::vec({1000, 1000, -1000})});
  EXPECT_NEAR(results[0].data<float>()[0], 0.5, 1e-6);
  EXPECT_EQ(results[0].data<float>()[2], 0);
  EXPECT_NEAR(results[1].data<float>()[2], -2000 - std::log(2.0), 1e-3);
}

TEST(Softmax, RefusesIntegersAndAxesOutside) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kI32, {3});
  EXPECT_THAT(caught([&] { softmax(x); }).what, HasSubstr("takes floating values, got i32[3]"));
  EXPECT_THAT(caught([&] { softmax(b.placeholder("y", DType::kF32, {3}), 1); }).what,
              HasSubstr("axis 1 is outside of a value of rank 1; axes go from -1 to 0"));
}

TEST(SoftmaxGradients, AlongAnyAxis) {
  for (const std::int64_t axis : {-1, 0, 1}) {
    expect_gradients([&](GraphBuilder&, std::span<const Value> x) { return softmax(x[0], axis); },
                     {random_tensor({2, 3, 4}, 1)});
    expect_gradients([&](GraphBuilder&, std::span<const Value> x) { return log_softmax(x[0], axis); },
                     {random_tensor({2, 3, 4}, 2)});
  }
}

// --- cross entropy

Tensor classes(const Shape& shape, std::int64_t n, DType dtype) {
  Tensor labels = Tensor::zeros(dtype, shape);
  std::int64_t next = 3;
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      for (T& label : labels.data<T>()) label = static_cast<T>(next++ * 7 % n);
    }
  });
  return labels;
}

TEST(CrossEntropy, EqualsTheNaiveOne) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    for (const Shape& shape :
         {Shape{5, 10}, Shape{2, 3, 4}, Shape{7}, Shape{0, 3}, Shape{300, 200}, Shape{3, 5000}}) {
      const std::int64_t n = shape.dim(-1);
      const Shape examples = shape.without_dim(shape.rank() - 1);
      const Tensor logits = as(dtype, random_tensor(shape, 5, -4, 4));
      const Tensor weights = as(dtype, random_tensor(shape, 6, 0, 2.0 / static_cast<double>(n)));
      const DType number = dtype == DType::kF32 ? DType::kI32 : DType::kI64;
      const Tensor labels = classes(examples, n, number);
      GraphBuilder b;
      const Value x = b.placeholder("x", dtype, shape);
      b.result(softmax_cross_entropy(x, b.placeholder("labels", number, examples)));
      b.result(softmax_cross_entropy(x, b.placeholder("weights", dtype, shape)));
      const std::vector<Tensor> results = evaluate(b, {logits, labels, weights});
      ASSERT_EQ(results[0].spec(), (TensorSpec{dtype, examples}));
      const std::vector<double> in = doubles(logits), w = doubles(weights);
      const std::vector<double> sparse = doubles(results[0]), dense = doubles(results[1]);
      const auto width = static_cast<std::size_t>(n);
      for (std::size_t row = 0; row < sparse.size(); ++row) {
        double total = 0, loss = 0;
        for (std::size_t j = 0; j < width; ++j) total += std::exp(in[row * width + j]);
        for (std::size_t j = 0; j < width; ++j)
          loss -= w[row * width + j] * (in[row * width + j] - std::log(total));
        const auto label = static_cast<std::size_t>(static_cast<std::int64_t>(row + 3) * 7 % n);
        ASSERT_NEAR(sparse[row], std::log(total) - in[row * width + label], tolerance(dtype) * 12)
            << logits.spec();
        ASSERT_NEAR(dense[row], loss, tolerance(dtype) * 12) << logits.spec();
      }
    }
  }
}

TEST(CrossEntropy, AWeightOfZeroCountsNothing) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {1, 2});
  b.result(softmax_cross_entropy(x, b.constant(Tensor::from<float>({1, 2}, {1, 0}))));
  EXPECT_EQ(evaluate(b, {Tensor::from<float>({1, 2}, {0, -HUGE_VALF})})[0].data<float>()[0], 0);
}

TEST(CrossEntropy, AClassOutsideFailsWhenTheStepRuns) {
  for (const std::int32_t wrong : {-1, 3}) {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {kUnknown, 3});
    b.result(softmax_cross_entropy(x, b.placeholder("labels", DType::kI32, {kUnknown})));
    const Program program = compile(b.finish(), Runtime());
    const auto error = caught([&] {
      program.run({{"x", Tensor::zeros({2, 3})}, {"labels", Tensor::from<std::int32_t>({2}, {0, wrong})}});
    });
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what,
                HasSubstr(str("the label of row 1 is ", wrong, ", which is not one of the 3 classes")));
  }
}

TEST(CrossEntropy, RefusesLabelsThatDoNotFit) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {4, 3});
  for (const TensorSpec& spec : {TensorSpec{DType::kI32, {5}}, TensorSpec{DType::kI64, {4, 3}},
                                 TensorSpec{DType::kF64, {4, 3}}, TensorSpec{DType::kF32, {4, 2}}}) {
    const Value labels = b.placeholder(
        to_string(spec.dtype) == "i32" ? "a" : str("b", spec.dtype, spec.shape[1]), spec.dtype, spec.shape);
    EXPECT_THAT(
        caught([&] { softmax_cross_entropy(x, labels); }).what,
        HasSubstr(str("takes labels i32[4] or i64[4] (class numbers) or f32[4,3] (weights of the classes) "
                      "beside logits f32[4,3], got ",
                      spec)));
  }
  const Value none = b.placeholder("none", DType::kF32, {4, 0});
  EXPECT_THAT(caught([&] { softmax_cross_entropy(none, none); }).what, HasSubstr("at least one class"));
}

TEST(CrossEntropyGradients, OfClassNumbersAndOfWeights) {
  for (const Shape& shape : {Shape{4, 5}, Shape{2, 2, 3}, Shape{6}}) {
    const Tensor labels = classes(shape.without_dim(shape.rank() - 1), shape.dim(-1), DType::kI64);
    expect_gradients(
        [](GraphBuilder&, std::span<const Value> x) { return softmax_cross_entropy(x[0], x[1]); },
        {random_tensor(shape, 1), labels});
    expect_gradients(
        [](GraphBuilder&, std::span<const Value> x) { return softmax_cross_entropy(x[0], x[1]); },
        {random_tensor(shape, 1), random_tensor(shape, 2, 0.1, 1)});
  }
}

TEST(CrossEntropyGradients, ComeFromOneKernel) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {4, 3});
  const Value labels = b.placeholder("labels", DType::kI32, {4});
  const Value loss = sum(softmax_cross_entropy(x, labels));
  const Value gradient = gradients(loss, {x})[0];
  EXPECT_EQ(b.graph().node(gradient.id().node).op().name, "softmax_cross_entropy_grad");
}

TEST(CrossEntropyGradients, AreTheSameInProgramsHoweverLarge) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {1500, 100});
  const Value labels = b.placeholder("labels", DType::kI32, {1500});
  const Value loss = mean(softmax_cross_entropy(x, labels));
  b.result(loss);
  b.result(gradients(loss, {x})[0]);
  evaluate(b, {as(DType::kF32, random_tensor({1500, 100}, 3)), classes({1500}, 100, DType::kI32)});
}

TEST(CrossEntropyGradients, RefuseFlowsOfOtherShapes) {
  GraphBuilder b;
  const Value y = b.placeholder("y", DType::kF32, {4, 3});
  const Value row = b.placeholder("row", DType::kF32, {1, 3});
  const Value labels = b.placeholder("labels", DType::kI64, {4});
  const Value one = b.placeholder("one", DType::kF32, {1});
  EXPECT_THAT(caught([&] {
                b.op1("softmax_grad", {row, y}, {{"axis", std::int64_t{1}}});
              }).what,
              HasSubstr("takes two of one shape, got f32[1,3] and f32[4,3]"));
  EXPECT_THAT(caught([&] {
                b.op1("softmax_cross_entropy_grad", {y, labels, one});
              }).what,
              HasSubstr("takes one f32 for each example [4], got f32[1]"));
}

}  // namespace
}  // namespace lockstep
