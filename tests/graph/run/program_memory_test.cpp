// Tests: graph/run/memory_plan.cpp, graph/run/program.cpp
// What programs keep, and how much of it.
#include <gtest/gtest.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/gradients.h"
#include "support/far_memory.h"
#include "support/program_test.h"
#include "support/sanitizers.h"

namespace lockstep {
namespace {

using testing::with_lanes;

TEST(ProgramMemory, ShapesThatAlternateCostOnePlanEachAndNothingAfter) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown});
  b.result(sum(relu(x + 1) * 2));
  const Runtime runtime({.threads = 2});
  const Program program = compile(b.finish(), runtime);
  const Tensor large = Tensor::zeros({100'000});
  const Tensor small = Tensor::zeros({50'000});
  const auto run_both = [&] {
    program.run({{"x", large}});
    program.run({{"x", small}});
  };
  run_both();
  const std::int64_t before = runtime.pool(runtime.devices().front())->stats().live_bytes;
  for (int i = 0; i < 50; ++i) run_both();
  EXPECT_EQ(runtime.pool(runtime.devices().front())->stats().live_bytes, before);
  EXPECT_EQ(program.cached_plans(), 2U);
}

// Values cut into very many pieces are shared and written over all the same.
TEST(ProgramMemory, LargeValuesAreReusedInParallelPlans) {
  GraphBuilder b;
  const std::int64_t elements = 4'000'000;
  Value y = b.placeholder("x", DType::kF32, {elements}) + 1;
  for (int i = 0; i < 10; ++i) y = relu(y) + y;
  b.result(sum(y));
  const Runtime runtime({.threads = 2});
  const Program program = compile(b.finish(), runtime, with_lanes());
  const std::vector<TensorSpec> feeds{{DType::kF32, {elements}}};
  const PlanSummary plan = program.plan(feeds);
  EXPECT_GT(plan.lanes, 1U);
  EXPECT_GE(plan.planned_bytes, plan.live_set_bytes);
  EXPECT_LE(plan.planned_bytes, 2 * plan.live_set_bytes);
}

// The sums of replicas lie where the values of the first replica lay, each where its own did.
TEST(ProgramMemory, SumsOfReplicasLieWhereTheirValuesLay) {
  constexpr std::int64_t kElements = 100'000, kBytes = 4 * kElements;
  for (const char* op : {"reduce_replicas", "all_reduce"}) {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {kElements});
    const std::vector<Value> values = {x + 1, x * 2, x + 3, x * 4};  // two of each replica
    const std::vector<Value> sums =
        b.op(op, values, {{"reduce", std::string("sum")}, {"replicas", std::int64_t{2}}});
    for (const Value& one : sums) b.result(sum(relu(one)));
    const Program program = compile(b.finish(), Runtime({.threads = 2}), with_lanes());
    const Tensor feed = Tensor::full(DType::kF32, {kElements}, 1);
    const PlanSummary plan = program.plan(std::vector<Tensor>{feed});
    EXPECT_LT(plan.planned_bytes, 5 * kBytes) << op;  // the four values and what sums need
    const std::vector<Tensor> results = program.run({{"x", feed}});
    for (std::size_t i = 0; i < results.size(); ++i)
      EXPECT_EQ(results[i].data<float>()[0], static_cast<float>(6 * kElements)) << op << " " << i;
  }
}

// Values of many megabytes are cut into thousands of shards, and take each other's place all the same.
// (Nothing runs.)
TEST(ProgramMemory, SumsOfLargeReplicasLieWhereTheirValuesLay) {
  constexpr std::int64_t kElements = std::int64_t{64} << 20U, kBytes = 4 * kElements;
  for (const char* op : {"reduce_replicas", "all_reduce"}) {
    GraphBuilder b;
    const TensorSpec spec{DType::kF32, {kElements}};
    std::vector<Value> values;
    values.reserve(4);
    for (int r = 0; r < 4; ++r)
      values.push_back(b.call(str("replica_", r), {}, {&spec, 1}, [](KernelContext&) {})[0]);
    const std::vector<Value> sums =
        b.op(op, values, {{"reduce", std::string("sum")}, {"replicas", std::int64_t{4}}});
    b.call("reader", sums, {}, [](KernelContext&) {});
    const Program program = compile(b.finish(), Runtime({.threads = 2}), with_lanes());
    const PlanSummary plan = program.plan(std::span<const TensorSpec>());
    EXPECT_GT(plan.clusters, 1024U) << op;
    EXPECT_LT(plan.planned_bytes, 4 * kBytes + kBytes / 2) << op;
  }
}

// A value that stands for two tensors is read for the second after the first is written: it stays.
TEST(ProgramMemory, AValueThatIsReducedTwiceIsNotWrittenOver) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {64});
  const Value y = x + 1, z = x + 2;
  for (const Value& one : b.op("reduce_replicas", std::vector<Value>{y, y, z, x * 5},
                               {{"reduce", std::string("sum")}, {"replicas", std::int64_t{2}}}))
    b.result(one + 0.5);
  const Program program = compile(b.finish(), Runtime());
  const std::vector<Tensor> results = program.run({{"x", Tensor::full(DType::kF32, {64}, 1)}});
  EXPECT_EQ(results[0].data<float>()[63], 5.5F);
  EXPECT_EQ(results[1].data<float>()[63], 7.5F);
}

// The caller's tensors may be anywhere.
TEST(ProgramMemory, FeedsAndResultsInMemoryThatTheHostDoesNotRead) {
  const auto pool = std::make_shared<testing::FarPool>(MemoryId{3});
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  b.result(x + b.constant(Tensor::from({2}, {10.F, 20.F}).to(pool)));
  b.result(x * 2.0F);
  const Graph graph = b.finish();
  const Program program = compile(graph, Runtime());
  const Tensor far = Tensor::from({2}, {1.F, 2.F}).to(pool);
  EXPECT_EQ(testing::floats(program.run({{"x", far}})[0]), (std::vector<float>{11, 22}));
  EXPECT_EQ(testing::floats(Interpreter(graph).run({far})[0]), (std::vector<float>{11, 22}));
  std::vector<Tensor> results{Tensor::zeros({2}).to(pool), Tensor::zeros({2})};
  program.run_into(std::vector<Tensor>{far}, results);
  EXPECT_EQ(results[0].memory(), MemoryId{3});
  EXPECT_EQ(testing::floats(results[0].host()), (std::vector<float>{11, 22}));
  EXPECT_EQ(testing::floats(results[1]), (std::vector<float>{2, 4}));
}

// A bound that is never reached is kept room for all the same.
TEST(ProgramMemory, AShortageNamesTheLargestValue) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers end the process where memory is short";
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {3});
  const std::uint32_t line = SourceSite::current().line + 1;
  const Value y = while_loop(
      std::vector<Value>{x}, [](std::span<const Value> now) { return sum(now[0]) < 10.0; },
      [](std::span<const Value> now) -> std::vector<Value> { return {now[0] * 2.0}; },
      LoopOptions{std::int64_t{1} << 50})[0];
  b.result(gradients(sum(y), {x})[0]);
  const Program program = compile(b.finish(), Runtime());
  const testing::Caught error = testing::caught([&] {
    program.run({{"x", Tensor::full(DType::kF64, {3}, 1)}});
  });
  EXPECT_EQ(error.code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(error.what, ::testing::HasSubstr("out of cpu memory"));
  EXPECT_THAT(error.what, ::testing::HasSubstr("the largest value of the step is f64[1125899906842624,3]"));
  EXPECT_GE(error.place.line, line);
  EXPECT_LE(error.place.line, line + 3);
}

}  // namespace
}  // namespace lockstep
