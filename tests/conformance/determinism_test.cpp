// Tests: graph/interpret/interpreter.cpp, graph/run/program.cpp, graph/run/run_context.cpp
// One graph, the same bits: 1, 2 and 8 threads, inline or in lanes, any clustering, as the interpreter has
// them.
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/graph/transform/pass_registry.h"
#include "lockstep/strategies/passes/register.h"
#include "support/program_test.h"
#include "support/random_graph.h"
#include "support/sanitizers.h"
#include "support/test_devices.h"

namespace lockstep {
namespace {

using testing::compile_here;
using testing::expect_same_tensors;
using testing::expect_same_values;
using testing::feeds_for;
using testing::random_graph;
using testing::RandomGraphOptions;
using testing::repeats;
using testing::Values;
using testing::variables_of;
using testing::with_lanes;

// Programs of every kind; executors are made once.
struct Kind {
  std::string name;
  Runtime runtime;
  CompileOptions options;
  int with_lanes = 0;  // how many programs used them
};

std::vector<Kind>& kinds() {
  static std::vector<Kind> all = [] {
    std::vector<Kind> made;
    for (const std::size_t threads : {1U, 2U, 8U}) {
      const Runtime runtime({.threads = threads, .cpu_devices = 3, .seed = 11});
      made.push_back({str(threads, " threads, inline"), runtime, CompileOptions()});
      if (threads == 1) continue;
      made.push_back({str(threads, " threads, clustered"), runtime, with_lanes()});
      made.push_back({str(threads, " threads, call by call"), runtime, with_lanes(Clustering::kOff)});
    }
    return made;
  }();
  return all;
}

// Runs every kind of program `steps` times beside the interpreter.
void expect_same_bits(const Graph& graph, std::size_t steps, const std::string& what) {
  Interpreter interpreter(graph, {.seed = 11});
  std::vector<std::vector<Tensor>> expected;
  std::vector<Values> values;
  for (std::size_t step = 0; step < steps; ++step) {
    expected.push_back(interpreter.run(feeds_for(graph, step)));
    values.push_back(interpreter.variables());
  }
  if (testing::on_card()) {  // its functions have bits of their own: those of a first program
    CompileOptions first = kinds()[0].options;
    first.variables = std::make_shared<VariableStore>();
    first.replicas_in_turn = true;
    const Program program = compile_here(graph, kinds()[0].runtime, first);
    for (std::size_t step = 0; step < steps; ++step) {
      expected[step] = program.run(feeds_for(graph, step));
      values[step] = variables_of(*first.variables);
    }
  }
  for (Kind& kind : kinds()) {
    CompileOptions compile_options = kind.options;
    compile_options.variables = std::make_shared<VariableStore>();
    compile_options.replicas_in_turn = true;  // as the interpreter runs them
    const Program program = compile_here(graph, kind.runtime, compile_options);
    if (program.plan(feeds_for(graph, 0)).lanes > 1) ++kind.with_lanes;
    for (std::size_t step = 0; step < steps; ++step) {
      expect_same_tensors(program.run(feeds_for(graph, step)), expected[step]);
      expect_same_values(variables_of(*compile_options.variables), values[step]);
      ASSERT_FALSE(::testing::Test::HasFailure()) << kind.name << ", " << what << ", step " << step;
    }
    EXPECT_EQ(compile_options.variables->step(), interpreter.step());
  }
}

void expect_same_bits(const RandomGraphOptions& options, std::size_t steps) {
  expect_same_bits(random_graph(options), steps, str("seed ", options.seed));
}

// The step of several replicas, with every collective as one node or as what it becomes.
Graph replicated_graph(std::int64_t replicas, const std::string& lowering) {
  register_strategy_passes();
  GraphBuilder b;
  const VariableRef w = b.variable("w", Tensor::full(DType::kF32, {16, 16}, 0.03)),
                    bias = b.variable("bias", Tensor::full(DType::kF32, {16}, 0.1));
  std::vector<std::vector<Value>> own(1);
  for (std::int64_t r = 0; r < replicas; ++r)
    own[0].push_back(b.placeholder(str("x", r), DType::kF32, Shape{8 + r, 16}));
  const auto results = replicated(b, replicas, {}, own, [&](std::span<const Value> in) -> std::vector<Value> {
    GraphBuilder& inner = in[0].builder();
    const Value drawn = dropout(in[0], 0.25);
    const Value h = tanh(matmul(drawn, inner.read(w)) + inner.read(bias));
    const Value loss = global_mean(square(h - all_reduce(ReduceOp::kMean, mean(h))));
    Adam(0.01).minimize(loss, {w, bias});
    return {loss};
  });
  for (const Value& loss : results[0]) b.result(loss);
  Graph graph = b.finish();
  PassRegistry::global()
      .parse_pipeline(
          str("mirror-variables,insert-all-reduce,bucket-all-reduce(bytes_per_pack=1),replicate,", lowering))
      .run(graph);
  return graph;
}

TEST(Determinism, ReplicasOfOneStep) {
  if (testing::on_gpus()) GTEST_SKIP() << "of CPUs";
  for (const std::string lowering : {"prove-sync", "prove-sync,share-mirrored",
                                     "place(devices=[cpu:0,cpu:1,cpu:2]),prove-sync,"
                                     "order-collectives,lower-collectives(ops=ring),insert-copies"}) {
    expect_same_bits(replicated_graph(3, lowering), 5, lowering);
    if (HasFatalFailure()) return;
  }
}

TEST(Determinism, SmallGraphsWithRandomNumbersVariablesLambdasAndRegions) {
  for (std::uint64_t seed = 0; seed < repeats(60); ++seed) {
    expect_same_bits(
        {.seed = seed, .nodes = 5 + seed % 30, .elements = 1 + static_cast<std::int64_t>(seed % 17)}, 3);
    if (HasFatalFailure()) return;
  }
}

TEST(Determinism, WideGraphsWithoutRegions) {
  for (std::uint64_t seed = 0; seed < repeats(30); ++seed) {
    expect_same_bits({.seed = 500 + seed, .nodes = 80, .variables = 5, .regions = 0}, 3);
    if (HasFatalFailure()) return;
  }
  for (const Kind& kind : kinds()) {
    if (kind.options.inline_seconds == 0) {
      EXPECT_GT(kind.with_lanes, 0) << kind.name;
    }
  }
}

TEST(Determinism, GraphsWhoseNodesAreCutIntoShards) {
  for (std::uint64_t seed = 0; seed < repeats(12); ++seed) {
    expect_same_bits({.seed = 900 + seed,
                      .nodes = 14,
                      .elements = 150'000 + static_cast<std::int64_t>(seed),
                      .variables = 2},
                     2);
    if (HasFatalFailure()) return;
  }
}

// One program of each kind for a thousand steps, with state and random numbers: what differs from run to run
// is who runs what when.
TEST(Determinism, AThousandStepsOfOneProgram) {
  expect_same_bits({.seed = 77, .nodes = 60, .elements = 50, .variables = 4, .regions = 0}, repeats(1000));
}

// The same with nodes that are cut.
TEST(Determinism, ManyRunsOfOneProgramOfShards) {
  expect_same_bits({.seed = 78, .nodes = 30, .elements = 70'000, .variables = 2, .regions = 0}, repeats(60));
}

}  // namespace
}  // namespace lockstep
