// Tests: graph/train/gradients.cpp
// What gradients() promises, whatever the ops are.
#include "lockstep/graph/train/gradients.h"

#include <gtest/gtest.h>

#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"
#include "support/gradient_check.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using testing::caught;
using testing::expect_gradients;
using ::testing::HasSubstr;
using testing::random_tensor;

Tensor scalar(double value) { return Tensor::scalar(value); }

TEST(Gradients, OfAProductIsTheOtherFactor) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {});
  const Value y = b.placeholder("y", DType::kF64, {});
  const std::vector<Gradient> g = gradients(x * y, {x, y});
  b.result(g[0]);
  b.result(g[1]);
  Interpreter run(b.finish());
  const std::vector<Tensor> results = run.run({scalar(3), scalar(5)});
  EXPECT_EQ(results[0].item(), 5);
  EXPECT_EQ(results[1].item(), 3);
}

TEST(Gradients, FlowsThatMeetAreAdded) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {});
  const Value y = x * x * x + x;  // 3 x^2 + 1
  const Value first = gradients(y, {x})[0];
  const Value second = gradients(first, {x})[0];
  const Value third = gradients(second, {x})[0];
  for (const Value& value : {first, second, third}) b.result(value);
  Interpreter run(b.finish());
  const std::vector<Tensor> results = run.run({scalar(2)});
  EXPECT_EQ(results[0].item(), 13);
  EXPECT_EQ(results[1].item(), 12);
  EXPECT_EQ(results[2].item(), 6);
}

TEST(Gradients, ASeedStandsInForOnes) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {3});
  const Value seed = b.placeholder("seed", DType::kF64, {3});
  b.result(gradients(x * x, {x}, {.seed = seed})[0]);
  Interpreter run(b.finish());
  const Tensor g =
      run.run({Tensor::from<double>({3}, {1, 2, 3}), Tensor::from<double>({3}, {1, 10, 100})})[0];
  EXPECT_TRUE(g.bit_equal(Tensor::from<double>({3}, {2, 40, 600})));
}

TEST(Gradients, OfVariablesAreThoseOfAllThatIsReadBeforeTheFirstWrite) {
  GraphBuilder b;
  const VariableRef w = b.variable("w", scalar(3));
  const Value first = b.read(w);
  const Value second = b.read(w);
  b.assign(w, first + 1.0);
  const Value later = b.read(w);
  const Value loss = first * second * later;  // 3 * 3 * 4
  b.result(gradients(loss, {w})[0]);
  Interpreter run(b.finish());
  EXPECT_EQ(run.run()[0].item(), 2 * 3 * 4);
}

TEST(Gradients, NothingFlowsThroughStopGradient) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {});
  b.result(gradients(x * stop_gradient(x), {x})[0]);
  Interpreter run(b.finish());
  EXPECT_EQ(run.run({scalar(7)})[0].item(), 7);
}

TEST(Gradients, WhatIsNamedTwiceIsGivenTwice) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {});
  const VariableRef w = b.variable("w", scalar(5));
  const Value y = x * x * b.read(w);
  for (const Gradient& g : gradients(y, {x, x})) b.result(g);
  for (const Gradient& g : gradients(y, {w, w}, {.unconnected = Unconnected::kError})) b.result(g);
  const std::vector<Tensor> results = Interpreter(b.finish()).run({scalar(3)});
  EXPECT_EQ(results[0].item(), 30);
  EXPECT_EQ(results[1].item(), 30);
  EXPECT_EQ(results[2].item(), 9);
  EXPECT_EQ(results[3].item(), 9);
}

// As the error about an op without a rule advises.
TEST(Gradients, AnOpBehindStopGradientNeedsNoRule) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {});
  const TensorSpec spec{DType::kF64, {}};
  const auto twice = [&](const Value& v) {
    return b.call("twice", {&v, 1}, {&spec, 1},
                  [](KernelContext& c) {
                    *static_cast<double*>(c.output(0)) = 2 * *static_cast<const double*>(c.input(0));
                  },
                  {.effects = Effect::kPure})[0];
  };
  const Value refused = x * twice(x);
  EXPECT_THAT(caught([&] { gradients(refused, {x}); }).what, HasSubstr("put stop_gradient() in front of it"));
  const Value y = x * twice(stop_gradient(x));
  b.result(gradients(y, {x})[0]);
  EXPECT_EQ(Interpreter(b.finish()).run({scalar(3)})[0].item(), 6);
}

TEST(Gradients, ASeedMustFitItsTarget) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {2});
  const Value any = b.placeholder("any", DType::kF64, {kUnknown});
  for (const Value& seed : {b.placeholder("longer", DType::kF64, {3}), b.placeholder("f32", DType::kF32, {2}),
                            b.placeholder("scalar", DType::kF64, {})}) {
    EXPECT_THAT(caught([&] { gradients(x, {x}, {.seed = seed}); }).what,
                HasSubstr("for a target of f64[2]; they must have one dtype and shape"));
  }
  EXPECT_NO_THROW(gradients(x, {x}, {.seed = any}));
}

TEST(Gradients, AnotherGraphsValueIsRefused) {
  GraphBuilder b, c;
  const Value x = b.placeholder("x", DType::kF64, {});
  const Value z = c.placeholder("z", DType::kF64, {});
  EXPECT_THAT(caught([&] { gradients(x, {z}); }).what, HasSubstr("'z' belongs to another graph"));
  EXPECT_THAT(caught([&] { gradients(Value(), {x}); }).what,
              HasSubstr("gradients: the target: an empty Value"));
  const testing::Caught error = caught([&] { gradients(x, {Value()}); });
  EXPECT_THAT(error.what, HasSubstr("gradients: a value to differentiate by: an empty Value"));
  EXPECT_THAT(error.what, HasSubstr("gradients_test.cpp"));
}

TEST(Gradients, OfALongChainTakeTimeInProportion) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {});
  Value y = x;
  for (int i = 0; i < 100'000; ++i) y = -y;  // deeper than a stack, were there recursion
  b.result(gradients(y, {x})[0]);
  EXPECT_EQ(Interpreter(b.finish()).run({scalar(3)})[0].item(), 1);
}

TEST(Gradients, SumOverWhatBroadcastingMayHaveRepeated) {
  struct Case {
    Shape a, b;
    std::ptrdiff_t sums;  // where an unknown extent may be 1, or is known to be repeated
    Shape fed_a, fed_b;
  };
  const Case cases[] = {{{kUnknown, 4}, {4}, 1, {3, 4}, {4}},
                        {{kUnknown, 4}, {1, 4}, 1, {3, 4}, {1, 4}},
                        {{kUnknown, 4}, {}, 1, {3, 4}, {}},
                        {{kUnknown, 1}, {4}, 2, {3, 1}, {4}},
                        {{kUnknown, 4}, {3, 4}, 1, {1, 4}, {3, 4}},
                        {{kUnknown, 4}, {kUnknown}, 2, {3, 4}, {1}},
                        {{kUnknown, 4}, {kUnknown, 4}, 2, {1, 4}, {3, 4}},
                        {{3, 4}, {4}, 1, {3, 4}, {4}}};
  for (const Case& c : cases) {
    SCOPED_TRACE(str(c.a, " and ", c.b));
    GraphBuilder b;
    const Value left = b.placeholder("left", DType::kF64, c.a);
    const Value right = b.placeholder("right", DType::kF64, c.b);
    const Value total = sum(left * right);
    b.result(total);
    for (const Gradient& gradient : gradients(total, {left, right})) b.result(gradient);
    const Graph graph = b.finish();
    EXPECT_EQ(std::ranges::count_if(graph.nodes(), [](const Node& n) { return n.op().name == "sum_to"; }),
              c.sums)
        << print(graph);
    const std::vector<Tensor> feeds = {random_tensor(c.fed_a, 1), random_tensor(c.fed_b, 2)};
    const std::vector<Tensor> results = Interpreter(graph).run(feeds);
    for (std::size_t i = 0; i < 2; ++i) {
      ASSERT_EQ(results[1 + i].shape(), feeds[i].shape());
      double products = 0;  // a product is linear in each factor
      for (std::size_t k = 0; k < feeds[i].data<double>().size(); ++k)
        products += feeds[i].data<double>()[k] * results[1 + i].data<double>()[k];
      EXPECT_NEAR(products, results[0].item(), 1e-12);
    }
  }
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {kUnknown});
  b.result(gradients(sum(x * x), {x})[0]);
  EXPECT_THAT(print(b.finish()), ::testing::Not(HasSubstr("sum_to")));
}

TEST(Gradients, UnconnectedIsZeroOrAnError) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {kUnknown, 2});
  const Value z = b.placeholder("z", DType::kF64, {kUnknown, 2});
  const VariableRef w = b.variable("w", Tensor::zeros(DType::kF64, {4}));
  const Value loss = sum(x);
  b.result(gradients(loss, {z})[0]);
  b.result(gradients(loss, {w})[0]);
  EXPECT_THAT(caught([&] { gradients(loss, {z}, {.unconnected = Unconnected::kError}); }).what,
              HasSubstr("does not depend on 'z'"));
  EXPECT_THAT(caught([&] { gradients(loss, {w}, {.unconnected = Unconnected::kError}); }).what,
              HasSubstr("does not depend on variable 'w'"));
  Interpreter run(b.finish());
  const std::vector<Tensor> results =
      run.run({Tensor::zeros(DType::kF64, {3, 2}), Tensor::zeros(DType::kF64, {5, 2})});
  EXPECT_TRUE(results[0].bit_equal(Tensor::zeros(DType::kF64, {5, 2})));
  EXPECT_TRUE(results[1].bit_equal(Tensor::zeros(DType::kF64, {4})));
}

TEST(Gradients, RefuseWhatHasNone) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {3});
  const Value n = b.placeholder("n", DType::kI32, {});
  EXPECT_THAT(caught([&] { gradients(x, {x}); }).what, HasSubstr("not a scalar; reduce it"));
  EXPECT_THAT(caught([&] { gradients(n, {n}); }).what, HasSubstr("only floating values have gradients"));
  EXPECT_THAT(caught([&] { gradients(sum(x), {VariableRef{"nobody"}}); }).what,
              HasSubstr("no variable 'nobody' is declared"));
  const TensorSpec spec = x.spec();
  const Value opaque =
      b.call("mine", std::vector<Value>{x}, std::vector<TensorSpec>{spec}, [](KernelContext&) {})[0];
  const auto error = caught([&] { gradients(sum(opaque), {x}); });
  EXPECT_THAT(error.what, HasSubstr("op 'call' has no gradient rule"));
  EXPECT_THAT(error.what, HasSubstr("gradients_test.cpp"));
  EXPECT_EQ(error.place.node, "mine");
}

TEST(Gradients, NodesSayWhereTheyComeFrom) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {});
  const Value y = x * 2.0;
  const int line = __LINE__ - 1;
  const Value g = gradients(y, {x})[0];
  const Node& node = b.graph().node(g.id().node);
  const Node& forward = b.graph().node(y.id().node);
  EXPECT_EQ(node.site().line, static_cast<std::uint32_t>(line));
  EXPECT_EQ(b.graph().text(node.provenance().made_by), "gradients");
  EXPECT_EQ(node.provenance().origin, forward.provenance().identity);
  EXPECT_THAT(node.name(), ::testing::StartsWith("gradients/mul/"));
}

TEST(Gradients, RulesAreHeldToTheInputsSpecs) {
  static const bool registered = [] {
    OpDef def;
    def.name = "test_bad_rule";
    def.inputs = Arity::exactly(1);
    def.infer = [](InferContext& c) { c.add_output(c.input(0).dtype, Shape{}); };
    def.gradient = [](GradientContext& c) -> std::vector<Gradient> { return {c.grad()}; };
    OpRegistry::global().add(std::move(def));
    return true;
  }();
  ASSERT_TRUE(registered);
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {3});
  EXPECT_THAT(caught([&] { gradients(b.op1("test_bad_rule", {x}), {x}); }).what,
              HasSubstr("gives f64[] for input 0, which is f64[3]"));
}

// --- custom rules

TEST(Gradients, ACustomRuleStandsInForThoseInside) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {kUnknown});
  const Value scale = b.placeholder("scale", DType::kF64, {});
  const Value y = custom_gradient(
      {x}, [](std::span<const Value> in) { return in[0] * in[0]; },
      [&](std::span<const Value> in, const Value& output, const Value& flow) -> std::vector<Value> {
        return {flow * scale + (output - in[0] * in[0])};
      });
  b.result(y);
  b.result(gradients(sum(y), {x})[0]);
  const Graph graph = b.finish();
  EXPECT_EQ(print(parse(print(graph))), print(graph));
  const std::vector<Tensor> feeds = {Tensor::from<double>({2}, {3, 4}), scalar(10)};
  const std::vector<Tensor> expected = {Tensor::from<double>({2}, {9, 16}),
                                        Tensor::from<double>({2}, {10, 10})};
  const std::vector<Tensor> interpreted = Interpreter(graph).run(feeds);
  const std::vector<Tensor> compiled = compile(graph, Runtime()).run(feeds);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(interpreted[i].bit_equal(expected[i]));
    EXPECT_TRUE(compiled[i].bit_equal(expected[i]));
  }
}

TEST(Gradients, ACustomRuleIsDifferentiableToo) {
  expect_gradients(
      [](GraphBuilder&, std::span<const Value> x) {
        return custom_gradient(
            x, [](std::span<const Value> in) { return in[0] * in[0] * in[1]; },
            [](std::span<const Value> in, const Value&, const Value& flow) -> std::vector<Value> {
              const Value first = flow * in[0] * in[1] * 2.0;
              return {first, flow * in[0] * in[0]};
            });
      },
      {random_tensor({3}, 1), random_tensor({3}, 2)});
}

TEST(Gradients, ACustomRuleMustAnswerForEveryInput) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {});
  EXPECT_THAT(caught([&] {
                custom_gradient(
                    {x, x}, [](std::span<const Value> in) { return in[0]; },
                    [](std::span<const Value>, const Value&, const Value& flow) -> std::vector<Value> {
                      return {flow};
                    });
              }).what,
              HasSubstr("gives 1 gradient for 2 inputs"));
  const auto rule_gives = [&](const std::function<Value(const Value&)>& made) {
    return caught([&] {
             custom_gradient(
                 {x}, [](std::span<const Value> in) { return in[0] * in[0]; },
                 [&](std::span<const Value>, const Value&, const Value& flow) -> std::vector<Value> {
                   return {made(flow)};
                 });
           })
        .what;
  };
  EXPECT_THAT(rule_gives([](const Value& flow) { return cast(flow, DType::kF32); }),
              HasSubstr("the rule gives f32[] for input 0, which is f64[]"));
  EXPECT_THAT(rule_gives([](const Value& flow) { return reshape(flow, Shape{1}); }),
              HasSubstr("the rule gives f64[1] for input 0, which is f64[]"));
}

// --- sparse

TEST(Gradients, OfAGatherAreItsRows) {
  GraphBuilder b;
  const VariableRef table = b.variable("table", random_tensor({5, 2}, 1));
  const Value ids = b.placeholder("ids", DType::kI64, {kUnknown});
  const Value t = b.read(table);
  const Value loss = sum(gather(t, ids)) + sum(gather(t, ids) * 2.0);
  const Gradient g = gradients(loss, {table})[0];
  ASSERT_TRUE(g.is_sparse());
  EXPECT_THAT(caught([&] { g.dense(); }).what, HasSubstr("to_dense()"));
  b.result(g.slices().indices);
  b.result(g.slices().values);
  b.result(to_dense(g));
  Interpreter run(b.finish());
  const std::vector<Tensor> results = run.run({Tensor::from<std::int64_t>({2}, {3, 3})});
  EXPECT_EQ(results[0].shape(), (Shape{4}));
  EXPECT_EQ(results[1].shape(), (Shape{4, 2}));
  Tensor expected = Tensor::zeros(DType::kF64, {5, 2});
  expected.data<double>()[6] = expected.data<double>()[7] = 6;
  EXPECT_TRUE(results[2].bit_equal(expected));
}

TEST(Gradients, RowsThatFlowOnBecomeDense) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {3, 1});
  const Value ids = b.constant(Tensor::from<std::int64_t>({1}, {1}));
  const Gradient g = gradients(sum(gather(x * 2.0, ids)), {x})[0];
  EXPECT_FALSE(g.is_sparse());
  const Gradient mixed = gradients(sum(gather(x, ids)) + sum(x), {x})[0];
  EXPECT_FALSE(mixed.is_sparse());
  b.result(g);
  b.result(mixed);
  Interpreter run(b.finish());
  const std::vector<Tensor> results = run.run({Tensor::zeros(DType::kF64, {3, 1})});
  EXPECT_TRUE(results[0].bit_equal(Tensor::from<double>({3, 1}, {0, 2, 0})));
  EXPECT_TRUE(results[1].bit_equal(Tensor::from<double>({3, 1}, {1, 2, 1})));
}

// --- regions

Value first_positive(GraphBuilder&, const Value& x) { return less(0, sum(x)); }

TEST(Gradients, GoThroughTheBranchThatIsTaken) {
  for (const double shift : {-3.0, 3.0}) {
    expect_gradients(
        [&](GraphBuilder& b, std::span<const Value> x) {
          const Value p = first_positive(b, x[0] + shift);
          return cond(
              p, [&]() -> std::vector<Value> { return {x[0] * x[1] * x[1]}; },
              [&]() -> std::vector<Value> { return {x[0] * x[0]}; })[0];
        },
        {random_tensor({3}, 1), random_tensor({3}, 2)});
  }
}

TEST(Gradients, RefuseBranchesWithEffects) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {});
  const VariableRef w = b.variable("w", scalar(1));
  const Value y = cond(
      less(0, x), [&]() -> std::vector<Value> { return {b.assign_add(w, x) * x}; },
      [&]() -> std::vector<Value> { return {x}; })[0];
  EXPECT_THAT(caught([&] { gradients(y, {x}); }).what, HasSubstr("the way back would repeat them"));
}

Value power_loop(const Value& x, const Value& factor, std::int64_t trips, std::int64_t bound) {
  GraphBuilder& b = x.builder();
  const Value zero = b.constant(std::int64_t{0});
  return while_loop(
      std::vector<Value>{zero, x}, [&](std::span<const Value> c) { return less(c[0], trips); },
      [&](std::span<const Value> c) -> std::vector<Value> {
        const Value next = c[0] + 1;
        return {next, c[1] * factor + c[1] * c[1]};
      },
      LoopOptions{bound})[1];
}

TEST(Gradients, GoRoundABoundedLoopBackwards) {
  for (const auto& pair : {std::pair{3, 3}, {2, 5}, {0, 4}, {9, 3}}) {
    const int trips = pair.first, bound = pair.second;
    SCOPED_TRACE(::testing::Message() << trips << " trips, at most " << bound);
    expect_gradients(
        [&](GraphBuilder&, std::span<const Value> x) { return power_loop(x[0], x[1], trips, bound); },
        {random_tensor({2}, 1, 0.1, 0.5), random_tensor({2}, 2)});
  }
}

TEST(Gradients, AnUnboundedLoopSaysWhatIsMissing) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {2});
  const Value y = power_loop(x, x, 3, -1);
  EXPECT_THAT(caught([&] { gradients(sum(y), {x}); }).what, HasSubstr("give LoopOptions::max_trips"));
}

TEST(Gradients, LoopsInPrograms) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {kUnknown});
  const Value y = power_loop(x, x, 3, 4);
  b.result(y);
  b.result(gradients(sum(y), {x})[0]);
  const Graph graph = b.finish();
  EXPECT_EQ(print(parse(print(graph))), print(graph));
  const Tensor feed = random_tensor({5}, 3);
  const std::vector<Tensor> expected = Interpreter(graph).run({feed});
  const std::vector<Tensor> got = compile(graph, Runtime()).run(std::vector<Tensor>{feed});
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(got[i].bit_equal(expected[i]));
}

}  // namespace
}  // namespace lockstep
