// Tests: graph/passes/accumulate_gradients.cpp, graph/passes/conditional_updates.cpp
#include "lockstep/graph/passes/accumulate_gradients.h"

#include <gtest/gtest.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/optimizer.h"
#include "support/pass_test.h"

namespace lockstep {
namespace {

class AccumulateGradients : public testing::PassTest {};

Graph accumulated(Graph graph, int steps) {
  PassRegistry::global().parse_pipeline(str("accumulate-gradients(steps=", steps, ")")).run(graph);
  return graph;
}

TEST_F(AccumulateGradients, PutsTheUpdateIntoABranch) {
  expect_rewrite("accumulate-gradients(steps=4)", R"(
      var @w : f32[2]
      %g = placeholder() : f32[2]
      %w = read[variable=@w]() : f32[2]
      %lr = constant[value=f32[]{0.1}]() : f32[]
      %u = sgd[variable=@w](%g, %lr) : f32[2] after(%w)
      return %w
    )",
                 R"(
      var @w : f32[2]
      var @w/accumulated_007c77d8fe2747fa : f32[2] [trainable=false, synchronization=on_read, aggregation=sum]
      var @accumulate_gradients/steps_007c77d8fe2747fa : i64[] [trainable=false, aggregation=only_first_replica]
      %g = placeholder() : f32[2]
      %w = read[variable=@w]() : f32[2]
      %lr = constant[value=f32[]{0.1}]() : f32[]
      %accumulate_gradients/steps_007c77d8fe2747fa = read[variable=@accumulate_gradients/steps_007c77d8fe2747fa]() : i64[]
      %accumulate_gradients/constant = constant[value=i64[]{4}]() : i64[]
      %accumulate_gradients/mod = mod(%accumulate_gradients/steps_007c77d8fe2747fa, %accumulate_gradients/constant) : i64[]
      %accumulate_gradients/constant_1 = constant[value=i64[]{3}]() : i64[]
      %accumulate_gradients/equal = equal(%accumulate_gradients/mod, %accumulate_gradients/constant_1) : bool[]
      %accumulate_gradients/full = constant[value=i64[]{1}]() : i64[]
      %accumulate_gradients/steps_007c77d8fe2747fa/count = assign_add[variable=@accumulate_gradients/steps_007c77d8fe2747fa](%accumulate_gradients/full) : i64[] after(%accumulate_gradients/steps_007c77d8fe2747fa)
      %w/accumulated_007c77d8fe2747fa = assign_add[variable=@w/accumulated_007c77d8fe2747fa](%g) : f32[2]
      %accumulate_gradients/apply = cond(%accumulate_gradients/equal, %w/accumulated_007c77d8fe2747fa, %lr) after(%w) {
        region {
          %in_0 = placeholder() : f32[2]
          %in_1 = placeholder() : f32[]
          %u/mean/constant = constant[value=f32[]{4.0}]() : f32[]
          %u/mean/div = div(%in_0, %u/mean/constant) : f32[2]
          %w/accumulated_007c77d8fe2747fa/full = constant[value=f32[2]{*0.0}]() : f32[2]
          %w/accumulated_007c77d8fe2747fa/clear = assign[variable=@w/accumulated_007c77d8fe2747fa](%w/accumulated_007c77d8fe2747fa/full) : f32[2]
          %u = sgd[variable=@w](%u/mean/div, %in_1) : f32[2]
        }
        region {
          %in_0 = placeholder() : f32[2]
          %in_1 = placeholder() : f32[]
        }
      }
      return %w
    )",
                 {.idempotent = false, .same_meaning = false});
}

TEST_F(AccumulateGradients, OneStepIsNothingToGather) {
  expect_unchanged("accumulate-gradients(steps=1)", R"(
      var @w : f32[2]
      %g = placeholder() : f32[2]
      %lr = constant[value=f32[]{0.1}]() : f32[]
      %u = sgd[variable=@w](%g, %lr) : f32[2]
    )");
}

TEST_F(AccumulateGradients, LeavesOtherWritesAlone) {
  expect_unchanged("accumulate-gradients(steps=3)", R"(
      var @w : f32[2]
      var @n : i64[] [trainable=false, aggregation=only_first_replica]
      %g = placeholder() : f32[2]
      %u = assign_add[variable=@w](%g) : f32[2]
      %one = constant[value=i64[]{1}]() : i64[]
      %c = assign_add[variable=@n](%one) : i64[]
    )");
}

TEST_F(AccumulateGradients, RefusesFewerThanOneStep) {
  EXPECT_THROW(PassRegistry::global().make("accumulate-gradients(steps=0)"), BadOptionValue);
  EXPECT_THROW(PassRegistry::global().make("accumulate-gradients"), UnknownOption);
  EXPECT_EQ(make_accumulate_gradients({.steps = 3})->to_string(), "accumulate-gradients(steps=3)");
}

// A model whose gradients are dense, and rows; trained by an optimizer.
Graph step_of(const Optimizer& optimizer) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {kUnknown, 3});
  const Value rows = b.placeholder("rows", DType::kI64, {kUnknown});
  const VariableRef w = b.variable("w", testing::random_tensor({DType::kF64, {3, 2}}, 1));
  const VariableRef table = b.variable("table", testing::random_tensor({DType::kF64, {9, 2}}, 2));
  const Value loss = mean(square(matmul(x, b.read(w)) + gather(b.read(table), rows)));
  optimizer.minimize(loss, {w, table});
  b.result(b.read(w));
  b.result(b.read(optimizer.iterations(b)));
  return b.finish();
}

// k steps of a small batch are one of the joined batch, for every kind of optimizer: slots, schedules, rows.
TEST_F(AccumulateGradients, StepsAddUpToOneWithTheJoinedBatch) {
  const std::vector<Optimizer> optimizers = {
      Sgd(0.1),     Momentum(0.1),
      Adagrad(0.1), Adam(0.05),
      AdamW(0.05),  Adam(schedules::exponential_decay({.initial = 0.1, .steps = 1, .factor = 0.5}))};
  for (const Optimizer& optimizer : optimizers) {
    SCOPED_TRACE(optimizer.name());
    constexpr int kSteps = 3;
    constexpr std::int64_t kBatch = 2;
    Interpreter small(accumulated(step_of(optimizer), kSteps)), large(step_of(optimizer));
    for (std::uint64_t round = 0; round < 4; ++round) {
      const Tensor x = testing::random_tensor({DType::kF64, {kSteps * kBatch, 3}}, round + 1);
      // 0 to 6 of 9.
      const Tensor rows = testing::random_tensor({DType::kI64, {kSteps * kBatch}}, round + 50);
      std::vector<Tensor> last, before;
      for (int step = 0; step < kSteps; ++step) {
        before = last;
        last = small.run(Interpreter::Feeds{{"x", x.slice(step * kBatch, (step + 1) * kBatch)},
                                            {"rows", rows.slice(step * kBatch, (step + 1) * kBatch)}});
        if (step > 0 && step + 1 < kSteps) {
          EXPECT_TRUE(last[0].bit_equal(before[0])) << "w changed early";
        }
      }
      const std::vector<Tensor> expected = large.run(Interpreter::Feeds{{"x", x}, {"rows", rows}});
      EXPECT_TRUE(expected[1].bit_equal(last[1])) << expected[1] << " and " << last[1];
      for (const auto& [name, value] : large.variables()) {
        const Tensor& actual = small.variables().at(name);
        if (value.dtype() != DType::kF64) {
          EXPECT_TRUE(value.bit_equal(actual)) << name;
          continue;
        }
        for (std::size_t i = 0; i < value.data<double>().size(); ++i)
          EXPECT_NEAR(value.data<double>()[i], actual.data<double>()[i], 1e-12) << name << " at " << i;
      }
      for (const char* name : {"w/accumulated_c31cf5f1464e4f9f", "table/accumulated_c31cf5f1464e4f9f",
                               "table/accumulated_rows_c31cf5f1464e4f9f"}) {
        const Tensor& sum = small.variables().at(name);
        EXPECT_TRUE(sum.bit_equal(Tensor::zeros(sum.dtype(), sum.shape()))) << name;
      }
    }
  }
}

TEST_F(AccumulateGradients, HalvesAreGatheredInFloats) {
  const Graph graph = accumulated(parse(R"(
      var @w : f16[2]
      %g = placeholder() : f16[2]
      %lr = constant[value=f32[]{1.0}]() : f32[]
      %u = sgd[variable=@w](%g, %lr) : f16[2]
    )"),
                                  4);
  EXPECT_EQ(graph.find_variable("w/accumulated_007c77d8fe2747fa")->spec.dtype, DType::kF32);
  Interpreter interpreter(graph);
  // 2048 + 1 is 2048 in f16.
  for (const double g : {2048.0, 1.0, 1.0, 2.0}) interpreter.run({Tensor::full(DType::kF16, {2}, g)});
  EXPECT_TRUE(interpreter.variables().at("w").bit_equal(Tensor::full(DType::kF16, {2}, -513.0)));
}

// A gradient that waits for another variable's new value: two branches, one behind the other.
TEST_F(AccumulateGradients, UpdatesThatWaitForOthersGetTheirOwnBranch) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {2});
  const VariableRef v = b.variable("v", Tensor::full(DType::kF64, {2}, 1)),
                    w = b.variable("w", Tensor::full(DType::kF64, {2}, 1));
  const Sgd first(0.5, "first"), second(0.5, "second");
  first.minimize(sum(x * b.read(v)), {v});
  second.minimize(sum(b.read(v) * b.read(w)), {w});
  Interpreter interpreter(accumulated(b.finish(), 2));
  const Tensor x1 = Tensor::full(DType::kF64, {2}, 1);
  interpreter.run({x1});
  EXPECT_TRUE(interpreter.variables().at("v").bit_equal(Tensor::full(DType::kF64, {2}, 1)));
  EXPECT_TRUE(interpreter.variables().at("w").bit_equal(Tensor::full(DType::kF64, {2}, 1)));
  interpreter.run({x1});
  EXPECT_TRUE(interpreter.variables().at("v").bit_equal(Tensor::full(DType::kF64, {2}, 0.5)));
  // The mean of v in the first step, 1, and in the second, 0.5.
  EXPECT_TRUE(interpreter.variables().at("w").bit_equal(Tensor::full(DType::kF64, {2}, 1 - 0.5 * 0.75)));
}

TEST_F(AccumulateGradients, CountersOfTheUsersOwnGoOn) {
  const Graph graph = accumulated(parse(R"(
      var @w : f32[2]
      var @batches : i64[]
      %g = placeholder() : f32[2]
      %lr = constant[value=f32[]{1.0}]() : f32[]
      %u = sgd[variable=@w](%g, %lr) : f32[2]
      %one = constant[value=i64[]{1}]() : i64[]
      %c = assign_add[variable=@batches](%one) : i64[]
    )"),
                                  2);
  Interpreter interpreter(graph);
  for (int i = 0; i < 3; ++i) interpreter.run({Tensor::full(DType::kF32, {2}, 1)});
  EXPECT_EQ(interpreter.variables().at("batches").item(), 3);
}

// In a replicated region each replica gathers its own, and what is reduced before stays equal.
TEST_F(AccumulateGradients, KnowsSharesFromSums) {
  const Graph graph = accumulated(parse(R"(
      var @w : f32[2]
      var @v : f32[2]
      %x0 = placeholder() : f32[2]
      %x1 = placeholder() : f32[2]
      %step = replicated[replicas=2, shared=0](%x0, %x1) {
        region {
          %g = placeholder() : f32[2]
          %lr = constant[value=f32[]{0.1}]() : f32[]
          %total = all_reduce[reduce="sum"](%g) : f32[2]
          %u = sgd[variable=@w](%g, %lr) : f32[2]
          %t = sgd[variable=@v](%total, %lr) : f32[2]
        }
      })"),
                                  2);
  EXPECT_EQ(graph.find_variable("w/accumulated_5d4afd59bb2c0d88")->synchronization, Synchronization::kOnRead);
  EXPECT_EQ(graph.find_variable("v/accumulated_5d4afd59bb2c0d88")->synchronization, Synchronization::kAuto);
  EXPECT_EQ(graph.find_variable("accumulate_gradients/steps_5d4afd59bb2c0d88")->aggregation,
            Aggregation::kOnlyFirstReplica);
}

}  // namespace
}  // namespace lockstep
