// Tests: graph/train/optimizer.cpp, graph/train/schedules.cpp
// Learning-rate schedules against their closed forms, step by step.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>

#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/graph/train/schedules.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using testing::caught;
using ::testing::HasSubstr;

// The schedule at some steps equals the function.
void expect_rates(const Schedule& schedule, const std::function<double(double)>& expected) {
  GraphBuilder b;
  const Value t = b.placeholder("t", DType::kI64, {});
  const Value rate = schedule(t);
  EXPECT_EQ(rate.spec(), (TensorSpec{DType::kF64, {}}));
  b.result(rate);
  const Graph graph = b.finish();
  EXPECT_EQ(print(parse(print(graph))), print(graph));
  Interpreter interpreter(graph);
  const Program program = compile(graph, Runtime({.threads = 1}));
  for (const std::int64_t step :
       {0, 1, 2, 3, 4, 5, 9, 10, 11, 12, 19, 20, 21, 99, 100, 101, 1000, 1'000'000}) {
    const Tensor fed = Tensor::scalar(step);
    const Tensor actual = interpreter.run({fed})[0];
    EXPECT_NEAR(actual.item(), expected(static_cast<double>(step)), 1e-12) << "step " << step;
    EXPECT_TRUE(program.run(std::vector{fed})[0].bit_equal(actual));
  }
}

TEST(Schedules, ConstantStays) {
  expect_rates(schedules::constant(0.25), [](double) { return 0.25; });
}

TEST(Schedules, ExponentialDecayMultiplies) {
  // initial * factor^(t / steps)
  expect_rates(schedules::exponential_decay({.initial = 0.5, .steps = 10, .factor = 0.8}),
               [](double t) { return 0.5 * std::pow(0.8, t / 10); });
  expect_rates(schedules::exponential_decay({.initial = 0.5, .steps = 10, .factor = 0.8, .staircase = true}),
               [](double t) { return 0.5 * std::pow(0.8, std::floor(t / 10)); });
}

TEST(Schedules, PolynomialDecayEndsAtItsFinalRate) {
  // (initial - final) * (1 - min(t, steps) / steps)^power + final
  expect_rates(schedules::polynomial_decay({.initial = 0.5, .steps = 20, .final = 0.1}),
               [](double t) { return 0.4 * (1 - std::min(t, 20.0) / 20) + 0.1; });
  expect_rates(schedules::polynomial_decay({.initial = 0.5, .steps = 20, .final = 0.1, .power = 2}),
               [](double t) { return 0.4 * std::pow(1 - std::min(t, 20.0) / 20, 2) + 0.1; });
}

TEST(Schedules, CosineDecayFollowsHalfAWave) {
  // final + (initial - final) * (1 + cos(pi * min(t, steps) / steps)) / 2
  const auto wave = [](double t) {
    return 0.1 + 0.4 * (1 + std::cos(std::numbers::pi * std::clamp(t, 0.0, 100.0) / 100)) / 2;
  };
  expect_rates(schedules::cosine_decay({.initial = 0.5, .steps = 100, .final = 0.1}), wave);
  // With a warm-up of 10 steps: initial * (t + 1) / 11 before, and the wave starts at 10.
  expect_rates(schedules::cosine_decay({.initial = 0.5, .steps = 100, .final = 0.1, .warmup = 10}),
               [&](double t) { return t < 10 ? 0.5 * (t + 1) / 11 : wave(t - 10); });
}

TEST(Schedules, PiecewiseConstantChangesAtItsBoundaries) {
  expect_rates(schedules::piecewise_constant({10, 20}, {1, 0.5, 0.125}), [](double t) {
    return t < 10 ? 1 : t < 20 ? 0.5 : 0.125;
  });
  expect_rates(schedules::piecewise_constant({}, {0.5}), [](double) { return 0.5; });
}

TEST(Schedules, InverseSqrtRisesAndFalls) {
  // peak * min((t + 1) / warmup, sqrt(warmup / (t + 1)))
  expect_rates(schedules::inverse_sqrt({.peak = 0.5, .warmup = 10}),
               [](double t) { return 0.5 * std::min((t + 1) / 10, std::sqrt(10 / (t + 1))); });
}

TEST(Schedules, FollowTheOptimizersCounter) {
  GraphBuilder b;
  const VariableRef w = b.variable("w", Tensor::scalar(0.0F));
  const Sgd sgd(schedules::piecewise_constant({1, 3}, {1, 0.5, 0.25}));
  sgd.apply_gradients({{b.constant(-1.0F), w}});
  const Graph graph = b.finish();
  Interpreter interpreter(graph);
  const Program program = compile(graph, Runtime({.threads = 2}), testing::with_lanes());
  const double expected[] = {1, 1.5, 2, 2.25, 2.5};
  for (const double w_after : expected) {
    interpreter.run();
    program.run();
    EXPECT_EQ(interpreter.variables().at("w").item(), w_after);
    EXPECT_EQ(program.variables().value("w").item(), w_after);
  }
  // Whoever sets the counter sets the schedule.
  program.variables().set("sgd/iterations", Tensor::scalar(std::int64_t{0}));
  program.run();
  EXPECT_EQ(program.variables().value("w").item(), 3.5);
}

TEST(Schedules, RefuseNumbersWithoutMeaning) {
  EXPECT_THAT(caught([] { schedules::constant(-1); }).what,
              HasSubstr("constant: the rate is -1; it must be finite"));
  EXPECT_THAT(caught([] { schedules::exponential_decay({.initial = 1, .steps = 0}); }).what,
              HasSubstr("exponential_decay: steps is 0; it must be 1 or more"));
  EXPECT_THAT(caught([] { schedules::cosine_decay({.initial = 1, .steps = 1, .warmup = -1}); }).what,
              HasSubstr("warmup is -1"));
  EXPECT_THAT(caught([] { schedules::polynomial_decay({.initial = std::nan("")}); }).what,
              HasSubstr("initial is nan"));
  EXPECT_THAT(caught([] {
                schedules::piecewise_constant({1, 2}, {1, 2});
              }).what,
              HasSubstr("2 boundaries need 3 values, got 2"));
  EXPECT_THAT(caught([] {
                schedules::piecewise_constant({2, 2}, {1, 2, 3});
              }).what,
              HasSubstr("must rise, got 2 before 2"));
  EXPECT_THAT(caught([] { schedules::inverse_sqrt({.peak = 1, .warmup = 0}); }).what,
              HasSubstr("warmup is 0"));
}

}  // namespace
}  // namespace lockstep
