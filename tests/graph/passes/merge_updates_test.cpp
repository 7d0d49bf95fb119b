// Tests: graph/passes/merge_updates.cpp, graph/passes/split_updates.cpp
#include "lockstep/graph/passes/merge_updates.h"

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/passes/optimize.h"
#include "lockstep/graph/passes/split_updates.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/train/optimizer.h"
#include "support/pass_test.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using MergeUpdatesTest = testing::PassTest;

TEST_F(MergeUpdatesTest, MakesOneNodeOfUpdatesByOneOp) {
  expect_rewrite("merge-updates", R"(
      var @a : f32[2]
      var @b : f32[3]
      %g = placeholder() : f32[2]
      %h = placeholder() : f32[3]
      %lr = placeholder() : f32[]
      %u = sgd[variable=@a](%g, %lr) : f32[2]
      %v = sgd[variable=@b](%h, %lr) : f32[3]
      return %lr
    )",
                 R"(
      var @a : f32[2]
      var @b : f32[3]
      %g = placeholder() : f32[2]
      %h = placeholder() : f32[3]
      %lr = placeholder() : f32[]
      %u_and_1_more = merged_updates(%g, %h, %lr) : f32[2], f32[3] {
        region {
          %g = placeholder() : f32[2]
          %h = placeholder() : f32[3]
          %lr = placeholder() : f32[]
          %u = sgd[variable=@a](%g, %lr) : f32[2]
          %v = sgd[variable=@b](%h, %lr) : f32[3]
          return %u:0, %v:0
        }
      }
      return %lr
    )");
}

TEST_F(MergeUpdatesTest, TakesSlotsStepAndOrderAlong) {
  expect_rewrite("merge-updates", R"(
      var @a : f32[2]
      var @a/m : f32[2]
      var @a/v : f32[2]
      var @b : f32[2]
      var @b/m : f32[2]
      var @b/v : f32[2]
      %g = placeholder() : f32[2]
      %lr = placeholder() : f32[]
      %t = placeholder() : i64[]
      %r = read[variable=@a]() : f32[2]
      %s = read[variable=@b/m]() : f32[2]
      %u = adam[beta1=0.9, beta2=0.99, epsilon=1e-08, m=@a/m, v=@a/v, variable=@a](%g, %lr, %t) : f32[2], f32[2], f32[2] after(%r)
      %w = adam[beta1=0.9, beta2=0.99, epsilon=1e-08, m=@b/m, v=@b/v, variable=@b](%g, %lr, %t) : f32[2], f32[2], f32[2] after(%s)
      return %r, %s
    )",
                 R"(
      var @a : f32[2]
      var @a/m : f32[2]
      var @a/v : f32[2]
      var @b : f32[2]
      var @b/m : f32[2]
      var @b/v : f32[2]
      %g = placeholder() : f32[2]
      %lr = placeholder() : f32[]
      %t = placeholder() : i64[]
      %r = read[variable=@a]() : f32[2]
      %s = read[variable=@b/m]() : f32[2]
      %u_and_1_more = merged_updates(%g, %g, %lr, %t) : f32[2], f32[2], f32[2], f32[2], f32[2], f32[2] after(%r, %s) {
        region {
          %g = placeholder() : f32[2]
          %g_1 = placeholder() : f32[2]
          %lr = placeholder() : f32[]
          %t = placeholder() : i64[]
          %u = adam[beta1=0.9, beta2=0.99, epsilon=1e-08, m=@a/m, v=@a/v, variable=@a](%g, %lr, %t) : f32[2], f32[2], f32[2]
          %w = adam[beta1=0.9, beta2=0.99, epsilon=1e-08, m=@b/m, v=@b/v, variable=@b](%g_1, %lr, %t) : f32[2], f32[2], f32[2]
          return %u:0, %u:1, %u:2, %w:0, %w:1, %w:2
        }
      }
      return %r, %s
    )");
}

// A step with two updates that are merged, unless a test puts something else in a place.
struct Pair {
  std::string first = "sgd[variable=@a](%g, %lr) : f32[2]";
  std::string second = "sgd[variable=@b](%h, %lr) : f32[2]";
  std::string before = {}, between = {}, behind = {}, results = "%lr";
  std::string a = "f32[2]", b = "f32[2]";
};

std::string text_of(const Pair& pair) {
  return str("var @a : ", pair.a, "\nvar @b : ", pair.b, R"(
      var @c : f32[2]
      var @d : f32[2]
      %g = placeholder() : f32[2]
      %h = placeholder() : f32[2]
      %wide = placeholder() : f64[2]
      %lr = placeholder() : f32[]
      %other = placeholder() : f32[]
      %row = placeholder() : i64[1]
      %rows = placeholder() : f32[1]
      )",
             pair.before, "\n%u = ", pair.first, "\n", pair.between, "\n%v = ", pair.second, "\n",
             pair.behind, "\nreturn ", pair.results, "\n");
}

TEST_F(MergeUpdatesTest, MergesThePairOfTheNextTest) {
  Graph graph = parse(text_of({}));
  PassContext context;
  EXPECT_EQ(make_merge_updates()->run(graph, context), PassOutcome::kChanged);
}

TEST_F(MergeUpdatesTest, LeavesOtherPairsApart) {
  const auto momentum = [](const char* names, const char* beta) {
    return str("momentum[momentum=", beta, ", ", names, " : f32[2], f32[2]");
  };
  const std::string a = "velocity=@c, variable=@a](%g, %lr)", b = "velocity=@d, variable=@b](%h, %lr)";
  const std::vector<std::pair<std::string, Pair>> pairs = {
      {"of two ops", {.second = momentum(b.c_str(), "0.5")}},
      {"of two attributes", {.first = momentum(a.c_str(), "0.5"), .second = momentum(b.c_str(), "0.25")}},
      {"of two rates", {.second = "sgd[variable=@b](%h, %other) : f32[2]"}},
      {"of two dtypes", {.second = "sgd[variable=@b](%wide, %lr) : f64[2]", .b = "f64[2]"}},
      {"on two devices",
       {.first = "sgd[variable=@a](%g, %lr) : f32[2] on \"cpu:0\"",
        .second = "sgd[variable=@b](%h, %lr) : f32[2] on \"cpu:1\"",
        .a = "f32[2] [device=\"cpu:0\"]",
        .b = "f32[2] [device=\"cpu:1\"]"}},
      {"away from its variable", {.second = "sgd[variable=@b](%h, %lr) : f32[2] on \"cpu:0\""}},
      {"for two replicas",
       {.first = "sgd[variable=@a](%g, %lr) : f32[2] replica 0",
        .second = "sgd[variable=@b](%h, %lr) : f32[2] replica 1"}},
      {"by rows",
       {.first = "sgd_sparse[variable=@a](%row, %rows, %lr) : f32[2]",
        .second = "sgd_sparse[variable=@b](%row, %rows, %lr) : f32[2]"}},
      {"of assignments",
       {.first = "assign[variable=@a](%g) : f32[2]", .second = "assign_add[variable=@b](%h) : f32[2]"}},
      {"whose new value is read", {.behind = "%y = relu(%u) : f32[2]", .results = "%y"}},
      {"whose new value is a result", {.results = "%u"}},
      {"one of which depends on the other",
       {.second = "sgd[variable=@b](%y, %lr) : f32[2]", .between = "%y = relu(%u) : f32[2]"}},
      {"one of which runs after the other", {.second = "sgd[variable=@b](%h, %lr) : f32[2] after(%u)"}},
      {"before a read", {.behind = "%y = read[variable=@a]() : f32[2] after(%u)", .results = "%y"}},
      {"of a variable that is written before",
       {.first = "sgd[variable=@a](%g, %lr) : f32[2] after(%old)",
        .before = "%old = assign[variable=@a](%h) : f32[2]"}},
      {"that reads a variable of the step",
       {.first = "sgd[variable=@a](%old, %lr) : f32[2]",
        .second = "sgd[variable=@b](%h, %lr) : f32[2] after(%old)",
        .before = "%old = read[variable=@b]() : f32[2]"}},
      {"alone", {.second = "relu(%h) : f32[2]", .results = "%v"}}};
  for (const auto& [what, pair] : pairs) {
    SCOPED_TRACE(what);
    expect_unchanged("merge-updates", text_of(pair));
  }
}

TEST_F(MergeUpdatesTest, LeavesRegionsAsTheyAre) {
  expect_unchanged("merge-updates", R"(
      var @a : f32[2]
      var @b : f32[2]
      %p = placeholder() : bool[]
      %g = placeholder() : f32[2]
      %lr = placeholder() : f32[]
      %c = cond(%p, %g, %lr) : f32[2] {
        region {
          %g = placeholder() : f32[2]
          %lr = placeholder() : f32[]
          %u = sgd[variable=@a](%g, %lr) : f32[2]
          %v = sgd[variable=@b](%g, %lr) : f32[2]
          return %g
        }
        region {
          %g = placeholder() : f32[2]
          %lr = placeholder() : f32[]
          return %g
        }
      }
      return %c
    )");
}

TEST_F(MergeUpdatesTest, AsksTheKernelSetOfTheDevice) {
  const std::string text = text_of({.first = "sgd[variable=@a](%g, %lr) : f32[2] on \"gpu:0\"",
                                    .second = "sgd[variable=@b](%h, %lr) : f32[2] on \"gpu:0\"",
                                    .a = "f32[2] [device=\"gpu:0\"]",
                                    .b = "f32[2] [device=\"gpu:0\"]"});
  expect_unchanged("merge-updates", text);  // a device that nothing is known of
}

TEST_F(MergeUpdatesTest, SplittingGivesTheNodesBack) {
  const std::string text = R"(
      var @a : f32[2]
      var @b : f32[2]
      %g = placeholder() : f32[2]
      %lr = placeholder() : f32[]
      %r = read[variable=@a]() : f32[2]
      %s = read[variable=@b]() : f32[2]
      %u = sgd[variable=@a](%g, %lr) : f32[2] after(%r)
      %v = sgd[variable=@b](%g, %lr) : f32[2] after(%s)
      return %r, %s
    )";
  Graph graph = parse(text);
  PassContext context;
  ASSERT_EQ(make_merge_updates()->run(graph, context), PassOutcome::kChanged);
  ASSERT_EQ(make_split_updates()->run(graph, context), PassOutcome::kChanged);
  EXPECT_EQ(print(graph), print(parse(text)));
  expect_unchanged("split-updates", text);
}

TEST_F(MergeUpdatesTest, SplittingKeepsTheOrderAroundTheNode) {
  expect_rewrite("split-updates", R"(
      var @a : f32[2]
      var @b : f32[2]
      %g = placeholder() : f32[2]
      %lr = placeholder() : f32[]
      %w = relu(%g) : f32[2]
      %m = merged_updates(%g, %g, %lr) : f32[2], f32[2] on "cpu:0" after(%w) {
        region {
          %g = placeholder() : f32[2]
          %h = placeholder() : f32[2]
          %lr = placeholder() : f32[]
          %u = sgd[variable=@a](%g, %lr) : f32[2]
          %v = sgd[variable=@b](%h, %lr) : f32[2]
          return %u, %v
        }
      }
      %r = read[variable=@a]() : f32[2] after(%m)
      return %r, %m:1
    )",
                 R"(
      var @a : f32[2]
      var @b : f32[2]
      %g = placeholder() : f32[2]
      %lr = placeholder() : f32[]
      %w = relu(%g) : f32[2]
      %u = sgd[variable=@a](%g, %lr) : f32[2] on "cpu:0" after(%w)
      %v = sgd[variable=@b](%g, %lr) : f32[2] on "cpu:0" after(%w)
      %r = read[variable=@a]() : f32[2] after(%u, %v, %w)
      return %r, %v
    )");
}

// --- of the standard passes

constexpr std::int64_t kLayers = 12;

// Layers with two variables each, and an optimizer with slots and a counter.
Graph deep_step() {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {8, 16});
  std::vector<VariableRef> variables;
  Value h = x;
  for (std::int64_t i = 0; i < kLayers; ++i) {
    const VariableRef w = b.variable(
        str("w", i), testing::random_tensor({DType::kF32, Shape{16, 16}}, static_cast<std::uint64_t>(3 + i)));
    const VariableRef bias = b.variable(
        str("b", i), testing::random_tensor({DType::kF32, Shape{16}}, static_cast<std::uint64_t>(100 + i)));
    variables.insert(variables.end(), {w, bias});
    h = tanh(matmul(h, b.read(w)) * 0.1F + b.read(bias));
  }
  const Value loss = mean(square(h));
  AdamW(0.01).minimize(loss, variables);
  b.result(loss);
  return b.finish();
}

std::size_t count_of(const Graph& graph, std::string_view op) {
  return static_cast<std::size_t>(
      std::ranges::count_if(graph.nodes(), [&](const Node& node) { return node.op().name == op; }));
}

TEST(MergeUpdates, AStepHasOneUpdateInTheSameMemory) {
  const Graph graph = deep_step();
  const Graph apart = optimize(graph, {.merge_updates = false}), merged = optimize(graph);
  EXPECT_EQ(count_of(apart, "adamw"), 2U * kLayers);
  EXPECT_EQ(count_of(apart, "merged_updates"), 0U);
  EXPECT_EQ(count_of(merged, "adamw"), 0U);
  EXPECT_EQ(count_of(merged, "merged_updates"), 1U);
  const Tensor x = testing::random_tensor({DType::kF32, Shape{8, 16}}, 1);
  for (const std::size_t threads : {1U, 4U}) {
    const Runtime runtime({.threads = threads});
    auto first = std::make_shared<VariableStore>(), second = std::make_shared<VariableStore>();
    const CompileOptions lanes = testing::with_lanes();
    CompileOptions one = threads == 1 ? CompileOptions() : lanes, two = one;
    one.variables = first;
    two.variables = second;
    const Program a = compile(apart, runtime, one), b = compile(merged, runtime, two);
    for (int step = 0; step < 3; ++step)
      testing::expect_same_tensors(b.run(testing::list({x})), a.run(testing::list({x})));
    testing::expect_same_values(testing::variables_of(*second), testing::variables_of(*first));
    EXPECT_LE(b.plan(testing::list({x})).planned_bytes, a.plan(testing::list({x})).planned_bytes);
  }
}

}  // namespace
}  // namespace lockstep
