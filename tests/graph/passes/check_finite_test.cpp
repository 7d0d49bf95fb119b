// Tests: graph/passes/check_finite.cpp, graph/ops/elementwise.cpp
#include "lockstep/graph/passes/check_finite.h"

#include <limits>
#include <memory>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/strategies/passes/place.h"
#include "lockstep/testing/fake_gpu.h"
#include "support/op_test.h"
#include "support/pass_test.h"

namespace lockstep {
namespace {

using testing::caught;
using testing::vec;
using CheckFinitePass = testing::PassTest;
constexpr const char* kPass = "check-finite";
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST_F(CheckFinitePass, ChecksWhatFeedsVariablesAndNodesGive) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[4]
      %y = exp(%x) : f32[4]
      %z = reshape[shape=<2,2>](%y) : f32[2,2]
      %n = argmax[axis=0, keepdims=false](%z) : i64[2]
      return %z, %n
    )",
                 R"(
      %x = placeholder() : f32[4]
      %x/finite = check_finite[infinite=true](%x) : f32[4]
      %y = exp(%x/finite) : f32[4]
      %y/finite = check_finite[infinite=true](%y) : f32[4]
      %z = reshape[shape=<2,2>](%y/finite) : f32[2,2]
      %n = argmax[axis=0, keepdims=false](%z) : i64[2]
      return %z, %n
    )");
}

TEST_F(CheckFinitePass, ChecksNothingTwice) {
  expect_unchanged("check-finite,check-finite(infinite=false)", R"(
      %c = constant[value=f32[2] {1, 2}]() : f32[2]
      return %c
    )");
}

// A step that divides by its feed, behind which a variable is updated.
Graph dividing_step(bool infinite) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const VariableRef w = b.variable("w", vec({1, 1}));
  const Value quotient = b.constant(vec({0, 1})) / x;
  Sgd(0.5).minimize(sum(b.read(w) * quotient), {w});
  b.result(quotient);
  Graph graph = b.finish();
  PassContext context;
  make_check_finite({.infinite = infinite})->run(graph, context);
  return graph;
}

TEST(CheckFinite, FailsTheStepAndNamesTheNodeThatMadeIt) {
  const auto store = std::make_shared<VariableStore>();
  const Program program = compile(dividing_step(true), Runtime({.threads = 1}), {.variables = store});
  program.run({{"x", vec({1, 2})}});
  const Tensor before = store->value("w");
  const auto of_nan = caught([&] { program.run({{"x", vec({0, 1})}}); });
  EXPECT_EQ(of_nan.code, ErrorCode::kInvalidArgument);
  EXPECT_NE(of_nan.what.find("check_finite: element 0 is"), std::string::npos) << of_nan.what;
  EXPECT_NE(of_nan.what.find("div/finite"), std::string::npos) << of_nan.what;
  EXPECT_NE(of_nan.what.find("check_finite_test.cpp"), std::string::npos) << of_nan.what;
  const auto of_infinity = caught([&] { program.run({{"x", vec({1, 0})}}); });
  EXPECT_NE(of_infinity.what.find("element 1 is inf"), std::string::npos) << of_infinity.what;
  const auto of_a_feed = caught([&] { program.run({{"x", vec({kNaN, 1})}}); });
  EXPECT_NE(of_a_feed.what.find("x/finite"), std::string::npos) << of_a_feed.what;
  EXPECT_TRUE(store->value("w").bit_equal(before));
}

TEST(CheckFinite, MayLetInfinityPass) {
  const Program program = compile(dividing_step(false), Runtime({.threads = 1}));
  EXPECT_NO_THROW(program.run({{"x", vec({1, 0})}}));
  EXPECT_EQ(caught([&] { program.run({{"x", vec({0, 1})}}); }).code, ErrorCode::kInvalidArgument);
}

// A device leaves word of what it refuses, and the run does not commit.
TEST(CheckFinite, FailsTheStepOfADeviceBeforeItCommits) {
  const Runtime runtime({.threads = 1, .backends = {std::make_shared<testing::FakeGpu>()}});
  Graph graph = dividing_step(true);
  PassContext context{.topology = &runtime.topology()};
  make_place({.devices = {"gpu:0"}})->run(graph, context);
  const auto store = std::make_shared<VariableStore>();
  const Program program = compile(std::move(graph), runtime, {.variables = store});
  for (int i = 0; i < 4; ++i) {  // put on streams, recorded, replayed
    program.run({{"x", vec({1, 2})}});
    program.wait();
    const Tensor before = store->value("w");
    const auto refused = caught([&] {
      program.run({{"x", vec({1, 0})}});
      program.wait();
    });
    EXPECT_EQ(refused.code, ErrorCode::kInvalidArgument) << refused.what;
    EXPECT_NE(refused.what.find("div/finite"), std::string::npos) << refused.what;
    EXPECT_TRUE(store->value("w").bit_equal(before));
  }
}

TEST(CheckFinite, TakesEveryFloatingDType) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    GraphBuilder b;
    b.result(check_finite(b.placeholder("x", dtype, {3})));
    const Tensor x = Tensor::full(dtype, {3}, 1.5);
    EXPECT_TRUE(testing::evaluate(b, {x})[0].bit_equal(x));
  }
  GraphBuilder wrong;
  EXPECT_THROW(check_finite(wrong.placeholder("n", DType::kI32, {3})), InvalidArgument);
  GraphBuilder b;
  b.result(check_finite(b.placeholder("x", DType::kF32, {3}), false));
  EXPECT_NO_THROW(testing::evaluate(b, {vec({kInfinity, 1, -kInfinity})}));
}

}  // namespace
}  // namespace lockstep
