// Tests: graph/ops/fused/attention.cpp, graph/ops/fused/attention_on_cpu.cpp, core/kernels/attention.cpp
// Attention gives what the nodes give that it stands for, forward and backward, in every layout.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/gradients.h"
#include "support/op_test.h"
#include "support/random_tensors.h"
#include "support/sanitizers.h"

namespace lockstep {
namespace {

using testing::caught;
using ::testing::HasSubstr;

enum class Layout { kHeadsFirst, kRowsFirst, kPacked };

struct Case {
  std::vector<std::int64_t> batch = {2, 3};  // with the heads
  std::int64_t queries = 5, keys = 7, width = 4, value_width = 6;
  std::optional<Shape> mask = {};
  std::optional<double> rate = {};
  Layout layout = Layout::kHeadsFirst;
  double scale = 0.5;
};

Shape shape_of_rows(const Case& c, std::int64_t rows, std::int64_t width) {
  std::vector<std::int64_t> dims = c.batch;
  dims.insert(c.layout == Layout::kHeadsFirst ? dims.end() : dims.begin() + 1, rows);
  dims.push_back(width);
  return Shape(std::span<const std::int64_t>(dims));
}

std::vector<Attribute> attributes_of(const Case& c) {
  std::vector<Attribute> attributes = {{"scale", c.scale}};
  if (c.mask) attributes.push_back({"mask", true});
  if (c.rate) {
    attributes.push_back({"rate", *c.rate});
    attributes.push_back({"key", std::int64_t{17}});
  }
  if (c.layout == Layout::kRowsFirst) attributes.push_back({"layout", std::string("rows_first")});
  if (c.layout == Layout::kPacked) attributes.push_back({"packed", true});
  return attributes;
}

// q, k and v, or all in one; then the mask.
std::vector<Value> inputs_of(GraphBuilder& b, DType dtype, const Case& c) {
  std::vector<Value> inputs;
  if (c.layout == Layout::kPacked) {
    inputs.push_back(b.placeholder("qkv", dtype, {c.batch[0], c.queries, 3, c.batch[1], c.width}));
  } else {
    inputs.push_back(b.placeholder("q", dtype, shape_of_rows(c, c.queries, c.width)));
    inputs.push_back(b.placeholder("k", dtype, shape_of_rows(c, c.keys, c.width)));
    inputs.push_back(b.placeholder("v", dtype, shape_of_rows(c, c.keys, c.value_width)));
  }
  if (c.mask) inputs.push_back(b.placeholder("mask", dtype, *c.mask));
  return inputs;
}

Value flow_of(GraphBuilder& b, DType dtype, const Case& c) {
  return b.placeholder("g", dtype, shape_of_rows(c, c.queries, c.value_width));
}

// Out and what flows back, of nodes that each do one thing. 16 bits are computed in f32 and rounded in the end.
std::vector<Tensor> apart(DType dtype, const Case& c, const std::vector<Tensor>& feeds) {
  GraphBuilder b;
  const std::vector<Value> inputs = inputs_of(b, dtype, c);
  const Value g = flow_of(b, dtype, c);
  const DType wide = dtype == DType::kF64 ? dtype : DType::kF32;
  std::vector<Value> given;
  for (const Value& input : inputs) given.push_back(cast(input, wide));
  Value parts[3];
  const auto turned = [&](const Value& x) {
    return c.layout == Layout::kHeadsFirst ? x : transpose(x, {0, 2, 1, 3});
  };
  if (c.layout == Layout::kPacked) {
    const std::vector<Value> split = split_evenly(transpose(given[0], {2, 0, 3, 1, 4}), 3, 0);
    for (std::size_t i = 0; i < 3; ++i) parts[i] = squeeze(split[i], {0});
  } else {
    for (std::size_t i = 0; i < 3; ++i) parts[i] = turned(given[i]);
  }
  Value scores = matmul(parts[0], parts[1], false, true) * c.scale;
  if (c.mask) scores = scores + given.back();
  Value shares = softmax(scores);
  if (c.rate) shares = dropout(shares, *c.rate, 17);
  const Value out = turned(matmul(shares, parts[2]));
  const std::vector<Value> sources(given.begin(), given.end() - (c.mask ? 1 : 0));
  b.result(cast(out, dtype));
  for (const Value back : gradients(sum(out * cast(g, wide)), sources)) b.result(cast(back, dtype));
  b.result(logsumexp(scores, {-1}));
  return Interpreter(b.finish()).run(feeds);
}

std::vector<Tensor> together(DType dtype, const Case& c, const std::vector<Tensor>& feeds) {
  GraphBuilder b;
  std::vector<Value> inputs = inputs_of(b, dtype, c);
  const Value g = flow_of(b, dtype, c);
  const std::vector<Value> forward = b.op("attention", inputs, attributes_of(c));
  inputs.insert(inputs.end(), {forward[0], forward[1], g});
  b.result(forward[0]);
  for (const Value& back : b.op("attention_grad", inputs, attributes_of(c))) b.result(back);
  b.result(forward[1]);
  return testing::evaluate(b, feeds);
}

void expect_near(const Tensor& actual, const Tensor& expected, double tolerance) {
  ASSERT_EQ(actual.spec(), expected.spec());
  const std::vector<double> a = elements(actual), e = elements(expected);
  double largest = 1;
  for (const double x : e) largest = std::isfinite(x) ? std::max(largest, std::abs(x)) : largest;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(e[i]) && std::isnan(a[i])) continue;
    ASSERT_NEAR(a[i], e[i], tolerance * largest) << "element " << i;
  }
}

std::string name_of(const Case& c) {
  return str(Shape(std::span<const std::int64_t>(c.batch)), " heads, ", c.queries, " x ", c.keys, ", widths ",
             c.width, " and ", c.value_width, c.mask ? str(", mask ", *c.mask) : std::string(),
             c.rate ? str(", rate ", *c.rate) : std::string(), ", layout ", static_cast<int>(c.layout));
}

double tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::kF64: return 1e-12;
    case DType::kF16: return 2e-3;
    case DType::kBF16: return 1.6e-2;
    default: return 4e-6;
  }
}

std::vector<Tensor> feeds_of(DType dtype, const Case& c, std::uint64_t seed) {
  GraphBuilder b;
  std::vector<Value> inputs = inputs_of(b, dtype, c);
  inputs.push_back(flow_of(b, dtype, c));
  Dice dice(seed);
  std::vector<Tensor> feeds;
  for (const Value& input : inputs) feeds.push_back(random_tensor(dtype, input.shape(), dice));
  return feeds;
}

void check(DType dtype, const Case& c, std::uint64_t seed) {
  SCOPED_TRACE(str(dtype, " ", name_of(c)));
  const std::vector<Tensor> feeds = feeds_of(dtype, c, seed);
  const std::vector<Tensor> actual = together(dtype, c, feeds), expected = apart(dtype, c, feeds);
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    SCOPED_TRACE(str("result ", i));
    expect_near(actual[i], expected[i], tolerance_of(dtype));
  }
}

TEST(Attention, AgreesWithItsPartsInEveryForm) {
  std::uint64_t seed = 0;
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Layout layout : {Layout::kHeadsFirst, Layout::kRowsFirst, Layout::kPacked}) {
      Case c{.layout = layout};
      if (layout == Layout::kPacked) c.keys = c.queries, c.value_width = c.width;
      const std::vector<std::optional<Shape>> masks = {
          {},
          Shape{c.queries, c.keys},
          Shape{2, 1, 1, c.keys},
          Shape{2, 3, c.queries, c.keys},
          Shape{3, 1, c.keys},
          Shape{1, 3, c.queries, 1},
          Shape{c.keys},
          Shape{},
      };
      for (const std::optional<Shape>& mask : masks) {
        c.mask = mask;
        for (const std::optional<double> rate : {std::optional<double>(), std::optional(0.3)}) {
          c.rate = rate;
          check(dtype, c, ++seed);
        }
      }
      if (HasFailure()) return;
    }
  }
}

// Blocks of rows, heads that are cut and ends of neither.
TEST(Attention, AgreesWithItsPartsForRandomShapes) {
  Dice dice(5);
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Case c;
    c.queries = 1 + dice.roll(150);
    c.keys = 1 + dice.roll(90);
    c.width = 1 + dice.roll(40);
    c.value_width = 1 + dice.roll(40);
    c.scale = dice.roll(2) == 0 ? 1 : 0.125;
    c.layout = static_cast<Layout>(dice.roll(3));
    c.batch = {1 + dice.roll(3), 1 + dice.roll(4)};
    if (c.layout == Layout::kHeadsFirst) {
      c.batch.resize(static_cast<std::size_t>(dice.roll(3)));
      if (dice.roll(4) == 0) c.batch = {2, 1, 3};
    }
    if (c.layout == Layout::kPacked) c.keys = c.queries, c.value_width = c.width;
    if (dice.roll(2) == 0) c.mask = Shape{c.queries, c.keys};
    if (dice.roll(2) == 0) c.rate = 0.1;
    check(seed % 3 == 0 ? DType::kF64 : DType::kF32, c, seed);
    if (HasFailure()) return;
  }
}

// Cards take 16-bit heads of these widths through the chip in tiles, of which the last ones are not whole.
TEST(Attention, AgreesWithItsPartsInTiles) {
  std::uint64_t seed = 0;
  // Widths matter to cards; a CPU takes them all alike, and with a sanitizer takes minutes.
  std::vector<std::int64_t> widths = {8, 32, 40, 64, 72, 128};
  if (testing::kSanitized) widths = {40};
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const std::int64_t width : widths) {
      for (const Layout layout : {Layout::kHeadsFirst, Layout::kRowsFirst, Layout::kPacked}) {
        Case c{.queries = 131,
               .keys = 70,
               .width = width,
               .value_width = width,
               .layout = layout,
               .scale = 0.125};
        if (layout == Layout::kPacked) c.keys = c.queries;
        check(dtype, c, ++seed);
        c.mask = Shape{c.queries, c.keys};
        c.scale = -0.125;
        check(dtype, c, ++seed);
        c.rate = 0.25;
        check(dtype, c, ++seed);
        if (HasFailure()) return;
      }
    }
  }
}

// Many heads share a shard.
TEST(Attention, AgreesWithItsPartsForManyHeads) {
  check(DType::kF32, {.batch = {70, 3}, .queries = 3, .keys = 2}, 1);
  check(DType::kF32, {.batch = {}, .queries = 700, .keys = 40, .rate = 0.5}, 2);
  check(DType::kF32, {.batch = {2}, .queries = 65, .keys = 1200, .width = 8, .value_width = 8}, 3);
}

TEST(Attention, TakesNothing) {
  check(DType::kF32, {.queries = 0}, 1);
  check(DType::kF32, {.batch = {0, 2}}, 2);
  check(DType::kF32, {.width = 0}, 3);
  check(DType::kBF16, {.value_width = 0}, 4);
  const Case no_keys{.keys = 0};
  const std::vector<Tensor> results = together(DType::kF32, no_keys, feeds_of(DType::kF32, no_keys, 5));
  for (const double x : elements(results[0])) EXPECT_EQ(x, 0);
  for (const double x : elements(results[1])) EXPECT_EQ(x, 0);
}

TEST(Attention, DropsEverythingOrNothing) {
  check(DType::kF32, {.rate = 0}, 1);
  check(DType::kF32, {.rate = 1}, 2);
}

// Looking ahead is worth -inf; a query that may look at nothing gets NaN, as from softmax.
TEST(Attention, TakesMasksOfInfinity) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  Case c{.queries = 6, .keys = 6, .mask = Shape{6, 6}};
  std::vector<Tensor> feeds = feeds_of(DType::kF32, c, 3);
  for (std::size_t i = 0; i < 36; ++i) feeds[3].data<float>()[i] = i % 6 > i / 6 ? kNever : 0;
  const auto compare = [&] {
    const std::vector<Tensor> actual = together(DType::kF32, c, feeds),
                              expected = apart(DType::kF32, c, feeds);
    for (std::size_t i = 0; i + 1 < actual.size(); ++i) expect_near(actual[i], expected[i], 4e-6);
    return actual;
  };
  for (const Tensor& result : compare()) {
    for (const double x : elements(result)) EXPECT_FALSE(std::isnan(x));
  }
  for (std::size_t i = 12; i < 18; ++i) feeds[3].data<float>()[i] = kNever;
  const std::vector<double> out = elements(compare()[0]);
  EXPECT_TRUE(std::isnan(out[12]));
  EXPECT_FALSE(std::isnan(out[0]));
}

// In a step of its own, too: the key, the seed and the step decide.
TEST(Attention, DrawsOnlyWithAKey) {
  GraphBuilder b;
  const std::vector<Value> inputs = inputs_of(b, DType::kF32, {});
  const Value plain = b.op("attention", inputs, attributes_of({}))[0];
  const Value dropping = b.op("attention", inputs, attributes_of({.rate = 0.5}))[0];
  b.result(plain);
  b.result(dropping);
  const Graph graph = b.finish();
  EXPECT_EQ(effects_of(graph.node(graph.find("attention"))), Effect::kPure);
  EXPECT_EQ(effects_of(graph.node(graph.find("attention_1"))), Effect::kRandom);
  std::vector<Tensor> feeds = feeds_of(DType::kF32, {}, 1);
  feeds.pop_back();
  Interpreter steps(graph);
  const std::vector<Tensor> first = steps.run(feeds), second = steps.run(feeds);
  EXPECT_EQ(elements(first[0]), elements(second[0]));
  EXPECT_NE(elements(first[1]), elements(second[1]));
}

// --- inference

TEST(Attention, InfersUnknownDimensions) {
  GraphBuilder b;
  const Value q = b.placeholder("q", DType::kBF16, {kUnknown, 3, 5, 4}),
              k = b.placeholder("k", DType::kBF16, {2, kUnknown, kUnknown, 4}),
              v = b.placeholder("v", DType::kBF16, {kUnknown, kUnknown, 7, 6}),
              mask = b.placeholder("mask", DType::kBF16, {kUnknown, kUnknown});
  const std::vector<Value> forward =
      b.op("attention", std::vector{q, k, v, mask}, attributes_of({.mask = Shape{}}));
  ASSERT_EQ(forward.size(), 2U);
  EXPECT_EQ(forward[0].shape(), (Shape{2, 3, 5, 6}));
  EXPECT_EQ(forward[1].shape(), (Shape{2, 3, 5}));
  EXPECT_EQ(forward[1].dtype(), DType::kF32);
  const Value qkv = b.placeholder("qkv", DType::kF64, {kUnknown, 5, 3, 2, 4});
  const std::vector<Value> packed =
      b.op("attention", std::vector{qkv}, attributes_of({.layout = Layout::kPacked}));
  EXPECT_EQ(packed[0].shape(), (Shape{kUnknown, 5, 2, 4}));
  EXPECT_EQ(packed[1].shape(), (Shape{kUnknown, 2, 5}));
  EXPECT_EQ(packed[1].dtype(), DType::kF64);
  const std::vector<Value> back = b.op("attention_grad", std::vector{qkv, packed[0], packed[1], packed[0]},
                                       attributes_of({.layout = Layout::kPacked}));
  ASSERT_EQ(back.size(), 1U);
  EXPECT_EQ(back[0].spec(), qkv.spec());
}

TEST(Attention, RefusesWhatDoesNotFit) {
  GraphBuilder b;
  int made = 0;
  const auto value = [&](const Shape& shape, DType dtype = DType::kF32) {
    return b.placeholder(str("x", made++), dtype, shape);
  };
  const Value q = value({2, 5, 4}), k = value({2, 7, 4}), v = value({2, 7, 6}), rows = value({2, 5, 3, 4});
  const auto refusal = [&](std::vector<Value> inputs, std::vector<Attribute> attributes,
                           const char* op = "attention") {
    attributes.push_back({"scale", 1.0});
    return caught([&] { b.op(op, inputs, attributes); }).what;
  };
  const auto layout = [](const char* name) { return Attribute{"layout", std::string(name)}; };
  EXPECT_THAT(refusal({q, k}, {}), HasSubstr("takes 3 inputs by its attributes, got 2"));
  EXPECT_THAT(refusal({q, k, v, v}, {}), HasSubstr("takes 3 inputs by its attributes, got 4"));
  EXPECT_THAT(refusal({q, k, v}, {{"mask", true}}), HasSubstr("takes 4 inputs by its attributes, got 3"));
  EXPECT_THAT(refusal({q, k, v}, {layout("columns_first")}), HasSubstr("expected heads_first or rows_first"));
  EXPECT_THAT(refusal({rows}, {{"packed", true}, layout("heads_first")}),
              HasSubstr("is packed, which is rows_first"));
  EXPECT_THAT(refusal({rows}, {{"packed", true}}),
              HasSubstr("packed as [batch, rows, 3, heads, width], got f32[2,5,3,4]"));
  EXPECT_THAT(refusal({q, k, v}, {layout("rows_first")}), HasSubstr("as [batch, rows, heads, width]"));
  EXPECT_THAT(refusal({q, k, value({7, 6})}, {}), HasSubstr("of one rank"));
  EXPECT_THAT(refusal({q, k, value({3, 7, 6})}, {}), HasSubstr("the same heads of the same batches"));
  EXPECT_THAT(refusal({q, value({2, 7, 5}), v}, {}), HasSubstr("rows of one width"));
  EXPECT_THAT(refusal({q, k, value({2, 8, 6})}, {}), HasSubstr("as many rows of v as of k"));
  EXPECT_THAT(refusal({q, k, value({2, 7, 6}, DType::kF64)}, {}), HasSubstr("values of one dtype"));
  const Value whole = value({2, 5, 4}, DType::kI32);
  EXPECT_THAT(refusal({whole, whole, whole}, {}), HasSubstr("takes floating values"));
  EXPECT_THAT(refusal({q, k, v}, {{"rate", 0.5}}), HasSubstr("rate and key"));
  EXPECT_THAT(refusal({q, k, v}, {{"rate", 1.5}, {"key", std::int64_t{1}}}),
              HasSubstr("rate must lie in [0, 1]"));
  EXPECT_THAT(refusal({q, k, v, value({4, 7})}, {{"mask", true}}),
              HasSubstr("a mask that broadcasts to the scores [2,5,7], got f32[4,7]"));
  EXPECT_THAT(refusal({q, k, v, value({1, 2, 5, 7})}, {{"mask", true}}),
              HasSubstr("broadcasts to the scores"));
  const Value many = value({2, 3, 2, 5, 4});
  EXPECT_THAT(refusal({many, many, many, value({1, 3, 1, 5, 5})}, {{"mask", true}}),
              HasSubstr("along the first batch axes"));
  const Value logs = value({2, 5}), out = value({2, 5, 6});
  EXPECT_THAT(refusal({q, k, v, out, logs}, {}, "attention_grad"), HasSubstr("takes 6 inputs"));
  EXPECT_THAT(refusal({q, k, v, q, logs, out}, {}, "attention_grad"),
              HasSubstr("what attention gave as f32[2,5,6]"));
  EXPECT_THAT(refusal({q, k, v, out, out, out}, {}, "attention_grad"),
              HasSubstr("the logs that attention gave as f32[2,5]"));
  EXPECT_THAT(refusal({q, k, v, out, logs, q}, {}, "attention_grad"),
              HasSubstr("what flows back as f32[2,5,6]"));
}

TEST(Attention, IsMadeAfterGradientsAreTaken) {
  GraphBuilder b;
  const std::vector<Value> inputs = inputs_of(b, DType::kF32, {});
  const Value out = b.op("attention", inputs, attributes_of({}))[0];
  EXPECT_THAT(caught([&] { gradients(sum(out), {inputs[0]}); }).what, HasSubstr("attention"));
}

}  // namespace
}  // namespace lockstep
