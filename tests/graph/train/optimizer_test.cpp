// Tests: graph/train/optimizer.cpp, graph/ops/updates.cpp
// Optimizers: what their steps compute, where their state lies, and that a step commits or did not happen.
#include "lockstep/graph/train/optimizer.h"

#include <cmath>
#include <functional>
#include <vector>

#include "lockstep/core/kernels/updates.h"
#include "lockstep/graph/check/structure.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"
#include "support/gradient_check.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using testing::caught;
using testing::Caught;
using ::testing::ElementsAre;
using testing::expect_same_values;
using ::testing::HasSubstr;
using testing::random_tensor;
using testing::Values;
using testing::variables_of;
using testing::with_lanes;

constexpr double kRate = 0.1;

Tensor vec64(std::initializer_list<double> values) {
  return Tensor::from<double>({static_cast<std::int64_t>(values.size())}, values);
}

std::vector<Optimizer> all_optimizers() {
  return {Sgd(kRate),
          Momentum(kRate, 0.9),
          Momentum(kRate, 0.9, true, "nesterov"),
          Adagrad(kRate),
          RmsProp(kRate),
          RmsProp(kRate, {.momentum = 0.5, .name = "rmsprop_m"}),
          RmsProp(kRate, {.momentum = 0.5, .centered = true, .name = "rmsprop_c"}),
          Adam(kRate),
          AdamW(kRate)};
}

// A step that applies the fed gradient to the variable "w".
Graph step_of(const Optimizer& optimizer, const Tensor& initial) {
  GraphBuilder b;
  const VariableRef w = b.variable("w", initial);
  const Value g = b.placeholder("g", initial.dtype(), initial.shape());
  optimizer.apply_gradients({{g, w}});
  return b.finish();
}

// A step that applies fed rows to the variable "w".
Graph sparse_step_of(const Optimizer& optimizer, const Tensor& initial) {
  GraphBuilder b;
  const VariableRef w = b.variable("w", initial);
  const Value indices = b.placeholder("indices", DType::kI64, {kUnknown});
  const Value rows = b.placeholder("rows", initial.dtype(), initial.shape().with_dim(0, kUnknown));
  const Value shape = shape_of(b.read(w));
  optimizer.apply_gradients({{IndexedSlices{indices, rows, shape}, w}});
  return b.finish();
}

// What w becomes, one gradient after another, for the first element.
std::vector<double> trace(const Optimizer& optimizer, double initial, const std::vector<double>& gradients) {
  Interpreter interpreter(step_of(optimizer, vec64({initial})));
  std::vector<double> result;
  for (const double g : gradients) {
    interpreter.run({vec64({g})});
    result.push_back(interpreter.variables().at("w").item());
  }
  return result;
}

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], 1e-12) << "step " << i + 1;
}

// --- sequences

TEST(Optimizer, SgdSubtractsTheRateTimesTheGradient) {
  expect_near(trace(Sgd(0.5), 1, {2, -4, 1}), {0, 2, 1.5});
}

TEST(Optimizer, MomentumKeepsAVelocity) {
  // m = 0.5 m + g: 2, -3, -0.5;  w -= 0.5 m.
  expect_near(trace(Momentum(0.5, 0.5), 1, {2, -4, 1}), {0, 1.5, 1.75});
  // w -= 0.5 (g + 0.5 m): 2 + 1, -4 - 1.5, 1 - 0.25.
  expect_near(trace(Momentum(0.5, 0.5, true), 1, {2, -4, 1}), {-0.5, 2.25, 1.875});
}

TEST(Optimizer, MomentumOfAConstantGradientSumsAGeometricSeries) {
  // m_t = g (1 - mu^t) / (1 - mu), so w_n = w - lr g (n - mu (1 - mu^n) / (1 - mu)) / (1 - mu).
  const double mu = 0.9, lr = 0.01, g = 3;
  const int n = 40;
  const std::vector<double> w = trace(Momentum(lr, mu), 1, std::vector<double>(n, g));
  const double expected = 1 - lr * g * (n - mu * (1 - std::pow(mu, n)) / (1 - mu)) / (1 - mu);
  EXPECT_NEAR(w.back(), expected, 1e-12);
}

TEST(Optimizer, AdagradDividesByTheRootOfAllSquares) {
  // a += g^2: 0.1 + 4, 0.1 + 20;  w -= lr g / (sqrt(a) + epsilon).
  const double first = 1 - 0.5 * 2 / (std::sqrt(4.1) + 1e-7);
  expect_near(trace(Adagrad(0.5), 1, {2, -4}), {first, first + 0.5 * 4 / (std::sqrt(20.1) + 1e-7)});
}

TEST(Optimizer, RmsPropDividesByTheRootOfAMeanSquare) {
  // s = 0.9 s + 0.1 g^2: 0.4, 1.96;  w -= lr g / sqrt(s + epsilon).
  const double e = 1e-7;
  const double a = 0.5 * 2 / std::sqrt(0.4 + e), b = -0.5 * 4 / std::sqrt(1.96 + e);
  expect_near(trace(RmsProp(0.5), 1, {2, -4}), {1 - a, 1 - a - b});
  // m = 0.5 m + that;  w -= m.
  expect_near(trace(RmsProp(0.5, {.momentum = 0.5}), 1, {2, -4}), {1 - a, 1 - a - (0.5 * a + b)});
  // The mean is 0.9 * 0 + 0.1 * 2 = 0.2, then 0.18 - 0.4 = -0.22; its square leaves the divisor.
  const double c = 0.5 * 2 / std::sqrt(0.4 - 0.04 + e), d = -0.5 * 4 / std::sqrt(1.96 - 0.0484 + e);
  expect_near(trace(RmsProp(0.5, {.centered = true}), 1, {2, -4}), {1 - c, 1 - c - d});
}

TEST(Optimizer, AdamCorrectsTheBiasOfItsMoments) {
  // m = 0.9 m + 0.1 g, v = 0.99 v + 0.01 g^2, w -= lr (m / (1 - 0.9^t)) / (sqrt(v / (1 - 0.99^t)) + epsilon).
  // With a constant
  // gradient both corrected moments are exact, and each step is lr g / (|g| + epsilon).
  const AdamOptions options{.beta2 = 0.99};
  const double each = 0.1 * 3 / (3 + 1e-8);
  expect_near(trace(Adam(0.1, options), 1, {3, 3, 3}), {1 - each, 1 - 2 * each, 1 - 3 * each});
  // By hand for 2, -4: m = 0.2, -0.22; v = 0.04, 0.1996.
  const double first = 0.1 * (0.2 / 0.1) / (std::sqrt(0.04 / 0.01) + 1e-8);
  const double second = 0.1 * (-0.22 / (1 - 0.81)) / (std::sqrt(0.1996 / (1 - 0.9801)) + 1e-8);
  expect_near(trace(Adam(0.1, options), 1, {2, -4}), {1 - first, 1 - first - second});
}

TEST(Optimizer, AdamWDecaysWeightsApartFromGradients) {
  // Without a gradient: w_t = w (1 - lr decay)^t.
  const double keep = 1 - 0.1 * 0.5;
  expect_near(trace(AdamW(0.1, {.weight_decay = 0.5}), 2, {0, 0, 0}),
              {2 * keep, 2 * keep * keep, 2 * keep * keep * keep});
  const double each = 0.1 * 3 / (3 + 1e-8);
  expect_near(trace(AdamW(0.1, {.weight_decay = 0.5}), 2, {3, 3}),
              {2 * keep - each, (2 * keep - each) * keep - each});
}

TEST(Optimizer, EveryOneMinimizesAQuadratic) {
  for (const Optimizer& optimizer : all_optimizers()) {
    GraphBuilder b;
    const VariableRef x = b.variable("x", Tensor::scalar(3.0));
    const VariableRef y = b.variable("y", Tensor::scalar(-2.0));
    const Value dx = b.read(x) - 1;
    const Value dy = b.read(y) + 0.5;
    const Value square_x = dx * dx;
    const Value loss = square_x + dy * dy;
    b.result(loss);
    const std::vector<NodeId> nodes = optimizer.minimize(loss, {x, y});
    EXPECT_EQ(nodes.size(), 2U);
    const Program program = compile(b.finish(), Runtime({.threads = 1}));
    const double at_first = program.run()[0].item();
    program.run_n(600);
    EXPECT_EQ(at_first, 4 + 2.25);
    EXPECT_LT(program.run()[0].item(), 0.02) << optimizer.name();
    EXPECT_EQ(program.variables().value(optimizer.name() + "/iterations").item(), 602);
  }
}

// --- every way of running gives the same bits

TEST(Optimizer, ProgramsAgreeWithTheInterpreterOnAnyNumberOfThreads) {
  const std::int64_t n = 150'000;  // several shards each
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Optimizer& optimizer : all_optimizers()) {
      const Tensor initial = Tensor::full(dtype, {n}, 0.75);
      Tensor g = Tensor::empty(dtype, {n});
      visit_dtype(dtype, [&]<class T>(T) {
        if constexpr (sizeof(T) <= 4 && is_floating(dtype_of<T>)) {
          float next = -1;
          for (T& element : g.data<T>()) element = T(next = next * 0.98F + 0.011F);
        }
      });
      const Graph graph = step_of(optimizer, initial);
      Interpreter interpreter(graph);
      std::vector<Program> programs;
      for (const std::size_t threads : {1U, 2U, 8U}) {
        programs.push_back(compile(graph, Runtime({.threads = threads}), with_lanes()));
      }
      for (int step = 0; step < 3; ++step) {
        interpreter.run({g});
        for (const Program& program : programs) program.run(std::vector{g});
      }
      for (const Program& program : programs) {
        expect_same_values(variables_of(program.variables()), interpreter.variables());
        // Nothing but scalars is kept besides the variables: updates run in place.
        EXPECT_LT(program.plan(std::vector{g}).planned_bytes, 10'000) << optimizer.name();
      }
    }
  }
}

TEST(Optimizer, RowsAgreeWithTheInterpreterOnAnyNumberOfThreads) {
  const std::int64_t rows = 5000, columns = 40, count = 9000;
  std::vector<std::int64_t> picked;
  for (std::int64_t i = 0; i < count; ++i) picked.push_back(i * i % rows);  // many twice, many not at all
  const Tensor indices = Tensor::from<std::int64_t>({count}, picked);
  const Tensor g = random_tensor({count, columns}, 5);
  for (const Optimizer& optimizer : all_optimizers()) {
    const Graph graph = sparse_step_of(optimizer, random_tensor({rows, columns}, 3));
    Interpreter interpreter(graph);
    std::vector<Program> programs;
    for (const std::size_t threads : {1U, 2U, 8U}) {
      programs.push_back(compile(graph, Runtime({.threads = threads}), with_lanes()));
    }
    for (int step = 0; step < 2; ++step) {
      interpreter.run({indices, g});
      for (const Program& program : programs) program.run(std::vector{indices, g});
    }
    for (const Program& program : programs) {
      expect_same_values(variables_of(program.variables()), interpreter.variables());
      EXPECT_LT(program.plan(std::vector{indices, g}).planned_bytes, 400'000) << "no copy of the variable";
    }
  }
}

TEST(Optimizer, NewValuesAreSeenByWhatReadsThemAfterwards) {
  for (const Optimizer& optimizer : all_optimizers()) {
    GraphBuilder b;
    const VariableRef w = b.variable("w", vec64({1, 2, 3}));
    const Value g = b.placeholder("g", DType::kF64, {3});
    const Value doubled = g * 2;  // of the step's own memory, which the update may want to write over
    const Value before = b.read(w);
    optimizer.apply_gradients({{doubled, w}});
    b.result(before);
    b.result(b.read(w));
    const Graph graph = b.finish();
    Interpreter interpreter(graph);
    const Program program = compile(graph, Runtime({.threads = 2}), with_lanes());
    for (int step = 0; step < 3; ++step) {
      const std::vector<Tensor> expected = interpreter.run({vec64({1, -1, 0.5})});
      const std::vector<Tensor> actual = program.run(std::vector{vec64({1, -1, 0.5})});
      testing::expect_same_tensors(actual, expected);
      EXPECT_TRUE(actual[1].bit_equal(program.variables().value("w")));
      EXPECT_FALSE(actual[0].bit_equal(actual[1]));
    }
    expect_same_values(variables_of(program.variables()), interpreter.variables());
  }
}

TEST(Optimizer, RowsOfTheVariablesOwnSpecAreNotWrittenOver) {
  // As many rows as the variable has, in the step's own memory, and a reader that wants the new value: a
  // shadow.
  for (const Optimizer& optimizer : all_optimizers()) {
    GraphBuilder b;
    const VariableRef w = b.variable("w", Tensor::zeros(DType::kF64, {4, 3}));
    const Value indices = b.placeholder("indices", DType::kI64, {4});
    const Value g = b.placeholder("g", DType::kF64, {4, 3});
    const Value rows = g * 2;
    const Value shape = shape_of(g);
    optimizer.apply_gradients({{IndexedSlices{indices, rows, shape}, w}});
    b.result(b.read(w));
    const Graph graph = b.finish();
    Interpreter interpreter(graph);
    const Program program = compile(graph, Runtime({.threads = 1}));
    const std::vector<Tensor> feeds = {Tensor::from<std::int64_t>({4}, {3, 2, 1, 1}),
                                       random_tensor({4, 3}, 8)};
    for (int step = 0; step < 2; ++step) {
      testing::expect_same_tensors(program.run(feeds), interpreter.run(feeds));
    }
    expect_same_values(variables_of(program.variables()), interpreter.variables());
  }
}

// --- slices

TEST(Optimizer, SlicesGiveWhatTheDenseGradientGivesOnTheRowsTouched) {
  for (const Optimizer& optimizer : all_optimizers()) {
    const Tensor initial = random_tensor({6, 4}, 3);
    const Tensor rows = random_tensor({4, 4}, 4);
    const Tensor indices = Tensor::from<std::int64_t>({4}, {5, 0, 5, 2});
    Interpreter sparse(sparse_step_of(optimizer, initial));
    sparse.run({indices, rows});
    sparse.run({indices, rows});
    Tensor dense_gradient = Tensor::zeros(DType::kF64, {6, 4});
    for (std::size_t i = 0; i < 16; ++i) {
      const auto row = static_cast<std::size_t>(indices.data<std::int64_t>()[i / 4]);
      dense_gradient.data<double>()[row * 4 + i % 4] += rows.data<double>()[i];
    }
    Interpreter dense(step_of(optimizer, initial));
    dense.run({dense_gradient});
    dense.run({dense_gradient});
    for (const std::int64_t row : {0, 2, 5}) {
      EXPECT_TRUE(sparse.variables()
                      .at("w")
                      .slice(row, row + 1)
                      .bit_equal(dense.variables().at("w").slice(row, row + 1)))
          << optimizer.name() << ", row " << row;
    }
    for (const std::int64_t row : {1, 3, 4}) {
      EXPECT_TRUE(sparse.variables().at("w").slice(row, row + 1).bit_equal(initial.slice(row, row + 1)));
    }
  }
}

TEST(Optimizer, AGatherIsUpdatedByRows) {
  GraphBuilder b;
  const VariableRef table = b.variable("table", Tensor::full(DType::kF32, {5, 2}, 1));
  const Value ids = b.placeholder("ids", DType::kI64, {kUnknown});
  const Value picked = gather(b.read(table), ids);
  const Value seed = b.placeholder("seed", DType::kF32, {kUnknown, 2});
  const Gradient g = gradients(picked, {table}, {.seed = seed})[0];
  ASSERT_TRUE(g.is_sparse());
  Sgd(0.5).apply_gradients({{g, table}});
  const Graph graph = b.finish();
  EXPECT_THAT(print(graph), HasSubstr("= sgd_sparse["));
  const Program program = compile(graph, Runtime({.threads = 1}));
  const Tensor rows = Tensor::from<float>({3, 2}, {1, 2, 3, 4, 5, 6});
  program.run({{"ids", Tensor::from<std::int64_t>({3}, {4, 0, 4})}, {"seed", rows}});
  EXPECT_THAT(testing::floats(program.variables().value("table")),
              ElementsAre(-0.5F, -1.0F, 1, 1, 1, 1, 1, 1, -2.0F, -3.0F));
}

// --- a step commits or did not happen

TEST(Optimizer, AFailingNodeLeavesVariableSlotsAndCounterAlone) {
  for (const Optimizer& optimizer : all_optimizers()) {
    bool fails = false;
    GraphBuilder b;
    const VariableRef w = b.variable("w", vec64({1, 2}));
    const Value g = b.placeholder("g", DType::kF64, {2});
    optimizer.apply_gradients({{g, w}});
    b.call("check", [&] {
      if (fails) throw std::domain_error("no");
    });
    const Graph graph = b.finish();
    for (const std::size_t threads : {1U, 2U}) {
      fails = false;
      const Program program = compile(graph, Runtime({.threads = threads}), with_lanes());
      Interpreter interpreter(graph);
      const std::vector<Tensor> feeds = {vec64({0.5, -2})};
      program.run(feeds);
      interpreter.run(feeds);
      const Values before = variables_of(program.variables());
      fails = true;
      EXPECT_THROW(program.run(feeds), RunError);
      EXPECT_THROW(interpreter.run(feeds), Error);
      expect_same_values(variables_of(program.variables()), before);
      expect_same_values(interpreter.variables(), before);
      EXPECT_EQ(before.at(optimizer.name() + "/iterations").item(), 1);
    }
  }
}

TEST(Optimizer, AnIndexOutOfRangeFailsTheStep) {
  for (const Optimizer& optimizer : all_optimizers()) {
    const Program program =
        compile(sparse_step_of(optimizer, random_tensor({3, 2}, 3)), Runtime({.threads = 1}));
    const Values before = variables_of(program.variables());
    for (const std::int64_t bad : {-1, 3}) {
      const std::vector<Tensor> feeds = {Tensor::from<std::int64_t>({2}, {0, bad}), random_tensor({2, 2}, 4)};
      const Caught error = caught([&] { program.run(feeds); });
      EXPECT_THAT(error.what, HasSubstr(str("index ", bad, " at position 1 is outside of [0, 3)")));
      EXPECT_EQ(error.place.op, "check_indices");
      expect_same_values(variables_of(program.variables()), before);
    }
    program.run(std::vector{Tensor::from<std::int64_t>({2}, {0, 2}), random_tensor({2, 2}, 4)});
  }
}

// --- state

TEST(Optimizer, SlotsAndCounterLieWhereTheVariablesAre) {
  GraphBuilder b;
  const Value g = b.placeholder("g", DType::kF32, {3});
  VariableRef w;
  {
    const auto there = b.device("gpu:1");
    w = b.variable("w", Tensor::zeros({3}));
  }
  {
    const auto other = b.device("gpu:0");
    Adam(0.1).apply_gradients({{g, w}});
  }
  const Graph graph = b.finish();
  for (const char* name : {"w/adam/m", "w/adam/v"})
    EXPECT_EQ(graph.find_variable(name)->device, "gpu:1") << "a slot follows its variable: " << name;
  EXPECT_EQ(graph.find_variable("adam/iterations")->device, "gpu:0") << "the device that was named last";
}

TEST(Optimizer, SlotsAreVariablesNamedAfterVariableAndOptimizer) {
  GraphBuilder b;
  const VariableRef w = b.variable("net/w", Tensor::full(DType::kBF16, {2, 3}, 1));
  const Value g = b.placeholder("g", DType::kBF16, {2, 3});
  Adam(0.1).apply_gradients({{g, w}});
  Adagrad(0.1, {.initial_accumulator = 0.25, .name = "ada"}).apply_gradients({{g, w}});
  EXPECT_EQ(trainable_variables(b), std::vector{w});
  const Graph graph = b.finish();
  for (const char* name : {"net/w/adam/m", "net/w/adam/v", "net/w/ada/accumulator"}) {
    const VariableDecl* slot = graph.find_variable(name);
    ASSERT_NE(slot, nullptr) << name;
    EXPECT_EQ(slot->spec, (TensorSpec{DType::kF32, {2, 3}})) << "16-bit variables have f32 slots";
    EXPECT_FALSE(slot->trainable);
  }
  EXPECT_EQ(graph.find_variable("net/w/ada/accumulator")->initial.data<float>()[5], 0.25F);
  EXPECT_EQ(graph.find_variable("adam/iterations")->spec, (TensorSpec{DType::kI64, {}}));
  EXPECT_EQ(graph.variables().size(), 6U);
}

TEST(Optimizer, MayBeUsedTwiceInOneGraph) {
  // Twice for one variable, and once for another: slots and counter are shared, in program order.
  GraphBuilder b;
  const VariableRef w = b.variable("w", vec64({1}));
  const VariableRef u = b.variable("u", vec64({1}));
  const Value g = b.placeholder("g", DType::kF64, {1});
  const Momentum momentum(0.5, 0.5);
  const Optimizer copy = momentum;
  momentum.apply_gradients({{g, w}});
  copy.apply_gradients({{g, w}});
  momentum.apply_gradients({{g, u}});
  const Graph graph = b.finish();
  EXPECT_EQ(graph.variables().size(), 5U);
  const Program program = compile(graph, Runtime({.threads = 2}), with_lanes());
  program.run(std::vector{vec64({2})});
  VariableStore& store = program.variables();
  EXPECT_EQ(store.value("w").item(), 1 - 0.5 * 2 - 0.5 * 3);  // m = 2, then 0.5 * 2 + 2
  EXPECT_EQ(store.value("w/momentum/velocity").item(), 3);
  EXPECT_EQ(store.value("u").item(), 0);
  EXPECT_EQ(store.value("momentum/iterations").item(), 3);
}

// The loss was read before the first update: both gradients are of the old value, and both updates count.
TEST(Optimizer, TwoMayUpdateOneVariable) {
  GraphBuilder b;
  const VariableRef w = b.variable("w", Tensor::scalar(2.0));
  const Value loss = square(b.read(w));
  Sgd(0.125, "one").minimize(loss, {w});
  Sgd(0.25, "two").minimize(loss, {w});
  const Graph graph = b.finish();
  Interpreter interpreter(graph);
  interpreter.run();
  EXPECT_EQ(interpreter.variables().at("w").item(), 2 - 0.5 - 1);
  const Program program = compile(graph, Runtime({.threads = 2}));
  program.run();
  EXPECT_EQ(program.variables().value("w").item(), 2 - 0.5 - 1);
}

TEST(Optimizer, TheSameOptimizerServesSeveralGraphs) {
  const Adam adam(0.1);
  const auto make = [=] { return step_of(adam, vec64({1, 2})); };
  EXPECT_EQ(print(make()), print(make()));
}

TEST(Optimizer, WorksInsideARegion) {
  GraphBuilder b;
  const VariableRef w = b.variable("w", vec64({1}));
  const Value g = b.placeholder("g", DType::kF64, {1});
  const Value wanted = b.placeholder("wanted", DType::kBool, {});
  const Adam adam(0.1);
  cond(
      wanted,
      [&]() -> std::vector<Value> {
        adam.apply_gradients({{g * 1.0, w}});
        return {};
      },
      []() -> std::vector<Value> { return {}; });
  const Graph graph = b.finish();
  const Program program = compile(graph, Runtime({.threads = 1}));
  program.run({{"g", vec64({3})}, {"wanted", Tensor::scalar(false)}});
  EXPECT_EQ(program.variables().value("w").item(), 1);
  EXPECT_EQ(program.variables().value("adam/iterations").item(), 0);
  program.run({{"g", vec64({3})}, {"wanted", Tensor::scalar(true)}});
  EXPECT_NEAR(program.variables().value("w").item(), 0.9, 1e-8);
  EXPECT_EQ(program.variables().value("adam/iterations").item(), 1);
}

TEST(Optimizer, NodesOfALearningRateOfOnesOwnCarryItsLines) {
  GraphBuilder b;
  const VariableRef w = b.variable("w", Tensor::scalar(1.F));
  std::uint32_t line = 0;
  const Sgd sgd([&](GraphBuilder& builder) {
    line = SourceSite::current().line + 1;
    return builder.constant(Tensor::scalar(0.5)) * 2.0;
  });
  sgd.minimize(b.read(w) * b.read(w), {w});
  const Graph graph = b.finish();
  const auto is_there = [&](const Node& node) { return node.site().line == line; };
  EXPECT_TRUE(std::ranges::any_of(graph.nodes().begin(), graph.nodes().end(), is_there));
}

TEST(Optimizer, TheLearningRateMayBeAVariable) {
  GraphBuilder b;
  const VariableRef rate = b.variable("rate", Tensor::scalar(0.5F));
  const VariableRef w = b.variable("w", vec64({1}));
  const Value g = b.placeholder("g", DType::kF64, {1});
  Sgd([=](GraphBuilder& builder) { return builder.read(rate); }).apply_gradients({{g, w}});
  const Program program = compile(b.finish(), Runtime({.threads = 1}));
  program.run(std::vector{vec64({1})});
  program.variables().set("rate", Tensor::scalar(0.25F));
  program.run(std::vector{vec64({1})});
  EXPECT_EQ(program.variables().value("w").item(), 0.25);
}

// --- text

TEST(Optimizer, StepsPrintAndParse) {
  for (const Optimizer& optimizer : all_optimizers()) {
    for (const bool sparse : {false, true}) {
      const Graph graph =
          sparse ? sparse_step_of(optimizer, vec64({1, 2})) : step_of(optimizer, vec64({1, 2}));
      const std::string text = print(graph);
      EXPECT_EQ(print(parse(text)), text);
    }
  }
}

TEST(Optimizer, UpdateNodesAreNamedAfterTheirVariable) {
  const std::string text = print(step_of(Momentum(0.5, 0.9), vec64({1})));
  EXPECT_THAT(text, HasSubstr("%w/momentum = momentum["));
  EXPECT_THAT(text, HasSubstr("velocity=@w/momentum/velocity](%g, %learning_rate) : f64[1], f64[1]"));
  EXPECT_THAT(text, HasSubstr("[momentum=0.9, nesterov=false, variable=@w"));
}

// --- an optimizer of one's own

// w -= lr * sign(g): an op of its own, with one slot that counts how often a sign changed.
void register_sign_descent() {
  if (OpRegistry::global().find("test_sign_descent") != nullptr) return;
  OpDef def;
  def.name = "test_sign_descent";
  def.summary = "w -= lr * sign(g)";
  def.inputs = Arity::exactly(2);
  def.attributes = {{"variable", AttributeType::kVariable}, {"sign", AttributeType::kVariable}};
  def.effects = Effect::kReadsVariable | Effect::kWritesVariable;
  def.traits.infallible = true;
  def.traits.in_place = true;
  def.traits.updates_variable = OpTraits::Update{"variable", 0, true, {"sign"}, true, {}};
  def.infer = [](InferContext& c) {
    c.add_output(c.variable(c.get<VariableRef>("variable").name));
    c.add_output(c.variable(c.get<VariableRef>("sign").name));
  };
  def.kernels["cpu"] = [](const NodeView&, std::span<const TensorSpec>) -> KernelFn {
    return [](KernelContext& c) {
      const auto w = c.input<double>(0);
      const auto g = c.input<double>(2);
      const double rate = c.input<double>(3)[0];
      for (std::size_t i = 0; i < w.size(); ++i) {
        const double sign = g[i] > 0 ? 1 : g[i] < 0 ? -1 : 0;
        c.output<double>(0)[i] = w[i] - rate * sign;
        c.output<double>(1)[i] = sign;
      }
    };
  };
  OpRegistry::global().add(std::move(def));
}

struct SignRule : OptimizerRule {
  NodeId update(const VariableUpdate& u) const override {
    const Slot slots[] = {{"sign"}};
    return u.make("test_sign_descent", slots);
  }
};

TEST(Optimizer, MayBeOnesOwnOp) {
  register_sign_descent();
  const Optimizer sign("sign", 0.25, std::make_shared<SignRule>());
  const Graph graph = step_of(sign, vec64({1, 2, 3}));
  Interpreter interpreter(graph);
  const Program program = compile(graph, Runtime({.threads = 1}));
  interpreter.run({vec64({5, 0, -7})});
  program.run(std::vector{vec64({5, 0, -7})});
  expect_same_values(variables_of(program.variables()), interpreter.variables());
  EXPECT_THAT(program.variables().value("w").data<double>(), ElementsAre(0.75, 2, 3.25));
  EXPECT_THAT(program.variables().value("w/sign/sign").data<double>(), ElementsAre(1, 0, -1));
}

TEST(Optimizer, OnesOwnOpWithoutAFormByRowsGetsADenseGradient) {
  register_sign_descent();
  const Optimizer sign("sign", 0.25, std::make_shared<SignRule>());
  Interpreter interpreter(sparse_step_of(sign, vec64({1, 2, 3})));
  interpreter.run({Tensor::from<std::int64_t>({2}, {2, 0}), vec64({5, -5})});
  EXPECT_THAT(interpreter.variables().at("w").data<double>(), ElementsAre(1.25, 2, 2.75));
}

// Ordinary nodes: w += g * -lr.
struct PlainRule : OptimizerRule {
  NodeId update(const VariableUpdate& u) const override {
    const Value rate = u.learning_rate() * -1.0;
    const Value by = to_dense(u.gradient()) * rate;
    return u.builder().assign_add(u.variable(), by).id().node;
  }
};

TEST(Optimizer, MayBeMadeOfOrdinaryNodes) {
  const Optimizer plain("plain", 0.5, std::make_shared<PlainRule>());
  expect_near(trace(plain, 1, {2, -4, 1}), {0, 2, 1.5});
}

// --- errors

class OptimizerErrors : public ::testing::Test {
 protected:
  GraphBuilder b;
  VariableRef w = b.variable("w", vec64({1, 2}));
  VariableRef other = b.variable("other", vec64({1, 2}));
  Sgd sgd{0.1};
};

TEST_F(OptimizerErrors, AVariableThatTheLossDoesNotDependOnIsNamed) {
  const Value x = b.placeholder("x", DType::kF64, {});
  const Caught error = caught([&] { sgd.minimize(x * x, {w}); });
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what, HasSubstr("does not depend on variable 'w'"));
  EXPECT_THAT(error.place.file, HasSubstr("optimizer_test.cpp"));
}

TEST_F(OptimizerErrors, AVariableOfIntegersHasNoGradient) {
  const VariableRef count = b.variable("count", Tensor::from<std::int64_t>({2}, {1, 2}));
  const Value loss = sum(cast(b.read(count), DType::kF64));
  EXPECT_THAT(caught([&] { sgd.minimize(loss, {count}); }).what,
              HasSubstr("variable 'count' is i64[2]; only floating-point variables have a gradient"));
}

TEST_F(OptimizerErrors, AVariableThatTheStepHasWrittenIsNamedWithTheWrite) {
  const std::uint32_t line = SourceSite::current().line + 1;
  sgd.minimize(sum(square(b.read(w))), {w});
  const Value loss = sum(square(b.read(w)));
  const Caught error = caught([&] { Sgd(0.1, "second").minimize(loss, {w}); });
  EXPECT_THAT(error.what, HasSubstr("does not depend on variable 'w' as it was when the step began"));
  EXPECT_THAT(error.what, HasSubstr(str("optimizer_test.cpp:", line, ") has written")));
  EXPECT_THAT(error.what, HasSubstr("before the step first writes it"));
}

TEST(LearningRates, NodesOfAScheduleCarryItsLine) {
  std::uint32_t line = 0;
  const auto mine = [&](const Value& t) {
    line = SourceSite::current().line + 1;
    return exp(-cast(t, DType::kF64));
  };
  const auto has = [](const Schedule& schedule, std::string_view op, const std::uint32_t& expected) {
    GraphBuilder b;
    const VariableRef w = b.variable("w", Tensor::zeros({2}));
    Sgd(schedule).minimize(sum(square(b.read(w))), {w});
    const Graph& graph = b.graph();
    return std::ranges::any_of(graph.nodes(), [&](const Node& node) {
      return node.op().name == op && node.site().line == expected &&
             std::string_view(node.site().file).ends_with("optimizer_test.cpp");
    });
  };
  EXPECT_TRUE(has(mine, "exp", line));
  line = SourceSite::current().line + 1;
  const Schedule falling = schedules::cosine_decay({.initial = 1, .steps = 4});
  EXPECT_TRUE(has(falling, "cos", line));
}

TEST_F(OptimizerErrors, NoGradientIsNamed) {
  const Caught error = caught([&] { sgd.apply_gradients({{Gradient(), w}}); });
  EXPECT_THAT(error.what, HasSubstr("no gradient for variable 'w'"));
}

TEST_F(OptimizerErrors, AGradientOfAnotherSpecIsRefused) {
  const Value g = b.placeholder("g", DType::kF64, {3});
  EXPECT_THAT(caught([&] {
                sgd.apply_gradients({{g, w}});
              }).what,
              HasSubstr("variable 'w' holds f64[2], and its gradient has f64[3]"));
  const Value h = b.placeholder("h", DType::kF32, {2});
  EXPECT_THAT(caught([&] { sgd.apply_gradients({{h, w}}); }).what, HasSubstr("its gradient has f32[2]"));
  const Value indices = b.placeholder("i", DType::kI64, {3});
  const Value rows = b.placeholder("r", DType::kF64, {3, 7});
  const Value shape = shape_of(b.read(w));
  EXPECT_THAT(caught([&] {
                sgd.apply_gradients({{IndexedSlices{indices, rows, shape}, w}});
              }).what,
              HasSubstr("its gradient has rows of f64[3,7]"));
}

TEST_F(OptimizerErrors, WhatOnlyFeedsDecideIsCheckedWhenTheyCome) {
  const Value g = b.placeholder("g", DType::kF64, {kUnknown});
  sgd.apply_gradients({{g, w}});
  const Program program = compile(b.finish(), Runtime({.threads = 1}));
  program.run(std::vector{vec64({1, 1})});
  EXPECT_THAT(caught([&] {
                program.run(std::vector{vec64({1, 1, 1})});
              }).what,
              HasSubstr("got a gradient of f64[3]"));
}

TEST_F(OptimizerErrors, EmptyListsAndUnknownOrRepeatedVariablesAreRefused) {
  const Value g = b.placeholder("g", DType::kF64, {2});
  EXPECT_THAT(caught([&] { sgd.apply_gradients(GradientsAndVariables()); }).what, HasSubstr("empty list"));
  EXPECT_THAT(caught([&] { sgd.minimize(g, std::vector<VariableRef>()); }).what, HasSubstr("no variables"));
  EXPECT_THAT(caught([&] {
                sgd.apply_gradients({{g, {"nobody"}}});
              }).what,
              HasSubstr("no variable 'nobody'"));
  EXPECT_THAT(caught([&] {
                sgd.apply_gradients({{g, w}, {g, w}});
              }).what,
              HasSubstr("'w' is in the list twice"));
}

TEST_F(OptimizerErrors, NumbersOutOfRangeAreRefused) {
  const Value g = b.placeholder("g", DType::kF64, {2});
  EXPECT_THAT(caught([&] { Sgd(-0.1); }).what, HasSubstr("the learning rate is -0.1"));
  EXPECT_THAT(caught([&] { Sgd(std::nan("")); }).what, HasSubstr("must be finite"));
  EXPECT_THAT(caught([&] {
                Adam(0.1, {.beta1 = 1}).apply_gradients({{g, w}});
              }).what,
              HasSubstr("attribute 'beta1' is 1; it must be in [0, 1)"));
  EXPECT_THAT(caught([&] {
                Momentum(0.1, 1.5).apply_gradients({{g, w}});
              }).what,
              HasSubstr("it must be in [0, 1]"));
  EXPECT_THAT(caught([&] {
                Adagrad(0.1, {.epsilon = -1}).apply_gradients({{g, w}});
              }).what,
              HasSubstr("it must be finite, and 0 or more"));
  for (const double accumulator : {-1.0, std::nan("")}) {
    EXPECT_THAT(caught([&] { Adagrad(0.1, {.initial_accumulator = accumulator}); }).what,
                HasSubstr("the initial accumulator is"));
  }
  EXPECT_THAT(caught([&] {
                Sgd(Schedule()).apply_gradients({{g, w}});
              }).what,
              HasSubstr("the learning rate is an empty function"));
  EXPECT_THAT(caught([&] { Optimizer("", 0.1, std::make_shared<SignRule>()); }).what,
              HasSubstr("needs a name"));
  EXPECT_THAT(caught([&] { Optimizer("x", 0.1, nullptr); }).what, HasSubstr("has no rule"));
}

TEST_F(OptimizerErrors, TheLearningRateIsAFloatingScalar) {
  const Value g = b.placeholder("g", DType::kF64, {2});
  const Sgd bad([&](GraphBuilder&) { return g; });
  EXPECT_THAT(caught([&] {
                bad.apply_gradients({{g, w}});
              }).what,
              HasSubstr("the learning rate must be a scalar of f32 or f64, got f64[2]"));
}

TEST_F(OptimizerErrors, ASlotNameThatIsTakenByAnotherSpecIsRefused) {
  b.variable("w/momentum/velocity", vec64({1, 2, 3}));
  const Value g = b.placeholder("g", DType::kF64, {2});
  const Caught error = caught([&] { Momentum(0.1).apply_gradients({{g, w}}); });
  EXPECT_THAT(error.what, HasSubstr("'w/momentum/velocity' is declared as f64[3] ("));
  EXPECT_THAT(error.what, HasSubstr("optimizer_test.cpp")) << "the caller's line";
}

TEST_F(OptimizerErrors, UpdateOpsCheckTheirSlots) {
  const Value g = b.placeholder("g", DType::kF64, {2});
  const Value rate = b.constant(0.1);
  const auto make = [&](const VariableRef& slot) {
    b.op1("momentum", {g, rate}, {{"variable", w}, {"velocity", slot}, {"momentum", 0.9}});
  };
  EXPECT_THAT(caught([&] { make(w); }).what, HasSubstr("variable 'w' is named twice"));
  const VariableRef narrow = b.variable("narrow", vec64({1}));
  EXPECT_THAT(caught([&] { make(narrow); }).what, HasSubstr("it must hold f64[2]"));
  make(other);
}

}  // namespace
}  // namespace lockstep
