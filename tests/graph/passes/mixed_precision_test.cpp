// Tests: graph/passes/mixed_precision.cpp, graph/passes/loss_scale.cpp, graph/passes/conditional_updates.cpp, graph/passes/summed_gradients.cpp
#include "lockstep/graph/passes/mixed_precision.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/regions.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/optimizer.h"
#include "support/pass_test.h"

namespace lockstep {
namespace {

class MixedPrecision : public testing::PassTest {};

Graph mixed(Graph graph, const std::string& options) {
  PassRegistry::global().parse_pipeline(str("mixed-precision(", options, ")")).run(graph);
  return graph;
}

std::size_t count(const Graph& graph, std::string_view op, DType dtype) {
  return static_cast<std::size_t>(std::ranges::count_if(graph.nodes(), [&](const Node& node) {
    return node.op().name == op && node.outputs()[0].dtype == dtype;
  }));
}

double item_of(const Interpreter& interpreter, std::string_view prefix) {
  for (const auto& [name, value] : interpreter.variables()) {
    if (name.starts_with(prefix) && !name.ends_with("good_steps")) return value.item();
  }
  ADD_FAILURE() << "no variable " << prefix;
  return 0;
}

TEST_F(MixedPrecision, CastsAroundProductsAndWhatLiesBetween) {
  expect_rewrite("mixed-precision", R"(
      var @w0 : f32[3,4]
      var @w1 : f32[4,2]
      %x = placeholder() : f32[5,3]
      %bias = placeholder() : f32[4]
      %w0 = read[variable=@w0]() : f32[3,4]
      %w1 = read[variable=@w1]() : f32[4,2]
      %a = matmul(%x, %w0) : f32[5,4]
      %b = add(%a, %bias) : f32[5,4]
      %c = relu(%b) : f32[5,4]
      %d = matmul(%c, %w1) : f32[5,2]
      %e = exp(%d) : f32[5,2]
      return %e, %x
    )",
                 R"(
      var @w0 : f32[3,4]
      var @w1 : f32[4,2]
      %x = placeholder() : f32[5,3]
      %bias = placeholder() : f32[4]
      %w0 = read[variable=@w0]() : f32[3,4]
      %w1 = read[variable=@w1]() : f32[4,2]
      %x/bf16 = cast[dtype=bf16](%x) : bf16[5,3]
      %w0/bf16 = cast[dtype=bf16](%w0) : bf16[3,4]
      %a = matmul(%x/bf16, %w0/bf16) : bf16[5,4]
      %bias/bf16 = cast[dtype=bf16](%bias) : bf16[4]
      %b = add(%a, %bias/bf16) : bf16[5,4]
      %c = relu(%b) : bf16[5,4]
      %w1/bf16 = cast[dtype=bf16](%w1) : bf16[4,2]
      %d = matmul(%c, %w1/bf16) : bf16[5,2]
      %d/f32 = cast[dtype=f32](%d) : f32[5,2]
      %e = exp(%d/f32) : f32[5,2]
      return %e, %x
    )",
                 {.same_meaning = false});
}

// A cast is put where fewer elements pass, and what is read in f32 besides is not cast twice.
TEST_F(MixedPrecision, MovesAreDoneInSixteenBitsWhereThatIsCheaper) {
  expect_rewrite("mixed-precision", R"(
      %x = placeholder() : f32[3,5]
      %y = placeholder() : f32[3,4]
      %table = placeholder() : f32[100,3]
      %i = placeholder() : i64[5]
      %t = transpose[perm=[1,0]](%x) : f32[5,3]
      %s = transpose[perm=[1,0]](%y) : f32[4,3]
      %rows = gather[axis=0](%table, %i) : f32[5,3]
      %a = matmul[transpose_b=true](%t, %s) : f32[5,4]
      %b = matmul[transpose_b=true](%rows, %s) : f32[5,4]
      %back = transpose[perm=[1,0]](%a) : f32[4,5]
      %wide = concat[axis=0](%b, %b) : f32[10,4]
      return %back, %wide, %s
    )",
                 R"(
      %x = placeholder() : f32[3,5]
      %y = placeholder() : f32[3,4]
      %table = placeholder() : f32[100,3]
      %i = placeholder() : i64[5]
      %x/bf16 = cast[dtype=bf16](%x) : bf16[3,5]
      %t = transpose[perm=[1,0]](%x/bf16) : bf16[5,3]
      %s = transpose[perm=[1,0]](%y) : f32[4,3]
      %rows = gather[axis=0](%table, %i) : f32[5,3]
      %s/bf16 = cast[dtype=bf16](%s) : bf16[4,3]
      %a = matmul[transpose_b=true](%t, %s/bf16) : bf16[5,4]
      %rows/bf16 = cast[dtype=bf16](%rows) : bf16[5,3]
      %b = matmul[transpose_b=true](%rows/bf16, %s/bf16) : bf16[5,4]
      %back = transpose[perm=[1,0]](%a) : bf16[4,5]
      %wide = concat[axis=0](%b, %b) : bf16[10,4]
      %back/f32 = cast[dtype=f32](%back) : f32[4,5]
      %wide/f32 = cast[dtype=f32](%wide) : f32[10,4]
      return %back/f32, %wide/f32, %s
    )",
                 {.same_meaning = false});
}

TEST_F(MixedPrecision, LeavesOtherDtypesAndGraphsWithoutProductsAlone) {
  expect_unchanged("mixed-precision", R"(
      %x = placeholder() : f64[2,2]
      %h = placeholder() : bf16[2,2]
      %y = placeholder() : f32[2,2]
      %a = matmul(%x, %x) : f64[2,2]
      %b = matmul(%h, %h) : bf16[2,2]
      %c = relu(%y) : f32[2,2]
      return %a, %b, %c
    )");
}

TEST_F(MixedPrecision, OptionsSayWhatChanges) {
  constexpr std::string_view kText = R"(
      %x = placeholder() : f32[2,2]
      %head/a = matmul(%x, %x) : f32[2,2]
      %b = matmul(%x, %x) : f32[2,2]
      %c = exp(%b) : f32[2,2]
      %d = matmul(%c, %c) : f32[2,2]
      return %head/a, %d
    )";
  const Graph plain = mixed(parse(kText), "dtype=f16,loss_scale=1");
  EXPECT_EQ(count(plain, "matmul", DType::kF16), 3U);
  EXPECT_EQ(count(plain, "exp", DType::kF32), 1U);
  const Graph kept = mixed(parse(kText), "keep=[head]");
  EXPECT_EQ(count(kept, "matmul", DType::kF32), 1U);
  EXPECT_EQ(count(mixed(parse(kText), "keep=[hea]"), "matmul", DType::kF32), 0U);
  EXPECT_EQ(count(mixed(parse(kText), "keep=[head/a]"), "matmul", DType::kF32), 1U);
  EXPECT_EQ(count(mixed(parse(kText), "followers=[exp]"), "exp", DType::kBF16), 1U);
  EXPECT_EQ(count(mixed(parse(kText), "full=[matmul]"), "matmul", DType::kF32), 3U);
  EXPECT_EQ(count(mixed(parse(kText), "full=[matmul],products=[exp]"), "exp", DType::kBF16), 1U);
}

TEST_F(MixedPrecision, WhatIsKeptStaysWithItsGradient) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {4, 4});
  const VariableRef w = b.variable("w", Tensor::full(DType::kF32, {4, 4}, 0.5));
  const Value h = matmul(x, b.read(w));
  const auto scope = b.scope("train");
  Value y;
  {
    const auto head = b.scope("head");
    y = matmul(h, b.read(w));
  }
  Sgd(0.1).minimize(mean(exp(y)), {w});
  const Graph graph = b.finish();
  EXPECT_EQ(count(mixed(graph, ""), "matmul", DType::kF32), 0U);
  EXPECT_EQ(count(mixed(graph, "keep=[train/head]"), "matmul", DType::kF32), 3U)
      << "the product, and what flows into both of its factors";
  EXPECT_EQ(count(mixed(graph, "keep=[head]"), "matmul", DType::kF32), 0U);
}

// Some ops give f32 whatever they read; what is read elsewhere then must not be cast.
TEST_F(MixedPrecision, OutputsThatStayWideAreNotWidened) {
  expect_rewrite("mixed-precision(followers=[exp])", R"(
      %x = placeholder() : f32[2,2]
      %a = matmul(%x, %x) : f32[2,2]
      %b = cast[dtype=f32](%a) : f32[2,2]
      %c = exp(%b) : f32[2,2]
      %d = matmul(%c, %c) : f32[2,2]
      return %b, %d
    )",
                 R"(
      %x = placeholder() : f32[2,2]
      %x/bf16 = cast[dtype=bf16](%x) : bf16[2,2]
      %a = matmul(%x/bf16, %x/bf16) : bf16[2,2]
      %a/f32 = cast[dtype=f32](%a) : f32[2,2]
      %b = cast[dtype=f32](%a/f32) : f32[2,2]
      %c = exp(%b) : f32[2,2]
      %c/bf16 = cast[dtype=bf16](%c) : bf16[2,2]
      %d = matmul(%c/bf16, %c/bf16) : bf16[2,2]
      %d/f32 = cast[dtype=f32](%d) : f32[2,2]
      return %b, %d/f32
    )",
                 {.same_meaning = false});
  // With the cast among them: it reads 16 bits and gives f32 all the same.
  const Graph graph = mixed(parse(R"(
      %x = placeholder() : f32[2,2]
      %a = matmul(%x, %x) : f32[2,2]
      %b = cast[dtype=f32](%a) : f32[2,2]
      %c = exp(%b) : f32[2,2]
      %d = matmul(%c, %c) : f32[2,2]
      return %b, %d
    )"),
                            "followers=[exp,cast]");
  EXPECT_NO_THROW(verify(graph));
  EXPECT_EQ(graph.spec(graph.results()[0]).dtype, DType::kF32);
  EXPECT_EQ(count(graph, "exp", DType::kBF16), 1U);
}

TEST_F(MixedPrecision, ChangesConvolutionsPoolingAndUnknownBatches) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 8, 8, 2});
  const VariableRef filter = b.variable("filter", testing::random_tensor({DType::kF32, {3, 3, 2, 4}}, 1)),
                    w = b.variable("w", testing::random_tensor({DType::kF32, {64, 6}}, 2));
  const Value image = max_pool(relu(conv2d(x, b.read(filter), {.padding = Padding::same()})), {2, 2});
  const Value flat = reshape(image, {-1, 64});
  const std::vector<Value> parts = split(matmul(flat, b.read(w)), {2, 2, 2}, 1);
  const Value score = softmax(matmul(parts[0], transpose(parts[1])) * 0.5);
  const Value loss = mean(square(matmul(score, parts[2])));
  Sgd(0.01).minimize(loss, {filter, w});
  b.result(loss);
  const Graph plain = b.finish();
  const Graph graph = mixed(plain, "");
  for (const char* op : {"conv2d", "conv2d_backward_filter", "matmul", "softmax", "split"})
    EXPECT_EQ(count(graph, op, DType::kF32), 0U) << op;
  const Tensor feed = testing::random_tensor({DType::kF32, {5, 8, 8, 2}}, 3);
  Interpreter expected(plain), actual(graph);
  for (int i = 0; i < 3; ++i) {
    const double wanted = expected.run({feed})[0].item();
    EXPECT_NEAR(actual.run({feed})[0].item(), wanted, 0.05 * std::abs(wanted)) << i;
  }
}

TEST_F(MixedPrecision, RefusesWhatItCannotDo) {
  for (const char* options :
       {"dtype=f32", "dtype=half", "loss_scale=3", "loss_scale=0.5", "loss_scale=33554432", "loss_scale=nan",
        "growth_steps=-1", "keep=[],followers=[nothing]"}) {
    EXPECT_THROW(PassRegistry::global().make(str("mixed-precision(", options, ")")), BadOptionValue)
        << options;
  }
  EXPECT_EQ(make_mixed_precision({.dtype = "f16"})->to_string(),
            "mixed-precision(dtype=f16,loss_scale=0,growth_steps=2000)");
}

// --- training

// Two products with biases, an activation, a norm and a residual.
Graph step_of(const Optimizer& optimizer) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {16, 8}), y = b.placeholder("y", DType::kF32, {16, 4});
  const VariableRef w0 = b.variable("w0", testing::random_tensor({DType::kF32, {8, 8}}, 1)),
                    bias = b.variable("bias", Tensor::zeros(DType::kF32, {8})),
                    w1 = b.variable("w1", testing::random_tensor({DType::kF32, {8, 4}}, 2));
  const Value h = gelu(matmul(x, b.read(w0)) + b.read(bias));
  const Value logits = matmul(h, b.read(w1));
  const Value loss = mean(square(logits - y));
  optimizer.minimize(loss, {w0, bias, w1});
  b.result(loss);
  return b.finish();
}

std::vector<double> losses(Graph graph, int steps) {
  Interpreter interpreter(std::move(graph));
  std::vector<double> made;
  const Tensor x = testing::random_tensor({DType::kF32, {16, 8}}, 5),
               y = testing::random_tensor({DType::kF32, {16, 4}}, 6);
  for (int i = 0; i < steps; ++i)
    made.push_back(interpreter.run(Interpreter::Feeds{{"x", x}, {"y", y}})[0].item());
  return made;
}

TEST_F(MixedPrecision, TrainsAsF32DoesWithVariablesOfF32) {
  for (const Optimizer& optimizer : std::vector<Optimizer>{Sgd(0.01), Adam(0.01), AdamW(0.01)}) {
    SCOPED_TRACE(optimizer.name());
    const std::vector<double> expected = losses(step_of(optimizer), 30);
    ASSERT_LT(expected.back(), 0.7 * expected.front());
    for (const char* options :
         {"", "dtype=f16,loss_scale=64", "dtype=f16,loss_scale=64,growth_steps=0", "loss_scale=1024"}) {
      SCOPED_TRACE(options);
      const Graph graph = mixed(step_of(optimizer), options);
      EXPECT_EQ(count(graph, "matmul", DType::kF32), 0U);
      for (const VariableDecl& variable : graph.variables())
        EXPECT_TRUE(variable.spec.dtype == DType::kF32 || variable.spec.dtype == DType::kI64)
            << variable.name;
      const std::vector<double> actual = losses(graph, 30);
      for (std::size_t i = 0; i < actual.size(); ++i)
        EXPECT_NEAR(actual[i], expected[i], 0.03 * expected[0]) << i;
      EXPECT_LT(actual.back(), 0.7 * actual.front());
    }
  }
}

// The gradient of a bias is a sum: of 16 bits where its terms are, so that no f32 copy of them is made.
TEST_F(MixedPrecision, SumsOfGradientsReadSixteenBits) {
  const Graph graph = mixed(step_of(Sgd(0.01)), "");
  EXPECT_EQ(count(graph, "sum_to", DType::kF32), 0U);
  EXPECT_GT(count(graph, "sum_to", DType::kBF16), 0U);
}

TEST_F(MixedPrecision, ASecondRunChangesNothing) {
  for (const char* options : {"", "dtype=f16", "dtype=f16,growth_steps=0"}) {
    const Graph once = mixed(step_of(Adam(0.01)), options);
    EXPECT_EQ(print(once), print(mixed(once, options)));
  }
}

// w -= g, with g = factor * x computed by a product in f16.
Graph product_step(double factor) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {1, 1});
  const VariableRef w = b.variable("w", Tensor::zeros(DType::kF32, {1, 1}));
  const Sgd sgd(1.0);
  sgd.minimize(sum(matmul(x, b.read(w))) * factor, {w});
  b.result(b.read(sgd.iterations(b)));
  return b.finish();
}

TEST_F(MixedPrecision, TheScaleKeepsGradientsThatF16Loses) {
  const double tiny = 0x1p-26;  // the smallest f16 above 0 is 2^-24
  const Tensor x = Tensor::full(DType::kF32, {1, 1}, 1);
  const auto trained = [&](const std::string& options) {
    Interpreter interpreter(mixed(product_step(tiny), options));
    interpreter.run({x});
    return interpreter.variables().at("w").item();
  };
  EXPECT_EQ(trained("dtype=f16,loss_scale=1"), 0);
  for (const char* options : {"dtype=f16", "dtype=f16,growth_steps=0", "dtype=f16,loss_scale=1024"})
    EXPECT_EQ(trained(options), -tiny) << options;
}

// What takes the scale out, and asks whether gradients are finite, has f32, also where a product reads the gradient.
TEST_F(MixedPrecision, TheScaleGoesOutInF32) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {1, 1});
  const VariableRef w = b.variable("w", Tensor::zeros(DType::kF32, {1, 1}));
  const std::vector<Gradient> grads = gradients(sum(matmul(x, b.read(w))) * 0x1p-26, {w});
  Sgd(1.0).apply_gradients({{grads[0], w}});
  b.result(matmul(Value(grads[0]), x));
  Interpreter interpreter(mixed(b.finish(), "dtype=f16"));
  interpreter.run({Tensor::full(DType::kF32, {1, 1}, 1)});
  EXPECT_EQ(interpreter.variables().at("w").item(), -0x1p-26);
}

TEST_F(MixedPrecision, AStepWithInfiniteGradientsChangesNothingButTheScale) {
  Interpreter interpreter(mixed(product_step(1.0), "dtype=f16,growth_steps=2"));
  const auto run = [&](double x) {
    return interpreter.run({Tensor::full(DType::kF32, {1, 1}, x)})[0].item();
  };
  const auto scale = [&] { return item_of(interpreter, "loss_scale_"); };
  const auto w = [&] { return interpreter.variables().at("w").item(); };
  EXPECT_EQ(run(0.5), 1);
  EXPECT_EQ(w(), -0.5);
  EXPECT_EQ(scale(), 32768);
  EXPECT_EQ(run(4.0), 1) << "4 * 32768 is infinite in f16: the counter stands still";
  EXPECT_EQ(w(), -0.5);
  EXPECT_EQ(scale(), 16384);
  EXPECT_EQ(run(1.0), 2);
  EXPECT_EQ(w(), -1.5);
  EXPECT_EQ(scale(), 16384) << "one good step since";
  EXPECT_EQ(run(1.0), 3);
  EXPECT_EQ(scale(), 32768) << "two";
  EXPECT_EQ(run(std::nan("")), 3);
  EXPECT_EQ(scale(), 16384);
  EXPECT_EQ(w(), -2.5);
}

TEST_F(MixedPrecision, TheScaleStaysInItsRange) {
  Interpreter small(mixed(product_step(1.0), "dtype=f16,loss_scale=2,growth_steps=1"));
  for (int i = 0; i < 3; ++i) small.run({Tensor::full(DType::kF32, {1, 1}, std::nan(""))});
  EXPECT_EQ(item_of(small, "loss_scale_"), 1);
  Interpreter large(mixed(product_step(0.0), "dtype=f16,loss_scale=8388608,growth_steps=1"));
  for (int i = 0; i < 3; ++i) large.run({Tensor::full(DType::kF32, {1, 1}, 1)});
  EXPECT_EQ(item_of(large, "loss_scale_"), 1 << 24);
}

// What reads a gradient, an update or anything else, gets it without the scale.
TEST_F(MixedPrecision, NobodySeesTheScale) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2, 2}), seed = b.placeholder("seed", DType::kF32, {2, 2});
  const VariableRef w = b.variable("w", testing::random_tensor({DType::kF32, {2, 2}}, 3));
  const Value y = matmul(x, b.read(w));
  const std::vector<Gradient> grads = gradients(sum(y), {x, y});
  const std::vector<Gradient> seeded = gradients(y, {x}, {.seed = seed});
  b.result(grads[0]);
  b.result(grads[1]);
  b.result(seeded[0]);
  b.result(sum(square(Value(grads[0]))));
  const Graph plain = b.finish();
  const Tensor at = Tensor::full(DType::kF32, {2, 2}, 0.5), flow = Tensor::full(DType::kF32, {2, 2}, 0.25);
  const std::vector<Tensor> expected = Interpreter(plain).run({at, flow});
  const std::vector<Tensor> actual = Interpreter(mixed(plain, "dtype=f16,loss_scale=64")).run({at, flow});
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(expected[i].spec(), actual[i].spec());
    for (std::size_t j = 0; j < expected[i].data<float>().size(); ++j)
      EXPECT_NEAR(expected[i].data<float>()[j], actual[i].data<float>()[j], 4e-3) << i;
  }
}

// Gradients by rows, of loops and branches, and inside of them.
TEST_F(MixedPrecision, ScalesRowsAndRegions) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2, 2});
  const Value rows = b.placeholder("rows", DType::kI64, {2});
  const VariableRef w = b.variable("w", testing::random_tensor({DType::kF32, {2, 2}}, 3)),
                    table = b.variable("table", testing::random_tensor({DType::kF32, {5, 2}}, 4)),
                    v = b.variable("v", testing::random_tensor({DType::kF32, {2, 2}}, 5));
  const Value used = b.read(w);
  const Value y = matmul(x + gather(b.read(table), rows), used);
  const Value branch = cond(
      sum(x) > 0.F, [&]() -> std::vector<Value> { return {matmul(y, used)}; },
      [&]() -> std::vector<Value> { return {y}; })[0];
  Sgd(0.5).minimize(mean(square(branch)), {w, table});
  cond(
      sum(x) > 0.F,
      [&]() -> std::vector<Value> {
        Sgd(0.25, "inner").minimize(mean(square(matmul(x, b.read(v)))), {v});
        return {};
      },
      []() -> std::vector<Value> { return {}; });
  const Graph plain = b.finish();
  Interpreter expected(plain), scaled(mixed(plain, "dtype=f16,loss_scale=64")),
      fixed(mixed(plain, "growth_steps=0,loss_scale=64"));
  const Interpreter::Feeds feeds = {{"x", Tensor::full(DType::kF32, {2, 2}, 0.5)},
                                    {"rows", Tensor::from<std::int64_t>({2}, {3, 3})}};
  expected.run(feeds);
  scaled.run(feeds);
  fixed.run(feeds);
  for (const char* name : {"w", "table", "v"}) {
    const auto wanted = expected.variables().at(name).data<float>();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_NEAR(scaled.variables().at(name).data<float>()[i], wanted[i], 0.01) << name;
      EXPECT_NEAR(fixed.variables().at(name).data<float>()[i], wanted[i], 0.05) << name;
    }
  }
  EXPECT_FALSE(expected.variables().at("v").bit_equal(testing::random_tensor({DType::kF32, {2, 2}}, 5)));
}

TEST_F(MixedPrecision, WhatIsScaledCanBeClipped) {
  Graph graph = mixed(step_of(Adam(0.01)), "dtype=f16,loss_scale=64");
  PassRegistry::global().parse_pipeline("clip-by-global-norm(norm=1)").run(graph);
  const std::vector<double> actual = losses(graph, 60);
  EXPECT_LT(actual.back(), 0.7 * actual.front());
}

// Each of both passes counts steps that the other does not make.
TEST_F(MixedPrecision, AScaleThatChangesAndAccumulationExcludeEachOther) {
  for (const char* passes : {"mixed-precision(dtype=f16),accumulate-gradients(steps=2)",
                             "accumulate-gradients(steps=2),mixed-precision(dtype=f16)"}) {
    Graph graph = step_of(Sgd(0.01));
    try {
      PassRegistry::global().parse_pipeline(passes).run(graph);
      ADD_FAILURE() << passes;
    } catch (const PassError& error) {
      EXPECT_NE(std::string(error.what()).find("growth_steps=0"), std::string::npos) << error.what();
    }
  }
  Graph graph = step_of(Sgd(0.01));
  PassRegistry::global().parse_pipeline("mixed-precision,accumulate-gradients(steps=2)").run(graph);
  const std::vector<double> actual = losses(graph, 60);
  EXPECT_LT(actual.back(), 0.7 * actual.front());
}

// A region whose updates it could not hold back.
TEST_F(MixedPrecision, RefusesUpdatesInARegionByGradientsFromOutside) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {1, 1});
  const VariableRef w = b.variable("w", Tensor::zeros(DType::kF32, {1, 1}));
  const Value g = gradients(sum(matmul(x, b.read(w))), {w})[0];
  cond(
      sum(x) > 0.F,
      [&]() -> std::vector<Value> {
        Sgd(1.0).apply_gradients({{Gradient(g), w}});
        return {};
      },
      []() -> std::vector<Value> { return {}; });
  const Graph graph = b.finish();
  try {
    mixed(graph, "dtype=f16");
    ADD_FAILURE() << "the update is not held back";
  } catch (const PassError& error) {
    EXPECT_NE(std::string(error.what()).find("by a gradient from outside of it"), std::string::npos)
        << error.what();
  }
  EXPECT_NO_THROW(mixed(graph, "dtype=f16,growth_steps=0"));
  EXPECT_NO_THROW(mixed(graph, ""));
}

// Two optimizers, the second of which sees what the first has changed.
TEST_F(MixedPrecision, AGradientBehindAnUpdateDecidesForItself) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {1, 1}),
              large = b.placeholder("large", DType::kF32, {1, 1});
  const VariableRef v = b.variable("v", Tensor::full(DType::kF32, {1, 1}, 1)),
                    w = b.variable("w", Tensor::full(DType::kF32, {1, 1}, 1));
  Sgd(0.5, "first").minimize(sum(matmul(x, b.read(v))), {v});
  Sgd(0.5, "second").minimize(sum(matmul(matmul(large, b.read(v)), b.read(w))), {w});
  Interpreter interpreter(mixed(b.finish(), "dtype=f16"));
  const auto run = [&](double first, double second) {
    interpreter.run(Interpreter::Feeds{{"x", Tensor::full(DType::kF32, {1, 1}, first)},
                                       {"large", Tensor::full(DType::kF32, {1, 1}, second)}});
    return std::pair(interpreter.variables().at("v").item(), interpreter.variables().at("w").item());
  };
  EXPECT_EQ(run(1, 4), std::pair(0.5, 1.0)) << "2 * 32768 is infinite in f16";
  EXPECT_EQ(item_of(interpreter, "loss_scale_"), 16384);
  EXPECT_EQ(run(8, 1), std::pair(0.5, 1.0)) << "what waits for the first does not count without it";
  EXPECT_EQ(run(1, 4), std::pair(0.0, 1.0));
  EXPECT_EQ(item_of(interpreter, "loss_scale_"), 8192);
}

TEST_F(MixedPrecision, ASecondRunScalesWhatTheFirstDidNot) {
  Graph graph = step_of(Sgd(0.01));
  PassRegistry::global()
      .parse_pipeline("mixed-precision(keep=[nothing]),mixed-precision(dtype=f16)")
      .run(graph);
  EXPECT_TRUE(std::ranges::any_of(graph.variables(), [](const VariableDecl& variable) {
    return variable.name.starts_with("loss_scale_");
  }));
}

TEST_F(MixedPrecision, RefusesToScaleWhatItCannotUnscale) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2, 2});
  const VariableRef w = b.variable("w", Tensor::full(DType::kF32, {2, 2}, 1));
  const Value slope = gradients(sum(square(matmul(x, b.read(w)))), {x})[0];
  Sgd(0.1).minimize(sum(square(slope)), {w});
  const Graph second = b.finish();
  EXPECT_NO_THROW(mixed(second, ""));
  EXPECT_NO_THROW(mixed(second, "dtype=f16,loss_scale=1"));
  try {
    mixed(second, "dtype=f16");
    ADD_FAILURE() << "second derivatives were scaled";
  } catch (const PassError& error) {
    EXPECT_NE(std::string(error.what()).find("derives gradients from other gradients"), std::string::npos)
        << error.what();
    EXPECT_FALSE(error.place().node.empty());
  }
  try {
    mixed(parse(print(product_step(1.0))), "dtype=f16");
    ADD_FAILURE() << "nobody knows where these gradients begin";
  } catch (const PassError& error) {
    EXPECT_NE(std::string(error.what()).find("does not say where its gradients begin"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace lockstep
