// Tests: graph/ops/global.cpp
// Global reductions on one device, and what a strategy can know of them.
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/global.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/passes/common_subexpression_elimination.h"
#include "lockstep/graph/passes/constant_folding.h"
#include "lockstep/graph/passes/dead_node_elimination.h"
#include "support/gradient_check.h"
#include "support/op_test.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using testing::caught;
using testing::evaluate;
using testing::expect_gradients;
using ::testing::HasSubstr;
using testing::random_tensor;

TEST(Global, OnOneDeviceTheyAreMeanSumAndCount) {
  for (const Shape& shape : {Shape{3, 4}, Shape{}, Shape{300'000}}) {
    GraphBuilder b;
    const Value v = b.placeholder("v", DType::kF64, shape);
    b.result(global_mean(v));
    b.result(mean(v));
    b.result(global_sum(v));
    b.result(sum(v));
    b.result(global_count(v));
    b.result(global_count(v, DType::kF32));
    const std::vector<Tensor> results = evaluate(b, {random_tensor(shape, 1)});
    EXPECT_TRUE(results[0].bit_equal(results[1]));
    EXPECT_TRUE(results[2].bit_equal(results[3]));
    EXPECT_TRUE(results[4].bit_equal(Tensor::scalar(shape.num_elements())));
    EXPECT_TRUE(results[5].bit_equal(Tensor::scalar(static_cast<float>(shape.num_elements()))));
  }
}

TEST(Global, NoRowsGiveZero) {
  GraphBuilder b;
  const Value v = b.placeholder("v", DType::kF32, {kUnknown});
  const Value loss = global_mean(v);
  b.result(loss);
  b.result(gradients(loss, {v})[0]);
  b.result(global_sum(v));
  b.result(global_count(v));
  for (const Tensor& result : evaluate(b, {Tensor::zeros({0})})) {
    if (result.num_elements() == 1) {
      EXPECT_EQ(result.item(), 0);
    }
  }
}

TEST(Global, TheMeanIsAShareByTheCount) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16}) {
    GraphBuilder b;
    const Value v = b.placeholder("v", dtype, {4});
    const Value count = b.placeholder("count", DType::kI64, {});
    const Value share = b.op1("global_mean", {v, count});
    b.result(share);
    b.result(gradients(share, {v})[0]);
    const std::vector<Tensor> results =
        evaluate(b, {Tensor::full(dtype, {4}, 3), Tensor::scalar(std::int64_t{16})});
    EXPECT_EQ(results[0].item(), 0.75);
    EXPECT_TRUE(results[1].bit_equal(Tensor::full(dtype, {4}, 1.0 / 16)));
  }
}

TEST(Global, SumsBeyondF16HaveAMean) {
  GraphBuilder b;
  const Value v = b.placeholder("v", DType::kF16, {200'000});
  b.result(global_mean(v));
  b.result(gradients(global_mean(v), {v})[0]);
  const std::vector<Tensor> results = evaluate(b, {Tensor::full(DType::kF16, {200'000}, 2)});
  EXPECT_EQ(results[0].item(), 2);
  EXPECT_GT(results[1].slice(0, 1).item(), 0);
}

TEST(Global, TraitsTellWhatTheyAre) {
  const OpRegistry& ops = OpRegistry::global();
  EXPECT_TRUE(ops.get("global_count").traits.is(ReplicaRole::kSumOverReplicas));
  EXPECT_TRUE(ops.get("global_mean").traits.is(ReplicaRole::kShare));
  EXPECT_TRUE(ops.get("global_sum").traits.is(ReplicaRole::kShare));
  for (const char* name : {"global_count", "global_mean", "global_sum"}) {
    EXPECT_EQ(ops.get(name).effects, Effect::kPure) << name;
  }
}

std::size_t count_of(const Graph& graph, std::string_view op) {
  std::size_t count = 0;
  for (const Node& node : graph.nodes()) count += node.op().name == op ? 1U : 0U;
  return count;
}

TEST(Global, PassesMergeAndEraseThemButDoNotFoldThem) {
  GraphBuilder b;
  const Value v = b.constant(Tensor::full(DType::kF32, {4}, 3));
  b.result(global_mean(v));
  b.result(global_mean(v));
  global_sum(v);
  Graph graph = b.finish();
  PassContext context;
  make_constant_folding()->run(graph, context);
  EXPECT_EQ(count_of(graph, "global_mean"), 2U);
  EXPECT_EQ(count_of(graph, "global_count"), 2U);
  make_common_subexpression_elimination()->run(graph, context);
  make_dead_node_elimination()->run(graph, context);
  EXPECT_EQ(count_of(graph, "global_mean"), 1U);
  EXPECT_EQ(count_of(graph, "global_count"), 1U);
  EXPECT_EQ(count_of(graph, "global_sum"), 0U);
}

TEST(Global, RefuseWhatTheyCannotDo) {
  GraphBuilder b;
  const Value ints = b.placeholder("ints", DType::kI32, {2});
  const Value bools = b.placeholder("bools", DType::kBool, {2});
  EXPECT_THAT(caught([&] { global_mean(ints); }).what, HasSubstr("takes floating values, got i32[2]"));
  EXPECT_THAT(caught([&] { global_sum(bools); }).what, HasSubstr("has no meaning for bool"));
  EXPECT_THAT(caught([&] { global_count(ints, DType::kBool); }).what, HasSubstr("does not fit into bool"));
  EXPECT_THAT(caught([&] { reshape(ints, reshape(global_count(ints), Shape{1})); }).what,
              HasSubstr("a shape operand must follow from constants and from shapes"));
  const Value fed = b.placeholder("fed", DType::kI64, {2});
  EXPECT_THAT(caught([&] {
                b.op1("global_count", {fed}, {{"dtype", DType::kI64}});
              }).what,
              HasSubstr("a shape operand must follow from constants and from shapes"));
}

TEST(GlobalGradients, FlowThroughTheValuesAlone) {
  expect_gradients([](GraphBuilder&, std::span<const Value> x) { return global_mean(x[0] * x[0]); },
                   {random_tensor({3, 4}, 1)});
  expect_gradients([](GraphBuilder&, std::span<const Value> x) { return global_sum(x[0] * x[0]); },
                   {random_tensor({3, 4}, 1)});
}

}  // namespace
}  // namespace lockstep
