// Tests: graph/ops/scans.cpp
// Running sums, places of extremes and the largest few: values, refusals, gradients.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/ops/scans.h"
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

// Small whole numbers, many of them equal, in any dtype.
Tensor whole_numbers(DType dtype, const Shape& shape) {
  Tensor tensor = Tensor::empty(dtype, shape);
  visit_dtype(dtype, [&]<class T>(T) {
    std::uint32_t state = 7;
    for (T& x : tensor.data<T>()) {
      state = state * 1664525U + 1013904223U;
      const int number = static_cast<int>(state >> 28U);
      if constexpr (std::is_same_v<T, F16> || std::is_same_v<T, BF16>) {
        x = T(static_cast<float>(number));
      } else {
        x = static_cast<T>(number);
      }
    }
  });
  return tensor;
}

std::vector<double> doubles(const Tensor& tensor) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i)
    values.push_back(tensor.reshape({tensor.num_elements()}).slice(i, i + 1).item());
  return values;
}

constexpr DType kNumeric[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64,
                              DType::kI32, DType::kI64,  DType::kU8};

// Calls f with the places of each item's elements along an axis.
template <class F>
void for_each_item(const Shape& shape, std::size_t axis, F&& f) {
  std::size_t inner = 1, outer = 1;
  for (std::size_t i = 0; i < shape.rank(); ++i)
    (i < axis ? outer : inner) *= i == axis ? 1 : static_cast<std::size_t>(shape[i]);
  const auto n = static_cast<std::size_t>(shape[axis]);
  for (std::size_t i = 0; i < outer * inner; ++i) {
    std::vector<std::size_t> places(n);
    for (std::size_t j = 0; j < n; ++j) places[j] = i / inner * n * inner + j * inner + i % inner;
    f(i, places);
  }
}

TEST(CumSum, EqualsTheNaiveOne) {
  for (const DType dtype : kNumeric) {
    const Shape shape{3, 5, 4};
    const Tensor feed = whole_numbers(dtype, shape);
    const std::vector<double> in = doubles(feed);
    for (const std::int64_t axis : {0, 1, 2}) {
      for (const bool exclusive : {false, true}) {
        for (const bool reverse : {false, true}) {
          GraphBuilder b;
          b.result(cumsum(b.placeholder("x", dtype, shape), axis, exclusive, reverse));
          const std::vector<double> out = doubles(evaluate(b, {feed})[0]);
          for_each_item(shape, static_cast<std::size_t>(axis),
                        [&](std::size_t, std::vector<std::size_t> places) {
                          if (reverse) std::ranges::reverse(places);
                          double sum = 0;
                          for (const std::size_t at : places) {
                            const double with = sum + in[at];
                            EXPECT_EQ(out[at], exclusive ? sum : with) << dtype;
                            sum = with;
                          }
                        });
        }
      }
    }
  }
}

TEST(CumSum, IsTheSameInProgramsHoweverLarge) {
  for (const std::int64_t axis : {0, 1}) {
    GraphBuilder b;
    b.result(cumsum(b.placeholder("x", DType::kF64, {300, 500}), axis));
    evaluate(b, {random_tensor({300, 500}, 1)});
  }
}

// Rows of one chunk and of several, whole and not, alone and side by side. Whole numbers: every order of summing gives them.
TEST(CumSum, OfLongRows) {
  for (const Shape& shape :
       {Shape{2, 5000}, Shape{1, 40000}, Shape{3, 4097}, Shape{70, 3}, Shape{2, 9000, 2}}) {
    for (const bool exclusive : {false, true}) {
      for (const bool reverse : {false, true}) {
        for (const DType dtype : {DType::kF32, DType::kF64, DType::kI32, DType::kU8}) {
          const Tensor feed = whole_numbers(dtype, shape);
          GraphBuilder b;
          b.result(cumsum(b.placeholder("x", dtype, shape),
                          shape.rank() == 3 ? 1
                          : shape[0] == 70  ? 0
                                            : 1,
                          exclusive, reverse));
          evaluate(b, {feed});
        }
      }
    }
  }
}

TEST(CumSum, OfNothingAndOfBool) {
  GraphBuilder b;
  b.result(cumsum(b.placeholder("none", DType::kF32, {0, 3}), 0));
  EXPECT_EQ(evaluate(b, {Tensor::zeros({0, 3})})[0].shape(), (Shape{0, 3}));
  const Value bools = b.placeholder("bools", DType::kBool, {3});
  EXPECT_THAT(caught([&] { cumsum(bools); }).what, HasSubstr("has no meaning for bool; cast first"));
}

TEST(CumSumGradients, InEveryDirection) {
  for (const std::int64_t axis : {-1, 0}) {
    for (const bool exclusive : {false, true}) {
      for (const bool reverse : {false, true}) {
        expect_gradients(
            [&](GraphBuilder&, std::span<const Value> x) {
              return cumsum(x[0] * x[0], axis, exclusive, reverse);
            },
            {random_tensor({3, 4}, 1)}, {.elements = 4});
      }
    }
  }
}

TEST(ArgMax, TakesTheFirstOfEquals) {
  for (const DType dtype : kNumeric) {
    const Shape shape{4, 30, 5};
    const Tensor feed = whole_numbers(dtype, shape);
    const std::vector<double> in = doubles(feed);
    for (const std::int64_t axis : {0, 1, 2}) {
      GraphBuilder b;
      const Value x = b.placeholder("x", dtype, {kUnknown, kUnknown, kUnknown});
      b.result(argmax(x, axis));
      b.result(argmin(x, axis, true));
      const std::vector<Tensor> results = evaluate(b, {feed});
      EXPECT_EQ(results[0].shape(), shape.without_dim(static_cast<std::size_t>(axis)));
      EXPECT_EQ(results[1].shape(), shape.with_dim(static_cast<std::size_t>(axis), 1));
      for_each_item(shape, static_cast<std::size_t>(axis),
                    [&](std::size_t item, const std::vector<std::size_t>& places) {
                      std::vector<double> values;
                      for (const std::size_t at : places) values.push_back(in[at]);
                      EXPECT_EQ(results[0].data<std::int64_t>()[item],
                                std::ranges::max_element(values) - values.begin())
                          << dtype;
                      EXPECT_EQ(results[1].data<std::int64_t>()[item],
                                std::ranges::min_element(values) - values.begin())
                          << dtype;
                    });
    }
  }
}

TEST(ArgMax, NaNCountsAsTheMostExtreme) {
  const float nan = std::nanf("");
  const Tensor feed = Tensor::from<float>({2, 4}, {1, nan, 7, nan, 3, 2, 1, nan});
  for (const Shape& shape : {Shape{2, 4}, Shape{2, 4, 1}}) {
    GraphBuilder b;
    const Value x = reshape(b.placeholder("x", DType::kF32, {2, 4}), shape);
    b.result(argmax(x, 1));
    b.result(argmin(x, 1));
    for (const Tensor& result : evaluate(b, {feed})) {
      EXPECT_EQ(result.data<std::int64_t>()[0], 1);
      EXPECT_EQ(result.data<std::int64_t>()[1], 3);
    }
  }
}

TEST(ArgMax, RefusesNothingAndBool) {
  GraphBuilder b;
  const Value none = b.placeholder("none", DType::kF32, {2, 0});
  const Value bools = b.placeholder("bools", DType::kBool, {2});
  EXPECT_THAT(caught([&] { argmax(none); }).what,
              HasSubstr("of nothing: axis 1 of f32[2,0] holds no elements"));
  EXPECT_THAT(caught([&] { argmin(bools); }).what, HasSubstr("cast first"));
  b.result(argmax(none, 0));
  b.result(argmax(b.placeholder("large", DType::kF64, {300, 400})));
  const std::vector<Tensor> results =
      evaluate(b, {Tensor::zeros({2, 0}), Tensor::zeros(DType::kBool, {2}), random_tensor({300, 400}, 1)});
  EXPECT_EQ(results[0].num_elements(), 0);
}

TEST(TopK, EqualsASort) {
  for (const DType dtype : kNumeric) {
    for (const std::int64_t n : {1, 7, 100}) {
      for (const std::int64_t k : {std::int64_t{0}, std::int64_t{1}, n / 2, n}) {
        const Tensor feed = whole_numbers(dtype, {3, n});
        GraphBuilder b;
        const TopKResult top = top_k(b.placeholder("x", dtype, {3, kUnknown}), k);
        b.result(top.values);
        b.result(top.indices);
        const std::vector<Tensor> results = evaluate(b, {feed});
        ASSERT_EQ(results[0].spec(), (TensorSpec{dtype, {3, k}}));
        const std::vector<double> in = doubles(feed), values = doubles(results[0]);
        for (std::int64_t row = 0; row < 3; ++row) {
          std::vector<std::int64_t> order(static_cast<std::size_t>(n));
          std::iota(order.begin(), order.end(), 0);
          const double* x = in.data() + row * n;
          std::ranges::stable_sort(order, [&](std::int64_t p, std::int64_t q) { return x[p] > x[q]; });
          for (std::int64_t i = 0; i < k; ++i) {
            const std::int64_t index = results[1].data<std::int64_t>()[static_cast<std::size_t>(row * k + i)];
            ASSERT_EQ(index, order[static_cast<std::size_t>(i)]) << dtype << ' ' << n << ' ' << k;
            ASSERT_EQ(values[static_cast<std::size_t>(row * k + i)], x[index]);
          }
        }
      }
    }
  }
}

TEST(TopK, OfLongRows) {
  for (const DType dtype : kNumeric) {
    for (const std::int64_t k : {3, 200}) {  // few and many
      const Tensor feed = whole_numbers(dtype, {2, 700});
      GraphBuilder b;
      const TopKResult top = top_k(b.placeholder("x", dtype, {2, 700}), k);
      b.result(top.values);
      b.result(top.indices);
      const Tensor indices = evaluate(b, {feed})[1];
      const std::vector<double> in = doubles(feed);
      for (std::int64_t row = 0; row < 2; ++row) {
        std::vector<std::int64_t> order(700);
        std::iota(order.begin(), order.end(), 0);
        const double* x = in.data() + row * 700;
        std::ranges::stable_sort(order, [&](std::int64_t p, std::int64_t q) { return x[p] > x[q]; });
        order.resize(static_cast<std::size_t>(k));
        EXPECT_TRUE(std::ranges::equal(
            order, indices.data<std::int64_t>().subspan(static_cast<std::size_t>(row * k), order.size())))
            << dtype << ' ' << k;
      }
    }
  }
}

TEST(TopK, NaNComesFirst) {
  GraphBuilder b;
  const TopKResult top = top_k(b.placeholder("x", DType::kF32, {5}), 3);
  b.result(top.indices);
  const Tensor indices = evaluate(b, {testing::vec({1, std::nanf(""), 9, std::nanf(""), 9})})[0];
  EXPECT_TRUE(indices.bit_equal(Tensor::from<std::int64_t>({3}, {1, 3, 2})));
}

TEST(TopK, RefusesMoreThanThereIs) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2, 3});
  EXPECT_THAT(caught([&] { top_k(x, 4); }).what,
              HasSubstr("k is 4, but the last axis of f32[2,3] holds 3 elements"));
  EXPECT_THAT(caught([&] { top_k(x, -1); }).what, HasSubstr("k is -1"));
  EXPECT_THAT(caught([&] { top_k(sum(x), 0); }).what, HasSubstr("takes values along a last axis"));
}

TEST(TopKGradients, GoToTheElementsTaken) {
  for (const Shape& shape : {Shape{6}, Shape{3, 5}, Shape{2, 2, 4}}) {
    expect_gradients(
        [](GraphBuilder&, std::span<const Value> x) { return top_k(x[0] * x[0] * x[0], 3).values; },
        {random_tensor(shape, 1)});
  }
}

TEST(Scans, GoThroughText) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2, 3});
  b.result(cumsum(x, 0, true, true));
  b.result(argmax(x));
  b.result(top_k(x, 2).indices);
  const Graph graph = b.finish();
  EXPECT_EQ(print(parse(print(graph))), print(graph));
}

}  // namespace
}  // namespace lockstep
