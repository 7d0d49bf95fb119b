// Tests: graph/ops/fused/fused_matmul.cpp, graph/ops/rules/products.cpp, graph/cuda/products/matmul.cpp,
//        graph/cuda/products/product.cpp
// Products with what follows them give the bits of the nodes that they stand for, on CPUs; on a card what is near them.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/graph/train/gradients.h"
#include "support/op_test.h"
#include "support/random_tensors.h"

namespace lockstep {
namespace {

using testing::caught;
using testing::expect_same_tensors;
using ::testing::HasSubstr;

constexpr DType kFloating[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

struct Case {
  Shape a, b;
  bool transpose_a = false, transpose_b = false;
};

struct Form {
  bool bias = false;
  std::string then = {}, sums = {};
};

const std::vector<Form> kForms = {{.bias = true},
                                  {.then = "relu"},
                                  {.bias = true, .then = "relu"},
                                  {.then = "relu_grad"},
                                  {.bias = true, .then = "relu_grad"},
                                  {.then = "add"},
                                  {.bias = true, .then = "add"},
                                  {.sums = "a"},
                                  {.sums = "b"}};

std::string name_of(const Form& form) {
  return str(form.bias ? "bias " : "", form.then, form.sums.empty() ? "" : "sums of ", form.sums);
}

Shape result_of(const Case& c) {
  GraphBuilder b;
  return matmul(b.placeholder("a", DType::kF32, c.a), b.placeholder("b", DType::kF32, c.b), c.transpose_a,
                c.transpose_b)
      .shape();
}

// The same inputs for both.
std::vector<Value> inputs_of(GraphBuilder& builder, DType dtype, const Case& c, const Form& form,
                             const Shape& bias) {
  std::vector<Value> inputs = {builder.placeholder("a", dtype, c.a), builder.placeholder("b", dtype, c.b)};
  if (form.bias) inputs.push_back(builder.placeholder("bias", dtype, bias));
  if (form.then == "relu_grad" || form.then == "add")
    inputs.push_back(builder.placeholder("z", dtype, result_of(c)));
  return inputs;
}

std::vector<Attribute> attributes_of(const Case& c, const Form& form) {
  std::vector<Attribute> attributes;
  if (c.transpose_a) attributes.push_back({"transpose_a", true});
  if (c.transpose_b) attributes.push_back({"transpose_b", true});
  if (form.bias) attributes.push_back({"bias", true});
  if (!form.then.empty()) attributes.push_back({"then", form.then});
  if (!form.sums.empty()) attributes.push_back({"sums", form.sums});
  return attributes;
}

std::vector<Tensor> apart(DType dtype, const Case& c, const Form& form, const Shape& bias,
                          const std::vector<Tensor>& feeds) {
  GraphBuilder builder;
  const std::vector<Value> inputs = inputs_of(builder, dtype, c, form, bias);
  Value y = matmul(inputs[0], inputs[1], c.transpose_a, c.transpose_b);
  if (form.bias) y = y + inputs[2];
  if (form.then == "relu") y = relu(y);
  if (form.then == "relu_grad") y = relu_grad(y, inputs.back());
  if (form.then == "add") y = y + inputs.back();
  builder.result(y);
  if (form.sums == "a") builder.result(sum(inputs[0], {c.transpose_a ? 0 : 1}));
  if (form.sums == "b") builder.result(sum(inputs[1], {c.transpose_b ? 1 : 0}));
  return Interpreter(builder.finish()).run(feeds);
}

void check(DType dtype, const Case& c, const Form& form, std::uint64_t seed) {
  const bool is_batch = c.a.rank() != 2 || c.b.rank() != 2;
  if (is_batch && !form.sums.empty()) return;
  SCOPED_TRACE(str(dtype, " ", c.a, " x ", c.b, " ", c.transpose_a, c.transpose_b, " ", name_of(form)));
  const Shape result = result_of(c);
  const Shape bias = seed % 3 == 0 ? Shape{1, result.dim(-1)} : Shape{result.dim(-1)};
  GraphBuilder builder;
  const std::vector<Value> inputs = inputs_of(builder, dtype, c, form, bias);
  Dice dice(seed);
  std::vector<Tensor> feeds;
  for (const Value& input : inputs) feeds.push_back(random_tensor(dtype, input.shape(), dice));
  for (const Value& output : builder.op("fused_matmul", inputs, attributes_of(c, form)))
    builder.result(output);
  expect_same_tensors(testing::evaluate(builder, feeds), apart(dtype, c, form, bias, feeds));
}

TEST(FusedMatmul, HasTheBitsOfItsPartsForEveryDType) {
  const std::vector<Case> cases = {
      {{3, 4}, {4, 5}},
      {{4, 3}, {4, 5}, true, false},
      {{3, 4}, {5, 4}, false, true},
      {{4, 3}, {5, 4}, true, true},
      {{1, 1}, {1, 1}},
      {{17, 33}, {33, 65}},
      {{2, 3, 4}, {2, 4, 5}},
      {{2, 3, 4}, {4, 5}},               // folded into rows
      {{2, 4, 3}, {4, 5}, true, false},  // cannot be
      {{3, 4}, {2, 4, 5}},               // the left one repeats
      {{2, 1, 3, 4}, {3, 4, 5}},         // both repeat
      {{0, 4}, {4, 5}},
      {{3, 0}, {0, 5}},
      {{3, 4}, {4, 0}},
      {{0, 3, 4}, {4, 5}},
      {{2, 3, 0}, {2, 0, 5}},
  };
  std::uint64_t seed = 0;
  for (const DType dtype : kFloating) {
    for (const Case& c : cases) {
      for (const Form& form : kForms) check(dtype, c, form, ++seed);
    }
    if (HasFatalFailure()) return;
  }
}

// Several tiles: of rows, of columns, of k, of matrices, and sums that are cut.
TEST(FusedMatmul, HasTheBitsOfItsPartsAcrossTiles) {
  const std::vector<Case> cases = {
      {{300, 300}, {300, 300}, false, true},
      {{24, 500}, {500, 600}},
      {{20'000, 16}, {20'000, 24}, true, false},
      {{16, 20'000}, {24, 20'000}, false, true},
      {{2, 300, 100}, {2, 100, 300}},
      {{40, 30, 30}, {40, 30, 30}, false, true},
  };
  std::uint64_t seed = 0;
  for (const Case& c : cases) {
    for (const Form& form : kForms) check(DType::kF32, c, form, ++seed);
  }
  check(DType::kBF16, cases[0], {.bias = true, .then = "relu"}, 1);
  check(DType::kF64, cases[2], {.sums = "b"}, 1);
}

TEST(FusedMatmul, HasTheBitsOfItsPartsForRandomShapes) {
  Dice dice(7);
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const std::int64_t m = dice.roll(70), n = dice.roll(70), k = dice.roll(70), batch = dice.roll(4);
    Case c;
    c.transpose_a = dice.roll(2) == 0;
    c.transpose_b = dice.roll(2) == 0;
    c.a = c.transpose_a ? Shape{k, m} : Shape{m, k};
    c.b = c.transpose_b ? Shape{n, k} : Shape{k, n};
    if (batch > 0) c.a = c.a.with_inserted(0, batch);
    if (batch > 1 && dice.roll(2) == 0) c.b = c.b.with_inserted(0, batch);
    check(kFloating[dice.roll(4)], c, kForms[static_cast<std::size_t>(dice.roll(9))], seed);
  }
}

// Neither a relu nor a sum hides what went wrong before it.
TEST(FusedMatmul, KeepsWhatIsNotANumber) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const Form& form : kForms) {
    if (form.then == "relu_grad") continue;
    SCOPED_TRACE(name_of(form));
    GraphBuilder builder;
    const Case c{{16, 16}, {16, 16}};
    const std::vector<Value> inputs = inputs_of(builder, DType::kF32, c, form, {16});
    std::vector<Tensor> feeds;
    for (const Value& input : inputs) feeds.push_back(Tensor::full(DType::kF32, input.shape(), -1));
    feeds[0].data<float>()[16] = kNan;
    for (const Value& output : builder.op("fused_matmul", inputs, attributes_of(c, form)))
      builder.result(output);
    const std::vector<Tensor> results = testing::evaluate(builder, feeds);
    EXPECT_TRUE(std::isnan(results[0].data<float>()[16])) << "row 1, which reads it";
    EXPECT_FALSE(std::isnan(results[0].data<float>()[0]));
    if (form.sums == "a") {
      EXPECT_TRUE(std::isnan(results[1].data<float>()[1]));
    }
  }
}

TEST(FusedMatmul, InfersUnknownDimensions) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, kUnknown, 4});
  const Value w = b.placeholder("w", DType::kF32, {4, 5}), bias = b.placeholder("bias", DType::kF32, {5});
  EXPECT_EQ(b.op1("fused_matmul", {x, w, bias}, {{"bias", true}}).shape(), (Shape{kUnknown, kUnknown, 5}));
  const Value g = b.placeholder("g", DType::kF32, {kUnknown, 5}),
              h = b.placeholder("h", DType::kF32, {kUnknown, 4});
  const std::vector<Value> both =
      b.op("fused_matmul", std::vector{h, g}, {{"transpose_a", true}, {"sums", std::string("b")}});
  ASSERT_EQ(both.size(), 2U);
  EXPECT_EQ(both[0].shape(), (Shape{4, 5}));
  EXPECT_EQ(both[1].shape(), (Shape{5}));
}

TEST(FusedMatmul, RefusesWhatDoesNotFit) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {3, 4}), w = b.placeholder("w", DType::kF32, {4, 5}),
              bias = b.placeholder("bias", DType::kF32, {5}),
              column = b.placeholder("column", DType::kF32, {3, 1}),
              batch = b.placeholder("batch", DType::kF32, {2, 3, 4}),
              i = b.placeholder("i", DType::kI32, {3, 3});
  const auto refusal = [&](std::vector<Value> inputs, std::vector<Attribute> attributes) {
    return caught([&] { b.op("fused_matmul", inputs, attributes); }).what;
  };
  const auto text = [](const char* name, const char* value) { return Attribute{name, std::string(value)}; };
  EXPECT_THAT(refusal({i, i}, {}), HasSubstr("takes floating matrices"));
  EXPECT_THAT(refusal({x, x}, {}), HasSubstr("inner dimensions differ"));
  EXPECT_THAT(refusal({x, w}, {{"bias", true}}), HasSubstr("takes 3 inputs by its attributes, got 2"));
  EXPECT_THAT(refusal({x, w, bias}, {}), HasSubstr("takes 2 inputs by its attributes, got 3"));
  EXPECT_THAT(refusal({x, w, column}, {{"bias", true}}),
              HasSubstr("takes a bias with an element for each column of [3,5], got f32[3,1]"));
  EXPECT_THAT(refusal({x, w, bias}, {text("then", "add")}),
              HasSubstr("takes an operand of the product's shape [3,5], got f32[5]"));
  EXPECT_THAT(refusal({x, w}, {text("then", "gelu")}), HasSubstr("expected relu, relu_grad or add"));
  EXPECT_THAT(refusal({x, w}, {text("sums", "c")}), HasSubstr("expected a or b"));
  EXPECT_THAT(refusal({x, w}, {text("sums", "a"), text("then", "relu")}),
              HasSubstr("of a plain product only"));
  EXPECT_THAT(refusal({batch, w}, {text("sums", "b")}), HasSubstr("of two matrices only"));
}

TEST(FusedMatmul, IsMadeAfterGradientsAreTaken) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {3, 4}), w = b.placeholder("w", DType::kF32, {4, 5});
  const Value y = b.op1("fused_matmul", {x, w}, {{"then", std::string("relu")}});
  EXPECT_THAT(caught([&] { gradients(sum(y), {w}); }).what, HasSubstr("fused_matmul"));
}

}  // namespace
}  // namespace lockstep
