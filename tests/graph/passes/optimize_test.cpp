// Tests: graph/passes/optimize.cpp
#include "lockstep/graph/passes/optimize.h"

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/train/gradients.h"
#include "lockstep/graph/train/optimizer.h"
#include "support/pass_test.h"
#include "support/program_test.h"
#include "support/random_graph.h"

namespace lockstep {
namespace {

TEST(Optimize, EachPassFindsItsWork) {
  const Graph graph = parse(R"(
      %x = placeholder() : f32[4]
      %two = constant[value=f32[]{2.0}]() : f32[]
      %three = constant[value=f32[]{3.0}]() : f32[]
      %five = add(%two, %three) : f32[]
      %i = identity(%x) : f32[4]
      %a = mul(%i, %five) : f32[4]
      %b = mul(%x, %five) : f32[4]
      %dead = relu(%b) : f32[4]
      %y = add(%a, %b) : f32[4]
      return %y
    )");
  EXPECT_EQ(print(optimize(graph)), R"(%x = placeholder() : f32[4]
%y = fused(%x) : f32[4] {
  region {
    %x = placeholder() : f32[4]
    %five = constant[value=f32[]{5.0}]() : f32[]
    %a = mul(%x, %five) : f32[4]
    %y = add(%a, %a) : f32[4]
    return %y
  }
}
return %y
)");
  testing::expect_same_meaning(graph, optimize(graph));
}

TEST(Optimize, LeavesNodesApartWhereAskedTo) {
  const Graph graph = parse(R"(
      %x = placeholder() : f32[4]
      %a = relu(%x) : f32[4]
      %y = add(%a, %x) : f32[4]
      return %y
    )");
  EXPECT_EQ(print(optimize(graph, {.fuse = false})), print(graph));
  EXPECT_NE(print(optimize(graph)), print(graph));
}

TEST(Optimize, PrintsAsAPipelineThatParsesBack) {
  const std::string text = standard_passes().to_string();
  EXPECT_EQ(PassRegistry::global().parse_pipeline(text).to_string(), text);
}

// A training step with two layers, on batches of that many rows.
Graph training_step(std::int64_t rows) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {rows, 3});
  const Value labels = b.placeholder("labels", DType::kI64, {rows});
  const VariableRef w1 = b.variable("w1", Tensor::full(DType::kF32, {3, 4}, 0.5));
  const VariableRef b1 = b.variable("b1", Tensor::full(DType::kF32, {4}, 0.25));
  const VariableRef w2 = b.variable("w2", Tensor::full(DType::kF32, {4, 2}, -0.5));
  const VariableRef b2 = b.variable("b2", Tensor::from<float>({2}, {0.5F, -1}));
  const Value hidden = relu(matmul(x, b.read(w1)) + b.read(b1)) * 0.5F;
  const Value loss = mean(softmax_cross_entropy(matmul(hidden, b.read(w2)) + b.read(b2), labels));
  Sgd(0.1).minimize(loss, {w1, b1, w2, b2});
  b.result(loss);
  return b.finish();
}

std::size_t count_of(const Graph& graph, std::string_view op) {
  return static_cast<std::size_t>(
      std::ranges::count_if(graph.nodes(), [&](const Node& node) { return node.op().name == op; }));
}

TEST(Optimize, FusesABackwardPassOverUnknownRowsAsOverKnownOnes) {
  const Graph known = optimize(training_step(5));
  const Graph unknown = optimize(training_step(kUnknown));
  EXPECT_EQ(count_of(unknown, "fused"), count_of(known, "fused")) << print(unknown);
  EXPECT_EQ(count_of(unknown, "sum_to"), count_of(known, "sum_to")) << print(unknown);
  const std::vector<Tensor> feeds = {Tensor::full(DType::kF32, {5, 3}, 0.75),
                                     Tensor::from<std::int64_t>({5}, {0, 1, 1, 0, 1})};
  auto known_store = std::make_shared<VariableStore>();
  auto store = std::make_shared<VariableStore>();
  Runtime runtime({.threads = 1});
  const std::vector<Tensor> expected = compile(known, runtime, {.variables = known_store}).run(feeds);
  testing::expect_same_tensors(
      compile(unknown, runtime, {.variables = store, .replicas_in_turn = true}).run(feeds), expected);
  testing::expect_same_values(testing::variables_of(*store), testing::variables_of(*known_store));
}

TEST(Optimize, KeepsTheBitsOfRandomPrograms) {
  Runtime runtime({.threads = 2});
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Graph graph =
        testing::random_graph({.seed = seed, .nodes = 30, .elements = seed % 3 == 0 ? 100'000 : 7});
    const std::vector<Tensor> feeds = testing::feeds_for(graph, seed);
    auto plain_store = std::make_shared<VariableStore>();
    auto store = std::make_shared<VariableStore>();
    Program plain = compile(graph, runtime, {.variables = plain_store, .replicas_in_turn = true});
    Program optimized = compile(optimize(graph), runtime, {.variables = store, .replicas_in_turn = true});
    for (int step = 0; step < 2; ++step) {
      testing::expect_same_tensors(optimized.run(feeds), plain.run(feeds));
      testing::expect_same_values(testing::variables_of(*store), testing::variables_of(*plain_store));
    }
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << "seed " << seed << "\n" << print(optimize(graph));
      return;
    }
  }
}

}  // namespace
}  // namespace lockstep
