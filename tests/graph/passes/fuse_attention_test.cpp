// Tests: graph/passes/fuse_attention.cpp, graph/passes/attention_pattern.cpp, graph/passes/attention_layout.cpp,
//        graph/passes/optimize.cpp
#include "lockstep/graph/passes/fuse_attention.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/passes/optimize.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/train/gradients.h"
#include "lockstep/graph/train/optimizer.h"
#include "support/pass_test.h"
#include "support/program_test.h"
#include "support/random_tensors.h"

namespace lockstep {
namespace {

using FuseAttention = testing::PassTest;
using ::testing::HasSubstr;
using ::testing::Not;
constexpr const char* kPass = "fuse-attention(cpu=true)";
const testing::RewriteChecks kRounded = {.same_meaning = false};

void expect_near(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].spec(), expected[i].spec()) << "result " << i;
    const std::vector<double> a = elements(actual[i]), e = elements(expected[i]);
    for (std::size_t at = 0; at < a.size(); ++at)
      ASSERT_NEAR(a[at], e[at], tolerance * std::max(1.0, std::abs(e[at])))
          << "result " << i << ", element " << at;
  }
}

// The same numbers, but for how they are rounded.
void expect_near_meaning(const Graph& before, const Graph& after, double tolerance = 2e-5) {
  const std::optional<Interpreter::Feeds> feeds = testing::random_feeds(before, 3);
  ASSERT_TRUE(feeds);
  Interpreter first(before), second(after);
  for (int step = 0; step < 2; ++step) expect_near(second.run(*feeds), first.run(*feeds), tolerance);
}

std::size_t count(const Graph& graph, std::string_view op) {
  return static_cast<std::size_t>(
      std::ranges::count_if(graph.nodes(), [&](const Node& node) { return node.op().name == op; }));
}

Graph fused(Graph graph, const std::string& passes = kPass) {
  PassRegistry::global()
      .parse_pipeline("constant-folding,common-subexpression-elimination,dead-node-elimination," + passes)
      .run(graph);
  return graph;
}

// --- forward

TEST_F(FuseAttention, JoinsTheForwardNodes) {
  expect_rewrite(kPass, R"(
      %q = placeholder() : f32[2,3,5,4]
      %k = placeholder() : f32[2,3,7,4]
      %v = placeholder() : f32[2,3,7,6]
      %m = placeholder() : f32[5,7]
      %c = constant[value=f32[]{0.5}]() : f32[]
      %p = matmul[transpose_b=true](%q, %k) : f32[2,3,5,7]
      %s = mul(%p, %c) : f32[2,3,5,7]
      %a = add(%s, %m) : f32[2,3,5,7]
      %x = softmax[axis=-1](%a) : f32[2,3,5,7]
      %d = dropout[rate=0.25, key=9](%x) : f32[2,3,5,7]
      %y = matmul(%d, %v) : f32[2,3,5,6]
      return %y
    )",
                 R"(
      %q = placeholder() : f32[2,3,5,4]
      %k = placeholder() : f32[2,3,7,4]
      %v = placeholder() : f32[2,3,7,6]
      %m = placeholder() : f32[5,7]
      %y = attention[key=9, mask=true, rate=0.25, scale=0.5](%q, %k, %v, %m) : f32[2,3,5,6], f32[2,3,5]
      return %y
    )",
                 kRounded);
}

// The scale may be anywhere, and twice.
TEST_F(FuseAttention, TakesTheScaleFromWhereItIs) {
  const auto graph = [](const std::string& q, const std::string& k, const std::string& scores) {
    return parse(R"(
      %q = placeholder() : f64[3,5,4]
      %k = placeholder() : f64[3,5,4]
      %v = placeholder() : f64[3,5,4]
      %two = constant[value=f64[1]{2.0}]() : f64[1]
      %eight = constant[value=f64[]{8.0}]() : f64[]
      %scaled_q = )" +
                 q + R"( : f64[3,5,4]
      %scaled_k = )" +
                 k + R"( : f64[3,5,4]
      %p = matmul[transpose_b=true](%scaled_q, %scaled_k) : f64[3,5,5]
      %s = )" + scores +
                 R"( : f64[3,5,5]
      %x = softmax[axis=2](%s) : f64[3,5,5]
      %y = matmul(%x, %v) : f64[3,5,4]
      return %y
    )");
  };
  struct Form {
    std::string q, k, scores, scale;
  };
  for (const Form& form : {Form{"mul(%q, %two)", "mul(%eight, %k)", "div(%p, %two)", "8.0"},
                           Form{"div(%q, %eight)", "identity(%k)", "identity(%p)", "0.125"},
                           Form{"identity(%q)", "identity(%k)", "mul(%two, %p)", "2.0"},
                           Form{"identity(%q)", "identity(%k)", "identity(%p)", "1.0"}}) {
    const Graph before = graph(form.q, form.k, form.scores);
    const Graph after = fused(before, str("identity-removal,", kPass));
    EXPECT_THAT(print(after), HasSubstr("attention[scale=" + form.scale + "](%q, %k, %v)"));
    EXPECT_EQ(count(after, "constant"), 0U);
    expect_near_meaning(before, after, 1e-12);
  }
}

// A quotient of a constant by q is no scale.
TEST_F(FuseAttention, LeavesOtherProductsOfConstantsBeside) {
  const Graph before = parse(R"(
      %q = placeholder() : f32[3,5,4]
      %c = constant[value=f32[]{2.0}]() : f32[]
      %r = constant[value=f32[4]{1, 2, 3, 4}]() : f32[4]
      %over = div(%c, %q) : f32[3,5,4]
      %rows = mul(%q, %r) : f32[3,5,4]
      %p = matmul[transpose_b=true](%over, %rows) : f32[3,5,5]
      %x = softmax[axis=-1](%p) : f32[3,5,5]
      %y = matmul(%x, %q) : f32[3,5,4]
      return %y
    )");
  EXPECT_THAT(print(fused(before)), HasSubstr("attention[scale=1.0](%over, %rows, %q)"));
}

// --- what it leaves alone

// One form with holes for what is varied.
struct Text {
  std::string q = "f32[2,5,4]", v = "f32[2,5,4]", product = "matmul[transpose_b=true](%q, %k) : f32[2,5,5]",
              softmax = "softmax[axis=-1](%p) : f32[2,5,5]", out = "matmul(%x, %v) : f32[2,5,4]", more = {},
              results = "%y", after = {};
  std::string text() const {
    return "%q = placeholder() : " + q + "\n%k = placeholder() : f32[2,5,4]\n%v = placeholder() : " + v +
           "\n%p = " + product + "\n%x = " + softmax + "\n%y = " + out + after + "\n" + more + "return " +
           results + "\n";
  }
};

TEST_F(FuseAttention, LeavesWhatOthersSee) {
  EXPECT_EQ(count(fused(parse(Text{}.text())), "attention"), 1U);
  expect_unchanged(kPass, Text{.results = "%y, %p"}.text());
  expect_unchanged(kPass, Text{.results = "%y, %x"}.text());
  expect_unchanged(kPass, Text{.more = "%z = relu(%p) : f32[2,5,5]\n", .results = "%y, %z"}.text());
  expect_unchanged(
      kPass, Text{.more = "%z = sum[axes=[0], keepdims=false](%x) : f32[5,5]\n", .results = "%y, %z"}.text());
  expect_unchanged(kPass, Text{.more = "%z = matmul(%x, %q) : f32[2,5,4]\n", .results = "%y, %z"}.text());
  expect_unchanged(kPass, Text{.more = "%z = relu(%q) : f32[2,5,4] after(%x)\n", .results = "%y, %z"}.text());
  // What waits for the last node may.
  EXPECT_EQ(
      count(fused(parse(Text{.more = "%z = relu(%q) : f32[2,5,4] after(%y)\n", .results = "%y, %z"}.text())),
            "attention"),
      1U);
}

TEST_F(FuseAttention, LeavesOtherForms) {
  // Scores are not made of rows of k, or shares are turned, or v is.
  expect_unchanged(kPass, R"(
      %q = placeholder() : f32[2,4,4]
      %p = matmul(%q, %q) : f32[2,4,4]
      %x = softmax[axis=-1](%p) : f32[2,4,4]
      %y = matmul(%x, %q) : f32[2,4,4]
      return %y
    )");
  expect_unchanged(kPass, Text{.out = "matmul[transpose_a=true](%x, %v) : f32[2,5,4]"}.text());
  expect_unchanged(kPass,
                   Text{.v = "f32[2,4,5]", .out = "matmul[transpose_b=true](%x, %v) : f32[2,5,4]"}.text());
  // Softmax over the queries.
  expect_unchanged(kPass, Text{.softmax = "softmax[axis=1](%p) : f32[2,5,5]"}.text());
  expect_unchanged(kPass, Text{.softmax = "log_softmax[axis=-1](%p) : f32[2,5,5]"}.text());
  // One v, or one q, for all heads.
  expect_unchanged(kPass, Text{.v = "f32[5,4]"}.text());
  expect_unchanged(kPass, Text{.q = "f32[1,5,4]"}.text());
  // Whole numbers have no softmax, but unknown extents might be those of a broadcast.
  expect_unchanged(kPass, Text{.q = "f32[?,5,4]"}.text());
}

TEST_F(FuseAttention, LeavesNodesThatDoNotBelongTogether) {
  expect_unchanged(kPass, Text{.softmax = "softmax[axis=-1](%p) : f32[2,5,5] on \"cpu:1\""}.text());
  expect_unchanged(kPass, Text{.softmax = "softmax[axis=-1](%p) : f32[2,5,5] after(%v)"}.text());
}

// --- with a gradient

struct Form {
  DType dtype = DType::kF64;
  std::vector<std::int64_t> batch = {2, 3};
  std::int64_t queries = 5, keys = 7, width = 4, value_width = 6;
  bool scale_q = false, scale_k = false, divide_scores = false, masked = false;
  std::optional<double> rate = {};
  std::string of = "qkv";  // whose gradients are taken
};

Value placeholder_of(GraphBuilder& b, const char* name, const Form& form, std::int64_t rows,
                     std::int64_t width) {
  std::vector<std::int64_t> dims = form.batch;
  dims.insert(dims.end(), {rows, width});
  return b.placeholder(name, form.dtype, Shape(std::span<const std::int64_t>(dims)));
}

Graph attention_graph(const Form& form) {
  GraphBuilder b;
  const Value q = placeholder_of(b, "q", form, form.queries, form.width),
              k = placeholder_of(b, "k", form, form.keys, form.width),
              v = placeholder_of(b, "v", form, form.keys, form.value_width);
  Value scores = matmul(form.scale_q ? q * 0.5 : q, form.scale_k ? k * 0.25 : k, false, true);
  if (form.divide_scores) scores = scores / 2.0;
  if (form.masked) scores = b.placeholder("mask", form.dtype, {form.queries, form.keys}) + scores;
  Value shares = softmax(scores);
  if (form.rate) shares = dropout(shares, *form.rate, 5);
  const Value out = matmul(shares, v);
  b.result(out);
  std::vector<Value> sources;
  for (const char name : form.of) sources.push_back(name == 'q' ? q : name == 'k' ? k : v);
  if (!sources.empty()) {
    for (const Value back : gradients(sum(square(out)), sources)) b.result(back);
  }
  return b.finish();
}

TEST_F(FuseAttention, JoinsTheGradient) {
  for (const bool scale_q : {false, true}) {
    for (const bool scale_k : {false, true}) {
      for (const bool divide_scores : {false, true}) {
        for (const bool masked : {false, true}) {
          for (const std::optional<double> rate : {std::optional<double>(), std::optional(0.25)}) {
            for (const char* of : {"", "qkv", "q", "k", "v", "qk", "kv", "qv"}) {
              const Form form{.scale_q = scale_q,
                              .scale_k = scale_k,
                              .divide_scores = divide_scores,
                              .masked = masked,
                              .rate = rate,
                              .of = of};
              SCOPED_TRACE(
                  str(scale_q, scale_k, divide_scores, masked, rate.has_value(), " gradients of ", of));
              const Graph before = attention_graph(form), after = fused(before);
              EXPECT_EQ(count(after, "attention"), 1U);
              EXPECT_EQ(count(after, "attention_grad"), *of == 0 ? 0U : 1U);
              EXPECT_EQ(count(after, "matmul") + count(after, "softmax") + count(after, "softmax_grad") +
                            count(after, "dropout"),
                        0U);
              expect_near_meaning(before, after, 1e-12);
              if (HasFailure()) FAIL() << print(before) << "\nbecame\n" << print(after);
            }
          }
        }
      }
    }
  }
}

TEST_F(FuseAttention, JoinsTheGradientForEveryRankAndDType) {
  for (const std::vector<std::int64_t>& batch : {std::vector<std::int64_t>{}, {4}, {2, 3}, {2, 2, 2}}) {
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      const Graph before = attention_graph({.dtype = dtype, .batch = batch, .scale_q = true, .rate = 0.5});
      const Graph after = fused(before);
      EXPECT_EQ(count(after, "attention_grad"), 1U) << batch.size();
      expect_near_meaning(before, after, dtype == DType::kF32 ? 2e-5 : 1e-12);
    }
  }
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const Graph after = fused(attention_graph({.dtype = dtype}));
    EXPECT_EQ(count(after, "attention_grad"), 1U);
  }
}

// A mask that learns needs what flows into the scores.
TEST_F(FuseAttention, LeavesAMaskThatLearns) {
  GraphBuilder b;
  const Value q = b.placeholder("q", DType::kF32, {2, 5, 4}),
              mask = b.placeholder("mask", DType::kF32, {5, 5});
  const Value out = matmul(softmax(matmul(q, q, false, true) + mask), q);
  for (const Value back : gradients(sum(square(out)), {q, mask})) b.result(back);
  EXPECT_EQ(count(fused(b.finish()), "attention"), 0U);
}

// What flows back through what flows back reads shares once more.
TEST_F(FuseAttention, LeavesSecondDerivatives) {
  GraphBuilder b;
  const Value q = b.placeholder("q", DType::kF32, {2, 5, 4}), v = b.placeholder("v", DType::kF32, {2, 5, 4});
  const Value out = matmul(softmax(matmul(q, q, false, true)), v);
  const Value first = gradients(sum(square(out)), {q})[0];
  b.result(gradients(sum(square(first)), {q})[0]);
  EXPECT_EQ(count(fused(b.finish()), "attention"), 0U);
}

// What flows into v leads to v itself: attention_grad would read what follows from it.
TEST_F(FuseAttention, MakesNoCycle) {
  expect_unchanged(kPass, R"(
      %q = placeholder() : f32[2,5,4]
      %g = placeholder() : f32[2,5,4]
      %p = matmul[transpose_b=true](%q, %q) : f32[2,5,5]
      %x = softmax[axis=-1](%p) : f32[2,5,5]
      %dv = matmul[transpose_a=true](%x, %g) : f32[2,5,4]
      %v = relu(%dv) : f32[2,5,4]
      %y = matmul(%x, %v) : f32[2,5,4]
      return %y
    )");
}

// Another dropout than the forward one, and another product.
TEST_F(FuseAttention, LeavesWhatIsNotItsGradient) {
  const auto graph = [](const std::string& key, const std::string& other) {
    return R"(
      %q = placeholder() : f32[2,5,4]
      %v = placeholder() : f32[2,5,4]
      %g = placeholder() : f32[2,5,4]
      %p = matmul[transpose_b=true](%q, %q) : f32[2,5,5]
      %x = softmax[axis=-1](%p) : f32[2,5,5]
      %d = dropout[rate=0.5, key=1](%x) : f32[2,5,5]
      %y = matmul(%d, %v) : f32[2,5,4]
      %e = matmul[transpose_b=true](%g, %v) : f32[2,5,5]
      %f = dropout[rate=0.5, key=)" +
           key + R"(](%e) : f32[2,5,5]
      %h = softmax_grad[axis=-1](%x, %f) : f32[2,5,5]
      %dq = matmul(%h, )" +
           other + R"() : f32[2,5,4]
      return %y, %dq
    )";
  };
  EXPECT_EQ(count(fused(parse(graph("1", "%q"))), "attention_grad"), 1U);
  EXPECT_EQ(count(fused(parse(graph("2", "%q"))), "attention"), 0U);
  EXPECT_EQ(count(fused(parse(graph("1", "%v"))), "attention"), 0U);
}

// If q is read elsewhere after it is scaled, it stays scaled.
TEST_F(FuseAttention, LeavesAScaleThatOthersRead) {
  GraphBuilder b;
  const Value q = b.placeholder("q", DType::kF64, {2, 5, 4}), k = b.placeholder("k", DType::kF64, {2, 5, 4});
  const Value scaled = q * 0.5;
  const Value out = matmul(softmax(matmul(scaled, k, false, true)), k);
  for (const Value back : gradients(sum(square(out) + square(scaled)), {q, k})) b.result(back);
  const Graph before = b.finish(), after = fused(before);
  EXPECT_THAT(print(after), HasSubstr("attention[scale=1.0](%mul, %k, %k)"));
  expect_near_meaning(before, after, 1e-12);
}

// --- where

constexpr const char* kHalf = R"(
      %q = placeholder() : bf16[2,16,8]
      %v = placeholder() : bf16[2,16,8]
      %p = matmul[transpose_b=true](%q, %q) : bf16[2,16,16]
      %x = softmax[axis=-1](%p) : bf16[2,16,16]
      %y = matmul(%x, %v) : bf16[2,16,8]
      return %y
    )";
constexpr const char* kFusedHalf = R"(
      %q = placeholder() : bf16[2,16,8]
      %v = placeholder() : bf16[2,16,8]
      %y = attention[scale=1.0](%q, %q, %v) : bf16[2,16,8], f32[2,16]
      return %y
    )";
std::string with(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

TEST_F(FuseAttention, LeavesCpusAloneUnlessAsked) {
  expect_unchanged("fuse-attention", kHalf);
  expect_unchanged("fuse-attention", kHalf, {.topology = "cpu:0; gpu:0 kernels=cpu"});
  expect_unchanged("fuse-attention(device=\"cpu:0\")", kHalf, {.topology = "gpu:0 kernels=cpu"});
  expect_rewrite("fuse-attention(device=\"cpu:0\", cpu=true)", kHalf, kFusedHalf, kRounded);
}

TEST_F(FuseAttention, AsksTheKernelSetOfADevice) {
  const testing::RewriteChecks on_gpu = {.same_meaning = false, .topology = "gpu:0 kernels=cpu; cpu:0"};
  expect_rewrite("fuse-attention", kHalf, kFusedHalf, on_gpu);
  expect_rewrite("fuse-attention(device=\"gpu:0\")", kHalf, kFusedHalf,
                 {.same_meaning = false, .topology = "cpu:0; gpu:0 kernels=cpu"});
  expect_unchanged("fuse-attention", kHalf, {.topology = "gpu:0 kernels=unknown"});
  expect_unchanged("fuse-attention(device=\"gpu:1\")", kHalf, {.topology = "cpu:0; gpu:0 kernels=cpu"});
  EXPECT_ANY_THROW(make_fuse_attention({.device = "a place"}));
  // f32 by the option alone, f64 never.
  const std::string f32 = with(kHalf, "bf16", "f32"), fused_f32 = with(kFusedHalf, "bf16", "f32");
  expect_unchanged("fuse-attention", f32, on_gpu);
  expect_rewrite("fuse-attention(f32=true)", f32, fused_f32, on_gpu);
  expect_unchanged("fuse-attention(f32=true)", with(kHalf, "bf16", "f64"), on_gpu);
  // Widths that kernels of cards do not have.
  expect_unchanged("fuse-attention", with(kHalf, ",8]", ",12]"), on_gpu);
  expect_unchanged("fuse-attention", with(kHalf, ",8]", ",136]"), on_gpu);
  expect_unchanged("fuse-attention",
                   with(with(kHalf, "v = placeholder() : bf16[2,16,8]", "v = placeholder() : bf16[2,16,16]"),
                        "matmul(%x, %v) : bf16[2,16,8]", "matmul(%x, %v) : bf16[2,16,16]"),
                   on_gpu);
}

TEST_F(FuseAttention, SaysWhereNodesComeFrom) {
  Graph graph = parse(kHalf);
  const std::uint64_t origin = graph.node(graph.find("y")).provenance().origin;
  const SourceSite site = graph.node(graph.find("y")).site();
  PassRegistry::global().parse_pipeline(kPass).run(graph);
  const Node& made = graph.node(graph.find("y"));
  EXPECT_EQ(made.provenance().origin, origin);
  EXPECT_EQ(made.site().line, site.line);
  EXPECT_EQ(graph.text(made.provenance().made_by), "fuse-attention");
}

TEST_F(FuseAttention, LooksIntoRegions) {
  Graph graph = parse(R"(
      %p = placeholder() : bool[]
      %x = placeholder() : f32[3,3]
      %y = cond(%p, %x) : f32[3,3] {
        region {
          %x = placeholder() : f32[3,3]
          %m = matmul[transpose_b=true](%x, %x) : f32[3,3]
          %s = softmax[axis=-1](%m) : f32[3,3]
          %y = matmul(%s, %x) : f32[3,3]
          return %y
        }
        region {
          %x = placeholder() : f32[3,3]
          return %x
        }
      }
      return %y
    )");
  PassRegistry::global().parse_pipeline(kPass).run(graph);
  EXPECT_THAT(print(graph), HasSubstr("attention[scale=1.0](%x, %x, %x) : f32[3,3], f32[3]"));
}

// --- layouts

enum class Model { kRowsFirst, kSplitHeads, kPacked, kPackedRows };

struct Sizes {
  std::int64_t batch = 2, rows = 6, heads = 3, width = 4;
};

// What a transformer block does around attention, in several ways; results are out and what flows into its weights.
Graph block(Model model, const Sizes& s, bool masked, std::optional<double> rate, bool learns) {
  GraphBuilder b;
  const std::int64_t inner = s.heads * s.width;
  const Value x = b.placeholder("x", DType::kF64, {s.batch * s.rows, inner});
  std::vector<Value> weights, parts;
  const bool packed = model == Model::kPacked || model == Model::kPackedRows;
  for (const char* name : {"wq", "wk", "wv"}) {
    if (packed && !weights.empty()) break;
    weights.push_back(b.placeholder(name, DType::kF64, {inner, packed ? 3 * inner : inner}));
    const Value h = matmul(x, weights.back());
    if (model == Model::kPackedRows) {
      for (const Value& part : split_evenly(h, 3, 1))
        parts.push_back(transpose(reshape(part, {s.batch, s.rows, s.heads, s.width}), {0, 2, 1, 3}));
    } else if (packed) {
      const Value turned = transpose(reshape(h, {s.batch, s.rows, 3, s.heads, s.width}), {2, 0, 3, 1, 4});
      parts = split_evenly(reshape(turned, {3, s.batch * s.heads, s.rows, s.width}), 3, 0);
      for (Value& part : parts) part = squeeze(part, {0});
    } else {
      const Value turned = transpose(reshape(h, {s.batch, s.rows, s.heads, s.width}), {0, 2, 1, 3});
      parts.push_back(model == Model::kSplitHeads ? reshape(turned, {s.batch * s.heads, s.rows, s.width})
                                                  : turned);
    }
  }
  Value scores = matmul(parts[0] * 0.5, parts[1], false, true);
  if (masked) scores = scores + b.placeholder("mask", DType::kF64, {s.rows, s.rows});
  Value shares = softmax(scores);
  if (rate) shares = dropout(shares, *rate, 3);
  Value h = matmul(shares, parts[2]);
  if (model != Model::kRowsFirst && model != Model::kPackedRows)
    h = reshape(h, {s.batch, s.heads, s.rows, s.width});
  h = reshape(transpose(h, {0, 2, 1, 3}), {s.batch * s.rows, inner});
  weights.push_back(b.placeholder("wo", DType::kF64, {inner, inner}));
  const Value out = matmul(h, weights.back());
  b.result(out);
  if (learns) {
    for (const Value back : gradients(sum(square(out)), weights)) b.result(back);
  }
  return b.finish();
}

TEST_F(FuseAttention, ReadsValuesAsTheyLie) {
  for (const Model model : {Model::kRowsFirst, Model::kSplitHeads, Model::kPacked, Model::kPackedRows}) {
    for (const bool masked : {false, true}) {
      for (const std::optional<double> rate : {std::optional<double>(), std::optional(0.25)}) {
        for (const bool learns : {false, true}) {
          SCOPED_TRACE(str("model ", static_cast<int>(model), masked, rate.has_value(), learns));
          const Graph before = block(model, {}, masked, rate, learns), after = fused(before);
          const bool packed = model == Model::kPacked || model == Model::kPackedRows;
          const char* const layout = packed ? "packed=true" : "layout=\"rows_first\"";
          EXPECT_THAT(print(after), HasSubstr(layout));
          EXPECT_EQ(count(after, "attention_grad"), learns ? 1U : 0U);
          for (const char* op : {"transpose", "split", "concat", "squeeze", "expand_dims", "softmax"})
            EXPECT_EQ(count(after, op), 0U) << op;
          expect_near_meaning(before, after, 1e-10);
          if (HasFailure()) FAIL() << print(before) << "\nbecame\n" << print(after);
        }
      }
    }
  }
}

TEST_F(FuseAttention, ReadsRowsFirst) {
  expect_rewrite(kPass, R"(
      %q = placeholder() : f32[2,5,3,4]
      %k = placeholder() : f32[2,7,3,4]
      %tq = transpose[perm=[0, 2, 1, 3]](%q) : f32[2,3,5,4]
      %tk = transpose[perm=[0, 2, 1, 3]](%k) : f32[2,3,7,4]
      %rq = reshape[shape=<6,5,4>](%tq) : f32[6,5,4]
      %rk = reshape[shape=<6,7,4>](%tk) : f32[6,7,4]
      %p = matmul[transpose_b=true](%rq, %rk) : f32[6,5,7]
      %x = softmax[axis=-1](%p) : f32[6,5,7]
      %y = matmul(%x, %rk) : f32[6,5,4]
      %r = reshape[shape=<2,3,5,4>](%y) : f32[2,3,5,4]
      %t = transpose[perm=[0, 2, 1, 3]](%r) : f32[2,5,3,4]
      return %t, %tq
    )",
                 R"(
      %q = placeholder() : f32[2,5,3,4]
      %k = placeholder() : f32[2,7,3,4]
      %tq = transpose[perm=[0, 2, 1, 3]](%q) : f32[2,3,5,4]
      %y = attention[layout="rows_first", scale=1.0](%q, %k, %k) : f32[2,5,3,4], f32[2,3,5]
      return %y, %tq
    )",
                 kRounded);
}

// Others see out as it was: it is transposed for them.
TEST_F(FuseAttention, TransposesForOtherReaders) {
  const std::string before = R"(
      %q = placeholder() : f64[2,5,3,4]
      %tq = transpose[perm=[0, 2, 1, 3]](%q) : f64[2,3,5,4]
      %rq = reshape[shape=<6,5,4>](%tq) : f64[6,5,4]
      %p = matmul[transpose_b=true](%rq, %rq) : f64[6,5,5]
      %x = softmax[axis=-1](%p) : f64[6,5,5]
      %y = matmul(%x, %rq) : f64[6,5,4]
      %z = relu(%y) : f64[6,5,4]
      return %y, %z
    )";
  const Graph after = fused(parse(before));
  EXPECT_THAT(print(after), HasSubstr("rows_first"));
  EXPECT_EQ(count(after, "transpose"), 1U);
  expect_near_meaning(parse(before), after, 1e-12);
}

TEST_F(FuseAttention, KeepsTheLayoutWhereNothingIsSaved) {
  const auto layout = [&](const std::string& text) { return print(fused(parse(text))); };
  const std::string whole = R"(
      %q = placeholder() : f32[2,5,3,4]
      %k = placeholder() : f32[2,3,5,4]
      %tq = transpose[perm=[0, 2, 1, 3]](%q) : f32[2,3,5,4]
      %p = matmul[transpose_b=true](%tq, %KEY) : f32[2,3,5,5]
      %x = softmax[axis=-1](%p) : f32[2,3,5,5]
      %y = matmul(%x, %tq) : f32[2,3,5,4]
      return %y
    )";
  EXPECT_THAT(layout(with(whole, "%KEY", "%tq")), HasSubstr("rows_first"));
  EXPECT_THAT(layout(with(whole, "%KEY", "%k")), Not(HasSubstr("rows_first"))) << "k is not transposed";
  // A mask for each head of each batch, counted as one axis.
  const std::string masked = R"(
      %q = placeholder() : f32[2,5,3,4]
      %m = placeholder() : f32[6,1,5]
      %tq = transpose[perm=[0, 2, 1, 3]](%q) : f32[2,3,5,4]
      %rq = reshape[shape=<6,5,4>](%tq) : f32[6,5,4]
      %p = matmul[transpose_b=true](%rq, %rq) : f32[6,5,5]
      %a = add(%p, %m) : f32[6,5,5]
      %x = softmax[axis=-1](%a) : f32[6,5,5]
      %y = matmul(%x, %rq) : f32[6,5,4]
      return %y
    )";
  EXPECT_THAT(layout(masked), Not(HasSubstr("rows_first")));
  EXPECT_THAT(layout(masked), HasSubstr("mask=true"));
  EXPECT_THAT(layout(with(masked, "6,1,5", "1,1,5")), HasSubstr("rows_first"));
}

// A part of what flows back is read by itself: q, k and v stay apart.
TEST_F(FuseAttention, KeepsPartsApartWhoseGradientsAreReadApart) {
  GraphBuilder b;
  const Value qkv = b.placeholder("qkv", DType::kF64, {2, 5, 3, 2, 4});
  std::vector<Value> parts = split_evenly(transpose(qkv, {2, 0, 3, 1, 4}), 3, 0);
  for (Value& part : parts) part = squeeze(part, {0});
  const Value out = matmul(softmax(matmul(parts[0], parts[1], false, true)), parts[2]);
  for (const Value back : gradients(sum(square(out)), {qkv, parts[0]})) b.result(back);
  const Graph before = b.finish(), after = fused(before);
  EXPECT_THAT(print(after), HasSubstr("attention_grad"));
  EXPECT_THAT(print(after), Not(HasSubstr("packed")));
  expect_near_meaning(before, after, 1e-12);
}

// The parts in another order are not q, k and v as the op has them.
TEST_F(FuseAttention, KeepsPartsInAnotherOrder) {
  GraphBuilder b;
  const Value qkv = b.placeholder("qkv", DType::kF64, {2, 5, 3, 2, 4});
  std::vector<Value> parts = split_evenly(transpose(qkv, {2, 0, 3, 1, 4}), 3, 0);
  for (Value& part : parts) part = squeeze(part, {0});
  b.result(matmul(softmax(matmul(parts[1], parts[0], false, true)), parts[2]));
  const Graph before = b.finish(), after = fused(before);
  EXPECT_THAT(print(after), Not(HasSubstr("packed")));
  EXPECT_EQ(count(after, "attention"), 1U);
  expect_near_meaning(before, after, 1e-12);
}

// --- replicas

// In the code of a replica what flows back is a share that is yet to be summed; what is made of shares is one.
TEST_F(FuseAttention, KeepsGradientsApartInReplicas) {
  const auto in_replicas = [](const std::string& mark) {
    return R"(
      %x0 = placeholder() : f32[2,5,4]
      %x1 = placeholder() : f32[2,5,4]
      %w = placeholder() : f32[2,5,4]
      %step = replicated[replicas=2, shared=1](%w, %x0, %x1) : f32[2,5,4], f32[2,5,4] {
        region {
          %w = placeholder() : f32[2,5,4]
          %x = placeholder() : f32[2,5,4]
          %p = matmul[transpose_b=true](%w, %w) : f32[2,5,5]
          %s = softmax[axis=-1](%p) : f32[2,5,5]
          %y = matmul(%s, %w) : f32[2,5,4]
          %g = mul(%y, %x) : f32[2,5,4]
          %dp = matmul[transpose_b=true](%g, %w) : f32[2,5,5] gradient
          %ds = softmax_grad[axis=-1](%s, %dp) : f32[2,5,5])" +
           mark + R"(
          %dq = matmul(%ds, %w) : f32[2,5,4] gradient
          return %dq
        }
      }
      return %step, %step:1
    )";
  };
  expect_unchanged(kPass, in_replicas(""), kRounded);
  Graph graph = parse(in_replicas(" gradient"));
  PassRegistry::global().parse_pipeline(kPass).run(graph);
  EXPECT_THAT(print(graph), HasSubstr("= attention[scale=1.0](%w, %w, %w) : f32[2,5,4], f32[2,5]\n"));
  EXPECT_THAT(print(graph), HasSubstr("f32[2,5,4], f32[2,5,4], f32[2,5,4] gradient"));
}

// --- whole steps

Graph training_step(Model model, const Sizes& s, std::optional<double> rate) {
  GraphBuilder b;
  const std::int64_t inner = s.heads * s.width;
  const Value x = b.placeholder("x", DType::kF32, {s.batch, s.rows, inner});
  std::vector<VariableRef> variables;
  const auto weight = [&](const std::string& name, const Shape& shape) {
    const Tensor initial = testing::random_tensor({DType::kF32, shape}, variables.size() + 1);
    variables.push_back(b.variable(name, initial));
    return b.read(variables.back()) * 0.25F;
  };
  Value parts[3];
  if (model == Model::kPacked) {
    const Value h = matmul(x, weight("w_qkv", {inner, 3 * inner})) + weight("b_qkv", {3 * inner});
    const Value turned = transpose(reshape(h, {s.batch, s.rows, 3, s.heads, s.width}), {2, 0, 3, 1, 4});
    const std::vector<Value> split =
        split_evenly(reshape(turned, {3, s.batch * s.heads, s.rows, s.width}), 3, 0);
    for (std::size_t i = 0; i < 3; ++i) parts[i] = squeeze(split[i], {0});
  } else {
    for (std::size_t i = 0; i < 3; ++i) {
      const Value h = matmul(x, weight(str("w", i), {inner, inner})) + weight(str("b", i), {inner});
      parts[i] = transpose(reshape(h, {-1, s.rows, s.heads, s.width}), {0, 2, 1, 3});
    }
  }
  Tensor later = Tensor::zeros({s.rows, s.rows});
  for (std::int64_t i = 0; i < s.rows * s.rows; ++i) {
    if (i % s.rows > i / s.rows) later.data<float>()[static_cast<std::size_t>(i)] = -1e9F;
  }
  const Value scores =
      matmul(parts[0], parts[1], false, true) * (1 / std::sqrt(static_cast<double>(s.width)));
  Value shares = softmax(scores + b.constant(later, "mask"));
  if (rate) shares = dropout(shares, *rate, 7);
  Value h = reshape(matmul(shares, parts[2]), {s.batch, s.heads, s.rows, s.width});
  h = reshape(transpose(h, {0, 2, 1, 3}), {s.batch, s.rows, inner});
  const Value out = x + matmul(h, weight("mix", {inner, inner}));
  const Value loss = mean(square(out - flip(x, {1})));
  Adam(0.01).minimize(loss, variables);
  b.result(loss);
  return b.finish();
}

TEST_F(FuseAttention, TrainsAsItsPartsDo) {
  const Runtime runtime({.threads = 2});
  const Sizes sizes;
  for (const Model model : {Model::kRowsFirst, Model::kPacked}) {
    for (const std::optional<double> rate : {std::optional<double>(), std::optional(0.1)}) {
      SCOPED_TRACE(str("model ", static_cast<int>(model), rate.has_value()));
      const Graph plain = optimize(training_step(model, sizes, rate));
      const Graph one = optimize(training_step(model, sizes, rate), {.attention = {.cpu = true}});
      EXPECT_EQ(count(plain, "attention"), 0U) << "CPUs are left alone";
      EXPECT_EQ(count(one, "attention") + count(one, "attention_grad"), 2U);
      EXPECT_EQ(count(one, "transpose"), 0U) << print(one);
      const Program first = compile(plain, runtime, {.variables = std::make_shared<VariableStore>()}),
                    second = compile(one, runtime, {.variables = std::make_shared<VariableStore>()});
      const std::vector<Tensor> feeds = {
          testing::random_tensor({DType::kF32, {sizes.batch, sizes.rows, sizes.heads * sizes.width}}, 9)};
      double loss = 0;
      for (int step = 0; step < 20; ++step) {
        loss = first.run(feeds)[0].item();
        EXPECT_NEAR(second.run(feeds)[0].item(), loss, 1e-4) << "step " << step;
      }
      EXPECT_LT(loss, 4);
    }
  }
}

}  // namespace
}  // namespace lockstep
