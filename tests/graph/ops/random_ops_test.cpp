// Tests: graph/ops/random.cpp
// tests/graph/ops/random_ops_test.cpp - random draws as ops: what decides them, shapes, gradients, errors.
#include <cmath>
#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/kernels/random.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"
#include "support/gradient_check.h"
#include "support/on_card.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using testing::caught;
using testing::expect_same_tensors;
using testing::floats;
using ::testing::HasSubstr;
using testing::with_lanes;

std::vector<Tensor> run_both(GraphBuilder& b, const std::vector<Tensor>& feeds, std::uint64_t step = 0) {
  const Graph graph = b.finish();
  EXPECT_EQ(print(parse(print(graph))), print(graph));
  Interpreter interpreter(graph, {.seed = 5});
  interpreter.set_step(step);
  const std::vector<Tensor> expected = interpreter.run(feeds);
  const Program program = compile(graph, Runtime({.threads = 2, .seed = 5}), with_lanes());
  program.variables().set_step(step);
  const std::vector<Tensor> actual = program.run(feeds);
  expect_same_tensors(actual, expected);
  testing::expect_same_on_card(graph, feeds);
  return actual;
}

// Keys that the builder gives are none that somebody would write.
TEST(RandomOps, AKeyOfOnesOwnIsNoneOfTheBuilders) {
  GraphBuilder b;
  const TensorSpec spec{DType::kF64, {100}};
  constexpr std::size_t kDraws = 4;
  for (std::size_t i = 0; i < kDraws; ++i) b.result(b.random_uniform(spec));
  for (std::size_t key = 0; key < kDraws; ++key)
    b.result(b.random_uniform(spec, 0, 1, static_cast<std::int64_t>(key)));
  const std::vector<Tensor> results = run_both(b, {});
  for (std::size_t i = 0; i < results.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) EXPECT_FALSE(results[i].bit_equal(results[k])) << i << " and " << k;
  }
}

TEST(RandomOps, DrawTheElementsOfTheirStream) {
  constexpr std::int64_t n = 100'000;  // several shards
  GraphBuilder b;
  b.result(random_normal(b, {DType::kF32, {n}}, 1, 2, 7));
  b.result(random_integers(b, {DType::kI32, {n}}, -5, 6, 8));
  b.result(random_permutation(b, 1000, 9));
  b.result(b.random_uniform({DType::kF64, {n}}, 0, 1, 10));
  const std::vector<Tensor> results = run_both(b, {}, 3);
  const auto stream = [](std::uint64_t key) { return RandomStream{5, key, 0, 3}; };
  Tensor expected = Tensor::zeros({n});
  kernels::normal(DType::kF32, stream(7), 1, 2, expected.raw(), 0, n);
  EXPECT_TRUE(results[0].bit_equal(expected));
  expected = Tensor::zeros(DType::kI32, {n});
  kernels::integers(DType::kI32, stream(8), -5, 6, expected.raw(), 0, n);
  EXPECT_TRUE(results[1].bit_equal(expected));
  expected = Tensor::zeros(DType::kI64, {1000});
  kernels::permutation(stream(9), 1000, expected.data<std::int64_t>().data());
  EXPECT_TRUE(results[2].bit_equal(expected));
  expected = Tensor::zeros(DType::kF64, {n});
  kernels::uniform(DType::kF64, stream(10), 0, 1, expected.raw(), 0, n);
  EXPECT_TRUE(results[3].bit_equal(expected));
}

// Exchanges that follow each other through the same places, few and many.
TEST(RandomOps, PermutationsOfAnySizeAreTheKernels) {
  for (const std::int64_t n : {1, 2, 3, 5, 17, 256, 1000, 70'001}) {
    GraphBuilder b;
    for (std::int64_t key = 0; key < 4; ++key) b.result(random_permutation(b, n, key));
    const std::vector<Tensor> results = run_both(b, {}, 3);
    for (std::uint64_t key = 0; key < 4; ++key) {
      Tensor expected = Tensor::zeros(DType::kI64, {n});
      kernels::permutation(RandomStream{5, key, 0, 3}, n, expected.data<std::int64_t>().data());
      EXPECT_TRUE(results[key].bit_equal(expected)) << n << " by " << key;
    }
  }
}

TEST(RandomOps, WithoutAKeyEachDrawsItsOwn) {
  GraphBuilder b;
  for (int i = 0; i < 2; ++i) b.result(random_normal(b, {DType::kF32, {4}}));
  for (int i = 0; i < 2; ++i) b.result(random_permutation(b, 50));
  const Value x = b.constant(Tensor::full(DType::kF32, {50}, 1));
  for (int i = 0; i < 2; ++i) b.result(dropout(x, 0.5));
  const std::vector<Tensor> results = run_both(b, {});
  for (std::size_t i = 0; i < 6; i += 2) EXPECT_FALSE(results[i].bit_equal(results[i + 1]));
}

TEST(RandomOps, TakeTheirShapeFromAValue) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 3});
  const Value shape = shape_of(x);
  const Value normal = random_normal(shape, DType::kF32, 0, 1, 1);
  EXPECT_EQ(normal.shape(), (Shape{kUnknown, 3}));
  b.result(normal);
  b.result(random_uniform(shape, DType::kF16, 2, 3, 2));
  b.result(random_integers(shape, DType::kI64, 0, 10, 3));
  for (const std::int64_t rows : {0, 1, 5}) {
    GraphBuilder same;
    same.result(random_normal(same, {DType::kF32, {rows, 3}}, 0, 1, 1));
    same.result(same.random_uniform({DType::kF16, {rows, 3}}, 2, 3, 2));
    same.result(random_integers(same, {DType::kI64, {rows, 3}}, 0, 10, 3));
    GraphBuilder copy;
    const Value y = copy.placeholder("x", DType::kF32, {kUnknown, 3});
    const Value of_y = shape_of(y);
    copy.result(random_normal(of_y, DType::kF32, 0, 1, 1));
    copy.result(random_uniform(of_y, DType::kF16, 2, 3, 2));
    copy.result(random_integers(of_y, DType::kI64, 0, 10, 3));
    expect_same_tensors(run_both(copy, {Tensor::zeros({rows, 3})}), run_both(same, {}));
  }
}

TEST(RandomOps, ScalarsAndNothing) {
  GraphBuilder b;
  b.result(random_normal(b, {DType::kBF16, {}}, 0, 1, 1));
  b.result(random_normal(b, {DType::kF64, {0, 2}}, 0, 1, 1));
  b.result(random_permutation(b, 0));
  b.result(dropout(b.constant(2.0F), 0));
  const std::vector<Tensor> results = run_both(b, {});
  EXPECT_EQ(results[0].shape(), Shape{});
  EXPECT_EQ(results[1].num_elements(), 0);
  EXPECT_EQ(results[2].num_elements(), 0);
  EXPECT_EQ(results[3].item(), 2);
}

TEST(RandomOps, DropoutGoesBackThroughWhatItKept) {
  constexpr std::int64_t n = 100'000;
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {n});
  const Value y = dropout(x, 0.4);
  b.result(y);
  b.result(gradients(sum(y), {x})[0]);
  const std::vector<Tensor> results = run_both(b, {Tensor::full(DType::kF32, {n}, 1)}, 2);
  EXPECT_TRUE(results[0].bit_equal(results[1]));
  double sum = 0;
  for (const float value : floats(results[0])) sum += static_cast<double>(value);
  EXPECT_NEAR(sum / n, 1, 0.02);
}

// Each run is a step of its own, so that differences of runs say nothing: the derivatives are compared with
// what they must be in one run.
TEST(RandomOps, DropoutHasDerivativesOfBothOrders) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {40});
  const Value y = sum(dropout(x * x * x, 0.3, 4));
  const Value first = gradients(y, {x})[0];
  b.result(first);
  b.result(gradients(sum(first), {x})[0]);
  b.result(dropout(x * x * 3, 0.3, 4));
  b.result(dropout(x * 6, 0.3, 4));
  const std::vector<Tensor> results = run_both(b, {testing::random_tensor({40}, 1)}, 2);
  for (std::size_t i = 0; i < 40; ++i) {
    EXPECT_NEAR(results[0].data<double>()[i], results[2].data<double>()[i], 1e-12);
    EXPECT_NEAR(results[1].data<double>()[i], results[3].data<double>()[i], 1e-12);
  }
}

TEST(RandomOps, NothingFlowsBackIntoAShape) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {kUnknown, 2});
  const Value drawn = random_normal(shape_of(x), DType::kF64, 0, 1, 4);
  b.result(drawn);
  b.result(gradients(sum(x * drawn), {x})[0]);
  const std::vector<Tensor> results = run_both(b, {testing::random_tensor({3, 2}, 1)});
  EXPECT_TRUE(results[0].bit_equal(results[1]));
}

TEST(RandomOps, ReplicasAndStepsDiffer) {
  GraphBuilder b;
  const auto drawn = replicated(b, 2, {}, {}, [&](std::span<const Value>) {
    const Value ones = b.constant(Tensor::full(DType::kF32, {64}, 1));
    const Value dropped = dropout(ones, 0.5, 3);
    return std::vector<Value>{random_permutation(b, 20, 3), dropped};
  });
  for (const auto& values : drawn) {
    for (const Value& value : values) b.result(value);
  }
  const Graph graph = b.finish();
  const Program program = compile(graph, Runtime({.threads = 2}));
  const std::vector<Tensor> first = program.run();
  EXPECT_FALSE(first[0].bit_equal(first[1]));
  EXPECT_FALSE(first[2].bit_equal(first[3]));
  program.variables().set_step(1);
  const std::vector<Tensor> second = program.run();
  EXPECT_FALSE(first[0].bit_equal(second[0]));
  EXPECT_FALSE(first[2].bit_equal(second[2]));
}

TEST(RandomOps, RefuseNonsense) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const Value i = b.placeholder("i", DType::kI64, {2});
  const auto what = [](const auto& f) { return caught(f).what; };
  EXPECT_THAT(what([&] { dropout(x, 1.5); }), HasSubstr("rate must lie in [0, 1], got 1.5"));
  EXPECT_THAT(what([&] { dropout(i, 0.5); }), HasSubstr("takes a floating value, got i64[2]"));
  EXPECT_THAT(what([&] { random_permutation(b, -1); }), HasSubstr("n must be 0 or more, got -1"));
  EXPECT_THAT(what([&] {
                random_integers(b, {DType::kI32, {2}}, 3, 3);
              }),
              HasSubstr("low must be below high, got [3, 3)"));
  EXPECT_THAT(what([&] {
                random_integers(b, {DType::kF32, {2}}, 0, 3);
              }),
              HasSubstr("dtype must be an integer, got f32"));
  EXPECT_THAT(what([&] { random_normal(b, {DType::kF32, {2}}, 0, -1); }), HasSubstr("stddev"));
  EXPECT_THAT(what([&] {
                random_normal(b, {DType::kF32, {kUnknown}});
              }),
              HasSubstr("shape must be known, got [?]"));
  EXPECT_THAT(what([&] { random_normal(i, DType::kF32); }), HasSubstr("shape operand"));
}

TEST(RandomOps, RefuseBoundsWhereTheyAreWritten) {
  GraphBuilder b;
  const auto uniform = [&](DType dtype, double low, double high) {
    return caught([&] { b.random_uniform({dtype, {2}}, low, high); }).what;
  };
  EXPECT_THAT(uniform(DType::kF32, 1, 1), HasSubstr("low must be below high"));
  EXPECT_THAT(uniform(DType::kF16, 0, 1e-9),
              HasSubstr("both finite in f16, as their distance, got [0, 1e-09)"));
  EXPECT_THAT(uniform(DType::kF32, -HUGE_VAL, 1), HasSubstr("low must be below high"));
  EXPECT_THAT(uniform(DType::kF64, -1.5e308, 1.5e308), HasSubstr("as their distance"));
  EXPECT_THAT(caught([&] {
                random_integers(b, {DType::kU8, {2}}, 0, 257);
              }).what,
              HasSubstr("u8 does not hold all of [0, 257)"));
  random_integers(b, {DType::kU8, {2}}, 0, 256);
}

}  // namespace
}  // namespace lockstep
