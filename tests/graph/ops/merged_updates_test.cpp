// Tests: graph/ops/merged/merged_updates.cpp
// One node of many updates against the updates by themselves: to the bit, wherever they run.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/check/verifier.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/passes/merge_updates.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/strategies/passes/place.h"
#include "lockstep/testing/fake_gpu.h"
#include "support/on_card.h"
#include "support/pass_test.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr DType kMergedDTypes[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

std::vector<std::pair<std::string, std::unique_ptr<Optimizer>>> all_optimizers() {
  std::vector<std::pair<std::string, std::unique_ptr<Optimizer>>> all;
  all.emplace_back("sgd", std::make_unique<Sgd>(0.1));
  all.emplace_back("momentum", std::make_unique<Momentum>(0.1, 0.9));
  all.emplace_back("nesterov", std::make_unique<Momentum>(0.1, 0.9, true));
  all.emplace_back("adagrad", std::make_unique<Adagrad>(0.1));
  all.emplace_back("rmsprop", std::make_unique<RmsProp>(0.1));
  all.emplace_back("rmsprop_momentum", std::make_unique<RmsProp>(0.1, RmsPropOptions{.momentum = 0.9}));
  all.emplace_back("rmsprop_centered",
                   std::make_unique<RmsProp>(0.1, RmsPropOptions{.momentum = 0.9, .centered = true}));
  all.emplace_back("adam", std::make_unique<Adam>(0.1));
  all.emplace_back("adamw", std::make_unique<AdamW>(0.1));
  return all;
}

// Updates of variables of many sizes: none, one, not a multiple of any vector, more than one shard or block. The results are
// the variables as they were.
Graph step_of(const Optimizer& optimizer, DType dtype) {
  GraphBuilder b;
  const Value x = b.placeholder("x", dtype, {});
  std::vector<VariableRef> variables;
  Value loss;
  for (const std::int64_t size : {3, 0, 1, 64, 40'000, 7, 90'001, 1000}) {
    const VariableRef w = b.variable(str("w", variables.size()),
                                     testing::random_tensor({dtype, Shape{size}}, 5 + variables.size()));
    variables.push_back(w);
    const Value read = b.read(w);
    const Value part = sum(square(read) * x);
    loss = loss.valid() ? loss + part : part;
    b.result(read);
  }
  optimizer.minimize(loss, variables);
  return b.finish();
}

Graph merged(Graph graph) {
  PassContext context;
  EXPECT_EQ(make_merge_updates()->run(graph, context), PassOutcome::kChanged);
  verify(graph);
  return graph;
}

struct Trained {
  std::vector<Tensor> results;
  testing::Values variables;
};

Trained train(const Graph& graph, const Runtime& runtime, const Tensor& x, CompileOptions options = {}) {
  options.variables = std::make_shared<VariableStore>();
  const Program program = compile(graph, runtime, options);
  Trained trained;
  for (int step = 0; step < 3; ++step) trained.results = program.run(std::vector{x});
  program.wait();
  trained.variables = testing::variables_of(program.variables());
  return trained;
}

class MergedUpdates : public ::testing::TestWithParam<DType> {};

TEST_P(MergedUpdates, GiveTheBitsOfSingleOnes) {
  for (const auto& [name, optimizer] : all_optimizers()) {
    SCOPED_TRACE(name);
    const Graph apart = step_of(*optimizer, GetParam()), joined = merged(apart);
    Tensor x = Tensor::full(GetParam(), {}, 0.75);
    Interpreter first(apart), second(joined);
    for (int step = 0; step < 3; ++step) {
      const std::vector<Tensor> expected = first.run(std::vector{x});
      testing::expect_same_tensors(second.run(std::vector{x}), expected);
    }
    testing::expect_same_values(second.variables(), first.variables());
    for (const std::size_t threads : {1U, 4U}) {
      const Trained here = train(joined, Runtime({.threads = threads}), x, testing::with_lanes());
      testing::expect_same_values(here.variables, first.variables());
    }
  }
}

TEST_P(MergedUpdates, GiveTheBitsOfSingleOnesOnAFakeGpu) {
  testing::FakeGpu::add_kernels();
  const Runtime runtime({.threads = 2, .backends = {std::make_shared<testing::FakeGpu>()}});
  PassContext context{.topology = &runtime.topology()};
  for (const auto& [name, optimizer] : all_optimizers()) {
    SCOPED_TRACE(name);
    Graph apart = step_of(*optimizer, GetParam());
    make_place({.devices = {"gpu:0"}})->run(apart, context);
    Graph joined = apart;
    ASSERT_EQ(make_merge_updates()->run(joined, context), PassOutcome::kChanged);
    const Tensor x = Tensor::full(GetParam(), {}, 0.75);
    const Trained first = train(apart, runtime, x), second = train(joined, runtime, x);
    testing::expect_same_values(second.variables, first.variables);
  }
}

TEST_P(MergedUpdates, GiveTheBitsOfSingleOnesOnACard) {
  if (!testing::has_card()) GTEST_SKIP() << "this machine has no card";
  const Runtime runtime({.threads = 2});
  PassContext context{.topology = &runtime.topology()};
  for (const auto& [name, optimizer] : all_optimizers()) {
    SCOPED_TRACE(name);
    Graph apart = step_of(*optimizer, GetParam());
    make_place({.devices = {"gpu:0"}})->run(apart, context);
    Graph joined = apart;
    ASSERT_EQ(make_merge_updates()->run(joined, context), PassOutcome::kChanged);
    const Tensor x = Tensor::full(GetParam(), {}, 0.75);
    const Trained first = train(apart, runtime, x), second = train(joined, runtime, x);
    testing::expect_same_values(second.variables, first.variables);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, MergedUpdates, ::testing::ValuesIn(kMergedDTypes),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

// Not made by the pass: something reads a new value, so that all of them go to shadows.
TEST(MergedUpdatesOp, WritesShadowsWhereNewValuesAreRead) {
  const Graph graph = parse(R"(
      var @a : f32[2] = f32[2]{1.0, 2.0}
      var @b : f32[1] = f32[1]{4.0}
      %g = placeholder() : f32[2]
      %h = placeholder() : f32[1]
      %lr = constant[value=f32[]{0.5}]() : f32[]
      %m = merged_updates(%g, %h, %lr) : f32[2], f32[1] {
        region {
          %g = placeholder() : f32[2]
          %h = placeholder() : f32[1]
          %lr = placeholder() : f32[]
          %u = sgd[variable=@a](%g, %lr) : f32[2]
          %v = sgd[variable=@b](%h, %lr) : f32[1]
          return %u, %v
        }
      }
      %r = read[variable=@a]() : f32[2] after(%m)
      %y = neg(%m:1) : f32[1]
      return %r, %y
    )");
  verify(graph);
  const std::vector<Tensor> feeds = {testing::vec({2, 2}), testing::vec({4})};
  Interpreter interpreter(graph);
  const Program program = compile(graph, Runtime({.threads = 2}));
  for (int step = 0; step < 2; ++step) {
    const std::vector<Tensor> expected = interpreter.run(feeds);
    testing::expect_same_tensors(program.run(feeds), expected);
  }
  EXPECT_EQ(testing::floats(program.variables().value("a")), (std::vector<float>{-1, 0}));
  testing::expect_same_values(testing::variables_of(program.variables()), interpreter.variables());
}

TEST(MergedUpdatesOp, KeepsItsVariablesIfTheStepFails) {
  const std::string updates = R"(
      %m = merged_updates(%g, %h, %lr) : f32[2], f32[2] {
        region {
          %g = placeholder() : f32[2]
          %h = placeholder() : f32[2]
          %lr = placeholder() : f32[]
          %u = sgd[variable=@a](%g, %lr) : f32[2]
          %v = sgd[variable=@b](%h, %lr) : f32[2]
          return %u, %v
        }
      })";
  const Graph graph = parse(str(R"(
      var @a : f32[2] = f32[2]{1.0, 2.0}
      var @b : f32[2] = f32[2]{4.0, 5.0}
      %g = placeholder() : f32[2]
      %h = placeholder() : f32[2]
      %lr = placeholder() : f32[])",
                                updates, R"(
      %i = placeholder() : i64[1]
      %checked = check_indices[limit=3](%i) : i64[1]
      return %checked
    )"));
  const Program program = compile(graph, Runtime({.threads = 1}));
  const auto run = [&](std::int64_t index) {
    program.run(testing::list({testing::vec({1, 1}), testing::vec({1, 1}), Tensor::full(DType::kF32, {}, 1),
                               Tensor::from<std::int64_t>({1}, {index})}));
  };
  EXPECT_EQ(testing::caught([&] { run(3); }).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(testing::floats(program.variables().value("a")), (std::vector<float>{1, 2}));
  run(2);
  EXPECT_EQ(testing::floats(program.variables().value("a")), (std::vector<float>{0, 1}));
  EXPECT_EQ(testing::floats(program.variables().value("b")), (std::vector<float>{3, 4}));
}

TEST(MergedUpdatesOp, NamesAllItsVariables) {
  const Graph graph = merged(step_of(Adam(0.1), DType::kF32));
  for (const Node& node : graph.nodes()) {
    if (!node.op().traits.merges_updates) continue;
    const SmallVector<std::string, 1> names = updated_variables(node);
    ASSERT_EQ(names.size(), node.outputs().size());
    EXPECT_EQ(names[0], "w0");
    EXPECT_EQ(names[1], "w0/adam/m");
    EXPECT_EQ(names[3], "w1");
    EXPECT_EQ(variable_uses(node).size(), names.size());
  }
  EXPECT_EQ(print(parse(print(graph))), print(graph));
}

}  // namespace
}  // namespace lockstep
