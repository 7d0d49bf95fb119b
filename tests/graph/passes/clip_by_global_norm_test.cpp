// Tests: graph/passes/clip_by_global_norm.cpp, graph/passes/summed_gradients.cpp
#include "lockstep/graph/passes/clip_by_global_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/clipping.h"
#include "lockstep/graph/train/optimizer.h"
#include "support/pass_test.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ClipByGlobalNorm : public testing::PassTest {};

TEST_F(ClipByGlobalNorm, ScalesAllGradientsOfALevelTogether) {
  expect_rewrite("clip-by-global-norm(norm=0.5)", R"(
      var @w : f32[2]
      var @b : f32[]
      %g = placeholder() : f32[2]
      %h = placeholder() : f32[]
      %lr = constant[value=f32[]{0.1}]() : f32[]
      %u = sgd[variable=@w](%g, %lr) : f32[2]
      %v = sgd[variable=@b](%h, %lr) : f32[]
    )",
                 R"(
      var @w : f32[2]
      var @b : f32[]
      %g = placeholder() : f32[2]
      %h = placeholder() : f32[]
      %lr = constant[value=f32[]{0.1}]() : f32[]
      %clip_by_global_norm/constant_1 = constant[value=f32[]{0.5}]() : f32[]
      %clip_by_global_norm/square = square(%g) : f32[2]
      %clip_by_global_norm/sum = sum[axes=ints[], keepdims=false](%clip_by_global_norm/square) : f32[]
      %clip_by_global_norm/square_1 = square(%h) : f32[]
      %clip_by_global_norm/sum_1 = sum[axes=ints[], keepdims=false](%clip_by_global_norm/square_1) : f32[]
      %clip_by_global_norm/add = add(%clip_by_global_norm/sum, %clip_by_global_norm/sum_1) : f32[]
      %clip_by_global_norm/sqrt = sqrt(%clip_by_global_norm/add) : f32[]
      %clip_by_global_norm/constant = constant[value=f32[]{0.5}]() : f32[]
      %clip_by_global_norm/maximum = maximum(%clip_by_global_norm/sqrt, %clip_by_global_norm/constant) : f32[]
      %clip_by_global_norm/div = div(%clip_by_global_norm/constant_1, %clip_by_global_norm/maximum) : f32[]
      %clip_by_global_norm/mul = mul(%g, %clip_by_global_norm/div) : f32[2]
      %u = sgd[variable=@w](%clip_by_global_norm/mul, %lr) : f32[2]
      %clip_by_global_norm/mul_1 = mul(%h, %clip_by_global_norm/div) : f32[]
      %v = sgd[variable=@b](%clip_by_global_norm/mul_1, %lr) : f32[]
    )",
                 {.idempotent = false, .same_meaning = false});
}

TEST_F(ClipByGlobalNorm, LeavesOtherWritesAlone) {
  expect_unchanged("clip-by-global-norm", R"(
      var @w : f32[2]
      %g = placeholder() : f32[2]
      %u = assign_add[variable=@w](%g) : f32[2]
    )");
}

// The pass does what the function does, bit by bit: dense gradients and rows, two dtypes.
TEST_F(ClipByGlobalNorm, EqualsTheFunction) {
  const auto step = [](std::optional<double> norm) {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {4, 3});
    const Value rows = b.placeholder("rows", DType::kI64, {4});
    const VariableRef w = b.variable("w", testing::random_tensor({DType::kF32, {3, 2}}, 1));
    const VariableRef table = b.variable("table", testing::random_tensor({DType::kF32, {7, 2}}, 2));
    const VariableRef half = b.variable("half", testing::random_tensor({DType::kF16, {2}}, 3));
    const Value y = matmul(x, b.read(w)) * gather(b.read(table), rows) + cast(b.read(half), DType::kF32);
    const Sgd sgd(0.1);
    GradientsAndVariables grads = sgd.compute_gradients(sum(square(y)), {w, table, half});
    if (norm) grads = clip_by_global_norm(grads, *norm).gradients;
    sgd.apply_gradients(grads);
    return b.finish();
  };
  for (const double norm : {0.25, 1e6}) {
    Graph passed = step({});
    PassRegistry::global().parse_pipeline(str("clip-by-global-norm(norm=", norm, ")")).run(passed);
    testing::expect_same_meaning(step(norm), passed);
  }
}

std::string region(const std::string& nodes, int replicas = 2) {
  std::string text = R"(
      var @w : f32[2]
      var @table : f32[5]
      var @own : f32[2] [synchronization=on_read]
)";
  std::string values;
  for (int r = 0; r < replicas; ++r) {
    text += str("%x", r, " = placeholder() : f32[2]\n");
    values += str(r == 0 ? "" : ", ", "%x", r);
  }
  return text + str("%step = replicated[replicas=", replicas, ", shared=0](", values, ") {") + R"(
        region {
          %g = placeholder() : f32[2]
          %lr = constant[value=f32[]{0.1}]() : f32[]
)" + nodes +
         "}\n}\n";
}

std::string clipped(const std::string& nodes, int replicas = 2) {
  Graph graph = parse(region(nodes, replicas));
  PassRegistry::global().parse_pipeline("clip-by-global-norm").run(graph);
  return print(graph);
}

TEST_F(ClipByGlobalNorm, SumsShares) {
  const std::string text = clipped("%u = sgd[variable=@w](%g, %lr) : f32[2]");
  EXPECT_THAT(text, HasSubstr("%g/all_reduce = all_reduce[reduce=\"sum\"](%g) : f32[2]"));
  EXPECT_THAT(text, HasSubstr("square(%g/all_reduce)"));
  EXPECT_THAT(text, HasSubstr("mul(%g/all_reduce, "));
  EXPECT_THAT(clipped("%u = sgd[variable=@w](%g, %lr) : f32[2]", 1), Not(HasSubstr("all_reduce")));
}

TEST_F(ClipByGlobalNorm, GathersRows) {
  const std::string text = clipped(R"(
          %i = constant[value=i64[2]{0, 1}]() : i64[2]
          %u = sgd_sparse[variable=@table](%i, %g, %lr) : f32[5])");
  EXPECT_THAT(text, HasSubstr("%i/all_gather = all_gather[replicas=0](%i) : i64[?]"));
  EXPECT_THAT(text, HasSubstr("%g/all_gather = all_gather[replicas=0](%g) : f32[?]"));
  EXPECT_THAT(text, HasSubstr("sgd_sparse[variable=@table](%i/all_gather, %clip_by_global_norm/mul"));
}

TEST_F(ClipByGlobalNorm, DoesNotSumWhatIsSummed) {
  const std::string nodes = R"(
          %total = all_reduce[reduce="mean"](%g) : f32[2]
          %w = read[variable=@w]() : f32[2]
          %decayed = add(%total, %w) : f32[2]
          %u = sgd[variable=@w]()";
  EXPECT_THAT(clipped(nodes + "%decayed, %lr) : f32[2] after(%w)"), Not(HasSubstr("/all_reduce")));
  // Half of it is not.
  EXPECT_THAT(clipped(R"(
          %total = all_reduce[reduce="mean"](%g) : f32[2]
          %both = mul(%total, %g) : f32[2]
          %u = sgd[variable=@w](%both, %lr) : f32[2])"),
              HasSubstr("%both/all_reduce = all_reduce"));
}

TEST_F(ClipByGlobalNorm, WhatBelongsToOneReplicaStaysThere) {
  const std::string text = clipped(R"(
          %u = sgd[variable=@w](%g, %lr) : f32[2]
          %n = neg(%g) : f32[2]
          %v = sgd[variable=@own](%n, %lr) : f32[2])");
  EXPECT_THAT(text, HasSubstr("mul(%g/all_reduce, %clip_by_global_norm/div)"));
  EXPECT_THAT(text, HasSubstr("mul(%n, %clip_by_global_norm/div_1)"));
}

TEST_F(ClipByGlobalNorm, WorksInsideBranches) {
  const std::string text = clipped(R"(
          %yes = constant[value=bool[]{true}]() : bool[]
          %c = cond(%yes, %g, %lr) {
            region {
              %inner = placeholder() : f32[2]
              %rate = placeholder() : f32[]
              %u = sgd[variable=@w](%inner, %rate) : f32[2]
            }
            region {
              %inner = placeholder() : f32[2]
              %rate = placeholder() : f32[]
            }
          })");
  EXPECT_THAT(text, HasSubstr("%inner/all_reduce = all_reduce"));
  EXPECT_THAT(text, HasSubstr("sgd[variable=@w](%clip_by_global_norm/mul, %rate)"));
}

TEST_F(ClipByGlobalNorm, RefusesNormsThatAreNone) {
  for (const char* norm : {"0", "-1.0", "inf", "nan"}) {
    EXPECT_THROW(PassRegistry::global().make(str("clip-by-global-norm(norm=", norm, ")")), InvalidArgument)
        << norm;
  }
  EXPECT_EQ(make_clip_by_global_norm({.norm = 2})->to_string(), "clip-by-global-norm(norm=2)");
}

}  // namespace
}  // namespace lockstep
