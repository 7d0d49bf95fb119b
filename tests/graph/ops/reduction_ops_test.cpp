// Tests: graph/ops/reductions.cpp, graph/ops/rules/axes.cpp
// Reductions as ops: shapes, refusals, programs against the interpreter, gradients. Values are checked in
// tests/core/kernels/reduce_test.cpp.
#include <cmath>
#include <functional>

#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/ops/reductions.h"
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

using ReduceFn = Value (*)(const Operand&, std::vector<std::int64_t>, bool);
using Axes = std::vector<std::int64_t>;

struct NamedReduction {
  const char* name;
  ReduceFn make;
};
const NamedReduction kFloating[] = {{"sum", sum}, {"mean", mean}, {"max", max},
                                    {"min", min}, {"prod", prod}, {"logsumexp", logsumexp}};

// The results by program, inline and call by call, and by the interpreter; all agree.
double naive(std::string_view op, const std::vector<double>& values) {
  double total = 0, product = 1, exps = 0;
  double largest = values[0], smallest = values[0];
  for (const double x : values) {
    total += x;
    product *= x;
    exps += std::exp(x);
    largest = std::max(largest, x);
    smallest = std::min(smallest, x);
  }
  if (op == "sum") return total;
  if (op == "mean") return total / static_cast<double>(values.size());
  if (op == "prod") return product;
  if (op == "max") return largest;
  if (op == "min") return smallest;
  return std::log(exps);
}

TEST(Reductions, EqualNaiveOnesOverAnyAxes) {
  const Tensor feed = random_tensor({3, 4, 5}, 7);
  for (const auto& [name, make] : kFloating) {
    for (const Axes& axes : {Axes{}, Axes{0}, Axes{1}, Axes{-1}, Axes{0, 2}, Axes{-3, -2}}) {
      for (const bool keepdims : {false, true}) {
        GraphBuilder b;
        const Value y = make(b.placeholder("x", DType::kF64, {kUnknown, 4, 5}), axes, keepdims);
        b.result(y);
        const Tensor result = evaluate(b, {feed})[0];
        std::array<bool, 3> reduced = {axes.empty(), axes.empty(), axes.empty()};
        for (const std::int64_t axis : axes) reduced[static_cast<std::size_t>((axis + 3) % 3)] = true;
        std::vector<std::int64_t> dims;
        for (std::size_t i = 0; i < 3; ++i) {
          if (!reduced[i]) dims.push_back(feed.shape()[i]);
          if (reduced[i] && keepdims) dims.push_back(1);
        }
        ASSERT_EQ(result.shape(), Shape(std::span<const std::int64_t>(dims)));
        std::vector<std::vector<double>> groups(static_cast<std::size_t>(result.num_elements()));
        for (std::size_t at = 0; at < 60; ++at) {
          const std::array<std::size_t, 3> place = {at / 20, at / 5 % 4, at % 5};
          std::size_t to = 0;
          for (std::size_t i = 0; i < 3; ++i) {
            if (!reduced[i]) to = to * static_cast<std::size_t>(feed.shape()[i]) + place[i];
          }
          groups[to].push_back(feed.data<double>()[at]);
        }
        for (std::size_t i = 0; i < groups.size(); ++i) {
          EXPECT_NEAR(result.data<double>()[i], naive(name, groups[i]), 1e-12) << name;
        }
      }
    }
  }
}

TEST(Reductions, AreTheSameInProgramsHoweverLarge) {
  for (const auto& [name, make] : kFloating) {
    for (const auto& [shape, axes] : {std::pair<Shape, Axes>{{700, 300}, {0}},
                                      {{700, 300}, {1}},
                                      {{200'000, 3}, {0}},
                                      {{2, 200'000}, {1}},
                                      {{400'000}, {}},
                                      {{20, 130, 60}, {0, 2}}}) {
      GraphBuilder b;
      b.result(make(b.placeholder("x", DType::kF64, shape), axes, false));
      evaluate(b, {random_tensor(shape, 3, 0.999, 1.001)});
    }
  }
}

TEST(Reductions, OfBool) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kBool, {2, 3});
  b.result(any_of(x, {1}));
  b.result(all(x, {1}));
  b.result(any_of(x));
  b.result(all(x, {}, true));
  const std::vector<Tensor> results =
      evaluate(b, {Tensor::from<bool>({2, 3}, {true, true, true, false, false, true})});
  EXPECT_TRUE(results[0].bit_equal(Tensor::from<bool>({2}, {true, true})));
  EXPECT_TRUE(results[1].bit_equal(Tensor::from<bool>({2}, {true, false})));
  EXPECT_TRUE(results[2].bit_equal(Tensor::from<bool>({}, {true})));
  EXPECT_TRUE(results[3].bit_equal(Tensor::from<bool>({1, 1}, {false})));
}

TEST(Reductions, OfScalarsAndOfNothing) {
  GraphBuilder b;
  for (const auto& [name, make] : kFloating) b.result(make(b.placeholder(name, DType::kF32, {}), {}, false));
  b.result(prod(b.placeholder("none", DType::kF32, {0})));
  b.result(logsumexp(b.placeholder("none2", DType::kF32, {0, 2}), {0}));
  std::vector<Tensor> feeds(6, Tensor::scalar(2.0F));
  feeds.push_back(Tensor::zeros({0}));
  feeds.push_back(Tensor::zeros({0, 2}));
  const std::vector<Tensor> results = evaluate(b, feeds);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(results[i].item(), 2);
  EXPECT_EQ(results[6].item(), 1);
  EXPECT_EQ(results[7].data<float>()[1], -HUGE_VALF);
}

TEST(Reductions, RefuseWhatTheyCannotDo) {
  GraphBuilder b;
  const Value ints = b.placeholder("ints", DType::kI32, {2});
  const Value bools = b.placeholder("bools", DType::kBool, {2});
  const Value none = b.placeholder("none", DType::kF32, {3, 0});
  const Value some = b.placeholder("some", DType::kF32, {kUnknown});
  EXPECT_THAT(caught([&] { mean(ints); }).what,
              HasSubstr("takes floating values, got i32[2]; cast(x, DType::kF32)"));
  EXPECT_THAT(caught([&] { logsumexp(ints); }).what, HasSubstr("takes floating values"));
  EXPECT_THAT(caught([&] { sum(bools); }).what, HasSubstr("use any or all, or cast first"));
  EXPECT_THAT(caught([&] { any_of(ints); }).what, HasSubstr("takes bool, got i32[2]"));
  EXPECT_THAT(caught([&] { max(none, {1}); }).what,
              HasSubstr("of nothing: the reduced axes of f32[3,0] hold no elements"));
  EXPECT_THAT(caught([&] { min(none); }).what, HasSubstr("of nothing"));
  EXPECT_THAT(caught([&] { max(some, {1}); }).what,
              HasSubstr("axis 1 is outside of a value of rank 1; axes go from -1 to 0"));
  EXPECT_THAT(caught([&] { max(some, {0, -1}); }).what, HasSubstr("axis 0 is named twice"));
  b.result(max(some));
  const Program program = compile(b.finish(), Runtime());
  EXPECT_THAT(caught([&] {
                program.run({{"ints", Tensor::zeros(DType::kI32, {2})},
                             {"bools", Tensor::zeros(DType::kBool, {2})},
                             {"none", Tensor::zeros({3, 0})},
                             {"some", Tensor::zeros({0})}});
              }).what,
              HasSubstr("of nothing"));
}

TEST(Reductions, GoThroughText) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2, kUnknown});
  b.result(logsumexp(x, {-1}, true));
  b.result(num_elements(x, {}, DType::kF32));
  const Graph graph = b.finish();
  EXPECT_EQ(print(parse(print(graph))), print(graph));
}

TEST(Reductions, NumElementsFollowsFromTheShape) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2, kUnknown, kUnknown});
  b.result(num_elements(x));
  b.result(num_elements(x, {1}, DType::kF64));
  b.result(num_elements(x, {0}, DType::kF32));
  const std::vector<Tensor> results = evaluate(b, {Tensor::zeros({2, 3, 5})});
  EXPECT_TRUE(results[0].bit_equal(Tensor::scalar(std::int64_t{30})));
  EXPECT_TRUE(results[1].bit_equal(Tensor::scalar(3.0)));
  EXPECT_TRUE(results[2].bit_equal(Tensor::scalar(2.0F)));
}

// --- gradients

void expect_gradients_of(ReduceFn make, const Tensor& x) {
  for (const Axes& axes : {Axes{}, Axes{0}, Axes{-1}, Axes{0, 2}, Axes{0, 1, 2}}) {
    for (const bool keepdims : {false, true}) {
      SCOPED_TRACE(str(::testing::PrintToString(axes), keepdims ? " keepdims" : ""));
      expect_gradients(
          [&](GraphBuilder&, std::span<const Value> in) { return make(in[0] * in[0], axes, keepdims); }, {x},
          {.elements = 4});
    }
  }
}

TEST(ReductionGradients, Sum) { expect_gradients_of(sum, random_tensor({2, 3, 4}, 1)); }
TEST(ReductionGradients, MaxAndMin) {
  expect_gradients_of(max, random_tensor({2, 3, 4}, 3));
  expect_gradients_of(min, random_tensor({2, 3, 4}, 4));
}
TEST(ReductionGradients, LogSumExp) { expect_gradients_of(logsumexp, random_tensor({2, 3, 4}, 5)); }
TEST(ReductionGradients, Prod) { expect_gradients_of(prod, random_tensor({2, 3, 4}, 6, 0.5, 1.5)); }

TEST(ReductionGradients, ProdOfZeros) {
  for (const int zeros : {1, 2, 3}) {
    Tensor x = random_tensor({2, 4}, 7);
    for (int i = 0; i < zeros; ++i) x.data<double>()[static_cast<std::size_t>(i)] = 0;
    for (const Axes& axes : {Axes{1}, Axes{}}) {
      expect_gradients([&](GraphBuilder&, std::span<const Value> in) { return prod(in[0], axes); }, {x});
    }
  }
}

TEST(ReductionGradients, EqualElementsShare) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {4});
  b.result(gradients(max(x), {x})[0]);
  b.result(gradients(min(x), {x})[0]);
  const std::vector<Tensor> results = evaluate(b, {testing::vec({3, 1, 3, 2})});
  EXPECT_THAT(testing::floats(results[0]), ::testing::ElementsAre(0.5F, 0, 0.5F, 0));
  EXPECT_THAT(testing::floats(results[1]), ::testing::ElementsAre(0, 1, 0, 0));
}

TEST(ReductionGradients, LogSumExpOfMinusInfinityAloneGivesZero) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    GraphBuilder b;
    const Value x = b.placeholder("x", dtype, {2});
    b.result(gradients(logsumexp(x), {x})[0]);
    EXPECT_TRUE(evaluate(b, {Tensor::full(dtype, {2}, -HUGE_VAL)})[0].bit_equal(Tensor::zeros(dtype, {2})));
  }
}

TEST(ReductionGradients, Mean) { expect_gradients_of(mean, random_tensor({2, 3, 4}, 2)); }

// f16 ends at 65504: a share is worked out in f32.
TEST(ReductionGradients, SharesOfMoreElementsThanTheDTypeCounts) {
  const Tensor ones = Tensor::full(DType::kF16, {70'000}, 1);
  const Tensor share = Tensor::full(DType::kF16, {70'000}, 1000.0 / 70'000);
  for (const ReduceFn make : {ReduceFn(mean), ReduceFn(max), ReduceFn(min)}) {
    for (const std::int64_t extent : {std::int64_t{70'000}, kUnknown}) {
      GraphBuilder b;
      const Value x = b.placeholder("x", DType::kF16, {extent});
      b.result(gradients(make(x, {}, false) * 1000, {x})[0]);
      EXPECT_TRUE(evaluate(b, {ones})[0].bit_equal(share));
    }
  }
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF16, {70'000});
  b.result(gradients(global_mean(x) * 1000, {x})[0]);
  b.result(gradients(moments(x).mean * 1000, {x})[0]);
  for (const Tensor& result : evaluate(b, {ones})) EXPECT_TRUE(result.bit_equal(share));
}

TEST(ReductionGradients, ProdOfNothing) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    GraphBuilder b;
    const Value x = b.placeholder("x", dtype, {0, 3});
    b.result(gradients(sum(prod(x, {0})), {x})[0]);
    EXPECT_EQ(evaluate(b, {Tensor::zeros(dtype, {0, 3})})[0].shape(), Shape({0, 3})) << dtype;
  }
}

TEST(ReductionGradients, ProdOfHalvesRoundsOnce) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF16, {4});
  const Value flow = gradients(prod(x), {x})[0];
  b.result(cast(flow, DType::kF32));
  // The product of the first two alone is more than f16 holds.
  const Tensor feed = Tensor::from<F16>({4}, {F16(1024), F16(1024), F16(1.F / 1024), F16(1.F / 512)});
  EXPECT_THAT(testing::floats(evaluate(b, {feed})[0]),
              ::testing::ElementsAre(1.F / 512, 1.F / 512, 2048, 1024));
}

// More elements than bf16 can count.
TEST(ReductionGradients, ProdOfManyHalvesTwice) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kBF16, {300});
  const Value first = gradients(prod(x), {x})[0];
  b.result(gradients(sum(first), {x})[0]);
  // Of ones, each of the 299 others gives 1.
  EXPECT_TRUE(evaluate(b, {Tensor::full(DType::kBF16, {300}, 1)})[0].bit_equal(
      Tensor::full(DType::kBF16, {300}, 299)));
}

}  // namespace
}  // namespace lockstep
