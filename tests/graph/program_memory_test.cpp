// What programs keep, and how much of it.
#include <gtest/gtest.h>

#include "lockstep/graph/builder.h"
#include "lockstep/graph/ops.h"
#include "support/program_test.h"

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

}  // namespace
}  // namespace lockstep
