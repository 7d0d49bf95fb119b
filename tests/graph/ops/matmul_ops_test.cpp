// Tests: graph/ops/matmul.cpp, graph/ops/rules/products.cpp
// tests/graph/ops/matmul_ops_test.cpp - products of matrices: all transposes, batches, tiles, dtypes and
// errors.
#include <array>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"
#include "support/gradient_check.h"
#include "support/on_card.h"
#include "support/program_test.h"
#include "support/random_tensors.h"

namespace lockstep {
namespace {

using testing::caught;
using testing::expect_same_tensors;
using ::testing::HasSubstr;
using testing::with_lanes;

struct Case {
  Shape a, b, result;
  bool transpose_a = false, transpose_b = false;
};

Graph product_graph(DType dtype, const Case& c) {
  GraphBuilder builder;
  const Value a = builder.placeholder("a", dtype, c.a);
  const Value b = builder.placeholder("b", dtype, c.b);
  builder.result(matmul(a, b, c.transpose_a, c.transpose_b));
  return builder.finish();
}

std::vector<double> doubles(const Tensor& tensor) {
  std::vector<double> values;
  visit_dtype(tensor.dtype(), [&]<class T>(T) {
    for (const T value : tensor.data<T>()) {
      if constexpr (std::is_arithmetic_v<T>) {
        values.push_back(static_cast<double>(value));
      } else {
        values.push_back(static_cast<double>(static_cast<float>(value)));
      }
    }
  });
  return values;
}

// By program with tasks and by the interpreter, which must agree to the bit.
Tensor run_both(const Graph& graph, const std::vector<Tensor>& feeds) {
  const std::vector<Tensor> expected = Interpreter(graph).run(feeds);
  const Program program = compile(graph, Runtime({.threads = 2}), with_lanes());
  const std::vector<Tensor> actual = program.run(feeds);
  expect_same_tensors(actual, expected);
  testing::expect_same_on_card(graph, feeds);
  return actual[0];
}

// Element `at` of the result, from the definition.
double naive(const Case& c, const std::vector<double>& a, const std::vector<double>& b, std::int64_t at,
             double* magnitude) {
  const Shape& r = c.result;
  std::vector<std::int64_t> index(r.rank());
  for (std::size_t axis = r.rank(); axis-- > 0;) {
    index[axis] = at % r[axis];
    at /= r[axis];
  }
  const auto offset = [&](const Shape& shape) {
    std::int64_t result = 0;
    const std::size_t lead = r.rank() - shape.rank();
    for (std::size_t axis = 0; axis + 2 < shape.rank(); ++axis)
      result = result * shape[axis] + (shape[axis] == 1 ? 0 : index[axis + lead]);
    return result * shape.dim(-2) * shape.dim(-1);
  };
  const std::int64_t row = index[r.rank() - 2], column = index[r.rank() - 1];
  const std::int64_t k = c.a.dim(c.transpose_a ? -2 : -1);
  const std::int64_t from_a = offset(c.a), from_b = offset(c.b);
  double sum = 0;
  *magnitude = 0;
  for (std::int64_t l = 0; l < k; ++l) {
    const double left =
        a[static_cast<std::size_t>(from_a + (c.transpose_a ? l * c.a.dim(-1) + row : row * c.a.dim(-1) + l))];
    const double right = b[static_cast<std::size_t>(
        from_b + (c.transpose_b ? column * c.b.dim(-1) + l : l * c.b.dim(-1) + column))];
    sum += left * right;
    *magnitude += std::abs(left * right);
  }
  return sum;
}

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::kF16: return 0x1p-10;
    case DType::kBF16: return 0x1p-7;
    case DType::kF32: return 0x1p-19;
    case DType::kF64: return 0x1p-48;
    default: return 0;
  }
}

// Checks up to about 500 elements spread over the result.
void check(DType dtype, const Case& c, std::uint64_t seed) {
  SCOPED_TRACE(str(dtype, " ", c.a, " x ", c.b, " ", c.transpose_a, c.transpose_b));
  Dice dice(seed);
  const Tensor a = random_tensor(dtype, c.a, dice), b = random_tensor(dtype, c.b, dice);
  const Tensor result = run_both(product_graph(dtype, c), {a, b});
  ASSERT_EQ(result.shape(), c.result);
  ASSERT_EQ(result.dtype(), dtype);
  const std::vector<double> left = doubles(a), right = doubles(b), values = doubles(result);
  const std::int64_t step = result.num_elements() / 500 + 1;
  for (std::int64_t i = 0; i < result.num_elements(); i += step) {
    double magnitude = 0;
    const double expected = naive(c, left, right, i, &magnitude);
    ASSERT_NEAR(values[static_cast<std::size_t>(i)], expected, tolerance(dtype) * magnitude)
        << "element " << i;
  }
}

const std::vector<Case> kCases = {
    {{3, 4}, {4, 5}, {3, 5}},
    {{4, 3}, {4, 5}, {3, 5}, true, false},
    {{3, 4}, {5, 4}, {3, 5}, false, true},
    {{4, 3}, {5, 4}, {3, 5}, true, true},
    {{1, 1}, {1, 1}, {1, 1}},
    {{2, 3, 4}, {2, 4, 5}, {2, 3, 5}},
    {{2, 4, 3}, {2, 5, 4}, {2, 3, 5}, true, true},
    {{2, 3, 4}, {4, 5}, {2, 3, 5}},                  // folded into rows
    {{2, 3, 4}, {1, 5, 4}, {2, 3, 5}, false, true},  // folded as well
    {{2, 4, 3}, {4, 5}, {2, 3, 5}, true, false},     // cannot be
    {{3, 4}, {2, 4, 5}, {2, 3, 5}},                  // the left one repeats
    {{2, 1, 3, 4}, {3, 4, 5}, {2, 3, 3, 5}},         // both repeat
    {{1, 3, 3, 4}, {2, 1, 5, 4}, {2, 3, 3, 5}, false, true},
    {{0, 4}, {4, 5}, {0, 5}},
    {{3, 0}, {0, 5}, {3, 5}},
    {{3, 4}, {4, 0}, {3, 0}},
    {{0, 3, 4}, {4, 5}, {0, 3, 5}},
    {{2, 3, 0}, {2, 0, 5}, {2, 3, 5}},
};

TEST(Matmul, EqualsTheDefinitionForEveryDType) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kI32, DType::kI64}) {
    for (std::size_t i = 0; i < kCases.size(); ++i) check(dtype, kCases[i], i + 1);
  }
}

// Large enough for several tiles: of rows, of columns, of both, of k, of matrices.
TEST(Matmul, TilesGiveTheWholeProduct) {
  const std::vector<Case> cases = {
      {{300, 300}, {300, 300}, {300, 300}},
      {{300, 300}, {300, 300}, {300, 300}, true, false},
      {{300, 300}, {300, 300}, {300, 300}, false, true},
      {{300, 300}, {300, 300}, {300, 300}, true, true},
      {{24, 500}, {500, 600}, {24, 600}},
      {{16, 20'000}, {20'000, 24}, {16, 24}},
      {{20'000, 16}, {20'000, 24}, {16, 24}, true, false},
      {{16, 20'000}, {24, 20'000}, {16, 24}, false, true},
      {{40, 30, 30}, {40, 30, 30}, {40, 30, 30}, false, true},
      {{2, 300, 100}, {2, 100, 300}, {2, 300, 300}},
      {{30, 40, 50}, {50, 60}, {30, 40, 60}},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    check(DType::kF32, cases[i], i + 1);
    check(DType::kF64, cases[i], i + 1);
  }
  check(DType::kI32, cases[0], 1);
  check(DType::kI64, cases[3], 1);
  check(DType::kBF16, cases[2], 1);
  check(DType::kF16, cases[10], 1);
}

TEST(Matmul, GradientsOfFirstAndSecondOrder) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(str(c.a, " x ", c.b, " ", c.transpose_a, c.transpose_b));
    testing::expect_gradients(
        [&](GraphBuilder&, std::span<const Value> x) {
          return matmul(x[0], x[1], c.transpose_a, c.transpose_b);
        },
        {testing::random_tensor(c.a, 1), testing::random_tensor(c.b, 2)}, {.elements = 5});
  }
}

TEST(Matmul, GradientsMakeNoTransposedTensorsAndFoldBatches) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 3, 4});
  const Value w = b.placeholder("w", DType::kF32, {4, 5});
  const std::vector<Gradient> g = gradients(sum(matmul(x, w)), {w});
  b.result(g[0]);
  EXPECT_EQ(Value(g[0]).shape(), (Shape{4, 5}));
  const std::string text = print(b.finish());
  EXPECT_THAT(text, HasSubstr("matmul[transpose_a=true]"));
  EXPECT_THAT(text, HasSubstr(": f32[?,4]")) << "all rows of x at once";
  EXPECT_THAT(text, ::testing::Not(HasSubstr("transpose(")));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("sum_to")));
}

TEST(Matmul, InfersWithUnknownDimensions) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, kUnknown, 4});
  const Value w = b.placeholder("w", DType::kF32, {4, 5});
  const Value u = b.placeholder("u", DType::kF32, {3, kUnknown, kUnknown});
  EXPECT_EQ(matmul(x, w).shape(), (Shape{kUnknown, kUnknown, 5}));
  EXPECT_EQ(matmul(x, w, true, true).shape(), (Shape{kUnknown, 4, 4}));
  EXPECT_EQ(matmul(u, x, false, true).shape(), (Shape{3, kUnknown, kUnknown}));
}

TEST(Matmul, RefusesWhatDoesNotFit) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2, 3});
  const Value v = b.placeholder("v", DType::kF32, {3});
  const Value batch = b.placeholder("batch", DType::kF32, {2, 3, 3});
  const Value other = b.placeholder("other", DType::kF32, {4, 3, 3});
  const Value bytes = b.placeholder("bytes", DType::kU8, {3, 3});
  EXPECT_THAT(caught([&] { matmul(x, v); }).what,
              HasSubstr("takes two matrices (rank 2 or more), got f32[2,3] and f32[3]"));
  EXPECT_THAT(caught([&] { matmul(x, x); }).what,
              HasSubstr("inner dimensions differ: f32[2,3] x f32[2,3] needs 3 == 2"));
  EXPECT_THAT(caught([&] { matmul(x, x, true, true); }).what,
              HasSubstr("f32[2,3] (transposed) x f32[2,3] (transposed) needs 2 == 3"));
  EXPECT_THAT(caught([&] { matmul(batch, other); }).what, HasSubstr("[4]"));
  EXPECT_THAT(caught([&] { matmul(bytes, bytes); }).what, HasSubstr("floating or i32/i64"));
}

TEST(Matmul, TextKeepsTransposesAndReadsNodesWithoutThem) {
  const Graph graph = product_graph(DType::kF32, {{4, 3}, {5, 4}, {3, 5}, true, true});
  EXPECT_THAT(print(graph), HasSubstr("matmul[transpose_a=true, transpose_b=true](%a, %b) : f32[3,5]"));
  EXPECT_EQ(print(parse(print(graph))), print(graph));
  const Graph plain = product_graph(DType::kF32, {{3, 4}, {4, 5}, {3, 5}});
  EXPECT_THAT(print(plain), HasSubstr("= matmul(%a, %b) : f32[3,5]"));
}

}  // namespace
}  // namespace lockstep
