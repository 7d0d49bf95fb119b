// Tests: graph/passes/fuse_products.cpp, graph/passes/optimize.cpp
#include "lockstep/graph/passes/fuse_products.h"

#include <map>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/passes/optimize.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/train/gradients.h"
#include "lockstep/graph/train/optimizer.h"
#include "support/on_card.h"
#include "support/pass_test.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using FuseProducts = testing::PassTest;
using ::testing::HasSubstr;
using ::testing::Not;
constexpr const char* kPass = "fuse-products(cpu=true)";

TEST_F(FuseProducts, TakesABias) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[4,3]
      %w = placeholder() : f32[3,5]
      %b = placeholder() : f32[5]
      %m = matmul(%x, %w) : f32[4,5]
      %y = add(%m, %b) : f32[4,5]
      return %y
    )",
                 R"(
      %x = placeholder() : f32[4,3]
      %w = placeholder() : f32[3,5]
      %b = placeholder() : f32[5]
      %y = fused_matmul[bias=true](%x, %w, %b) : f32[4,5]
      return %y
    )");
}

TEST_F(FuseProducts, TakesABiasOnTheLeftAndARelu) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : bf16[2,4,3]
      %w = placeholder() : bf16[5,3]
      %b = placeholder() : bf16[1,5]
      %m = matmul[transpose_b=true](%x, %w) : bf16[2,4,5]
      %a = add(%b, %m) : bf16[2,4,5]
      %y = relu(%a) : bf16[2,4,5]
      return %y, %y
    )",
                 R"(
      %x = placeholder() : bf16[2,4,3]
      %w = placeholder() : bf16[5,3]
      %b = placeholder() : bf16[1,5]
      %y = fused_matmul[bias=true, then="relu", transpose_b=true](%x, %w, %b) : bf16[2,4,5]
      return %y, %y
    )");
}

TEST_F(FuseProducts, TakesAReluAlone) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : f64[4,3]
      %w = placeholder() : f64[3,5]
      %m = matmul(%x, %w) : f64[4,5]
      %y = relu(%m) : f64[4,5]
      return %y
    )",
                 R"(
      %x = placeholder() : f64[4,3]
      %w = placeholder() : f64[3,5]
      %y = fused_matmul[then="relu"](%x, %w) : f64[4,5]
      return %y
    )");
}

TEST_F(FuseProducts, NeedsNoExtentOfTheBatch) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[?,3]
      %w = placeholder() : f32[3,5]
      %b = placeholder() : f32[5]
      %m = matmul(%x, %w) : f32[?,5]
      %a = add(%m, %b) : f32[?,5]
      %y = relu(%a) : f32[?,5]
      return %y
    )",
                 R"(
      %x = placeholder() : f32[?,3]
      %w = placeholder() : f32[3,5]
      %b = placeholder() : f32[5]
      %y = fused_matmul[bias=true, then="relu"](%x, %w, %b) : f32[?,5]
      return %y
    )");
}

TEST_F(FuseProducts, TakesTheSumWithAnotherValueAfterTheBias) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[4,3]
      %w = placeholder() : f32[3,5]
      %b = placeholder() : f32[5]
      %z = placeholder() : f32[4,5]
      %m = matmul(%x, %w) : f32[4,5]
      %a = add(%m, %b) : f32[4,5]
      %y = add(%z, %a) : f32[4,5]
      return %y
    )",
                 R"(
      %x = placeholder() : f32[4,3]
      %w = placeholder() : f32[3,5]
      %b = placeholder() : f32[5]
      %z = placeholder() : f32[4,5]
      %y = fused_matmul[bias=true, then="add"](%x, %w, %b, %z) : f32[4,5]
      return %y
    )");
}

// Of two products that are added, one takes the other.
TEST_F(FuseProducts, AddsTwoProducts) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[4,3]
      %w = placeholder() : f32[3,5]
      %b = placeholder() : f32[5]
      %u = placeholder() : f32[4,2]
      %v = placeholder() : f32[2,5]
      %m = matmul(%x, %w) : f32[4,5]
      %a = add(%m, %b) : f32[4,5]
      %n = matmul(%u, %v) : f32[4,5]
      %y = add(%a, %n) : f32[4,5]
      return %y
    )",
                 R"(
      %x = placeholder() : f32[4,3]
      %w = placeholder() : f32[3,5]
      %b = placeholder() : f32[5]
      %u = placeholder() : f32[4,2]
      %v = placeholder() : f32[2,5]
      %n = matmul(%u, %v) : f32[4,5]
      %y = fused_matmul[bias=true, then="add"](%x, %w, %b, %n) : f32[4,5]
      return %y
    )");
}

constexpr const char* kGradientOfRelu = R"(
      %g = placeholder() : f32[4,5]
      %w = placeholder() : f32[3,5]
      %y = placeholder() : f32[4,3]
      %m = matmul[transpose_b=true](%g, %w) : f32[4,3]
      %d = relu_grad(%m, %y) : f32[4,3]
      return %d
    )";

TEST_F(FuseProducts, TakesTheGradientOfAReluOnCpus) {
  expect_rewrite(kPass, kGradientOfRelu, R"(
      %g = placeholder() : f32[4,5]
      %w = placeholder() : f32[3,5]
      %y = placeholder() : f32[4,3]
      %d = fused_matmul[then="relu_grad", transpose_b=true](%g, %w, %y) : f32[4,3]
      return %d
    )");
  expect_unchanged(kPass, kGradientOfRelu, {.topology = "gpu:0 kernels=cpu"});
}

// The product may be what gives the mask, not what is masked.
TEST_F(FuseProducts, DoesNotTakeAReluGradFromTheWrongSide) {
  expect_unchanged(kPass, R"(
      %g = placeholder() : f32[4,5]
      %w = placeholder() : f32[3,5]
      %y = placeholder() : f32[4,3]
      %m = matmul[transpose_b=true](%g, %w) : f32[4,3]
      %d = relu_grad(%y, %m) : f32[4,3]
      return %d
    )");
}

// --- what it leaves alone

TEST_F(FuseProducts, LeavesAProductThatOthersReadToo) {
  expect_unchanged(kPass, R"(
      %x = placeholder() : f32[4,3]
      %w = placeholder() : f32[3,5]
      %b = placeholder() : f32[5]
      %m = matmul(%x, %w) : f32[4,5]
      %y = add(%m, %b) : f32[4,5]
      return %y, %m
    )");
  expect_unchanged(kPass, R"(
      %x = placeholder() : f32[4,3]
      %w = placeholder() : f32[3,5]
      %m = matmul(%x, %w) : f32[4,5]
      %y = add(%m, %m) : f32[4,5]
      return %y
    )");
}

// The bias is taken, the relu of a value that others read stays.
TEST_F(FuseProducts, EndsWhereOthersRead) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[4,3]
      %w = placeholder() : f32[3,5]
      %b = placeholder() : f32[5]
      %m = matmul(%x, %w) : f32[4,5]
      %a = add(%m, %b) : f32[4,5]
      %y = relu(%a) : f32[4,5]
      return %y, %a
    )",
                 R"(
      %x = placeholder() : f32[4,3]
      %w = placeholder() : f32[3,5]
      %b = placeholder() : f32[5]
      %a = fused_matmul[bias=true](%x, %w, %b) : f32[4,5]
      %y = relu(%a) : f32[4,5]
      return %y, %a
    )");
}

TEST_F(FuseProducts, LeavesABiasOfAnotherAxis) {
  const auto with_bias = [](const std::string& bias, const std::string& sum) {
    return R"(
      %x = placeholder() : f32[4,3]
      %w = placeholder() : f32[3,5]
      %b = placeholder() : f32)" +
           bias + R"(
      %m = matmul(%x, %w) : f32[4,5]
      %y = add(%m, %b) : f32)" +
           sum + R"(
      return %y
    )";
  };
  for (const char* bias : {"[4,1]", "[]", "[1]", "[1,1]"}) expect_unchanged(kPass, with_bias(bias, "[4,5]"));
  expect_unchanged(kPass, with_bias("[1,1,5]", "[1,4,5]"));
  expect_unchanged(kPass, with_bias("[2,4,5]", "[2,4,5]"));
}

TEST_F(FuseProducts, LeavesWhatIsNotKnownEnough) {
  // The product may have one column, which a bias of five would repeat.
  expect_unchanged(kPass, R"(
      %x = placeholder() : f32[4,3]
      %w = placeholder() : f32[3,?]
      %b = placeholder() : f32[5]
      %m = matmul(%x, %w) : f32[4,?]
      %y = add(%m, %b) : f32[4,5]
      return %y
    )");
  expect_unchanged(kPass, R"(
      %x = placeholder() : f32[4,3]
      %w = placeholder() : f32[3,?]
      %b = placeholder() : f32[?]
      %m = matmul(%x, %w) : f32[4,?]
      %y = add(%m, %b) : f32[4,?]
      return %y
    )");
  // Either may have one row.
  expect_unchanged(kPass, R"(
      %x = placeholder() : f32[?,3]
      %w = placeholder() : f32[3,5]
      %z = placeholder() : f32[?,5]
      %m = matmul(%x, %w) : f32[?,5]
      %y = add(%m, %z) : f32[?,5]
      return %y
    )");
}

TEST_F(FuseProducts, LeavesIntegers) {
  expect_unchanged(kPass, R"(
      %x = placeholder() : i32[4,3]
      %w = placeholder() : i32[3,5]
      %b = placeholder() : i32[5]
      %m = matmul(%x, %w) : i32[4,5]
      %a = add(%m, %b) : i32[4,5]
      %y = relu(%a) : i32[4,5]
      %d = matmul[transpose_a=true](%x, %y) : i32[3,5]
      %s = sum[axes=[0], keepdims=false](%y) : i32[5]
      return %d, %s
    )");
}

TEST_F(FuseProducts, LeavesNodesOfOtherDevicesAndReplicas) {
  for (const char* at : {R"( on "cpu:1")", " replica=1"}) {
    SCOPED_TRACE(at);
    Graph graph = parse(R"(
      %x = placeholder() : f32[4,3]
      %w = placeholder() : f32[3,5]
      %m = matmul(%x, %w) : f32[4,5] on "cpu:0"
      %y = relu(%m) : f32[4,5])" +
                        std::string(std::string_view(at).starts_with(" on") ? at : R"( on "cpu:0")") + R"(
      return %y
    )");
    if (std::string_view(at) == " replica=1") {
      Provenance of_one = graph.node(graph.find("y")).provenance();
      of_one.replica = 1;
      graph.set_provenance(graph.find("y"), of_one);
    }
    EXPECT_EQ(PassRegistry::global().parse_pipeline(kPass).run(graph).outcome, PassOutcome::kUnchanged);
  }
}

TEST_F(FuseProducts, LeavesNodesOfAnotherOrder) {
  expect_unchanged(kPass, R"(
      var @v : f32[4]
      %x = placeholder() : f32[4,3]
      %w = placeholder() : f32[3,5]
      %z = placeholder() : f32[4]
      %u = assign[variable=@v](%z) : f32[4]
      %m = matmul(%x, %w) : f32[4,5]
      %y = relu(%m) : f32[4,5] after(%u)
      return %y
    )");
  // Something waits for the product, and the bias for that.
  expect_unchanged(kPass, R"(
      var @b : f32[5]
      %x = placeholder() : f32[4,3]
      %w = placeholder() : f32[3,5]
      %m = matmul(%x, %w) : f32[4,5]
      %b = read[variable=@b]() : f32[5] after(%m)
      %y = add(%m, %b) : f32[4,5]
      return %y
    )");
}

// They go over memory as often as before, and hold what they all read.
TEST_F(FuseProducts, LeavesToElementWiseNodesWhatTheyTakeForNothing) {
  const char* const gelu = R"(
      %x = placeholder() : f32[4,3]
      %w = placeholder() : f32[3,5]
      %b = placeholder() : f32[5]
      %m = matmul(%x, %w) : f32[4,5]
      %a = add(%m, %b) : f32[4,5]
      %y = gelu(%a) : f32[4,5]
      return %y
    )";
  expect_unchanged(kPass, gelu);
  expect_rewrite("fuse-products(cpu=true),fuse-elementwise", gelu, R"(
      %x = placeholder() : f32[4,3]
      %w = placeholder() : f32[3,5]
      %b = placeholder() : f32[5]
      %m = matmul(%x, %w) : f32[4,5]
      %y = fused(%m, %b) : f32[4,5] {
        region {
          %m = placeholder() : f32[4,5]
          %b = placeholder() : f32[5]
          %a = add(%m, %b) : f32[4,5]
          %y = gelu(%a) : f32[4,5]
          return %y
        }
      }
      return %y
    )");
}

// The result is written in any case, and the element-wise node that comes after another product reads it there.
TEST_F(FuseProducts, KnowsThatALaterElementWiseNodeIsNoNeighbour) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[4,3]
      %w = placeholder() : f32[3,3]
      %m = matmul(%x, %w) : f32[4,3]
      %a = relu(%m) : f32[4,3]
      %n = matmul(%a, %w) : f32[4,3]
      %d = mul(%n, %a) : f32[4,3]
      return %d
    )",
                 R"(
      %x = placeholder() : f32[4,3]
      %w = placeholder() : f32[3,3]
      %a = fused_matmul[then="relu"](%x, %w) : f32[4,3]
      %n = matmul(%a, %w) : f32[4,3]
      %d = mul(%n, %a) : f32[4,3]
      return %d
    )");
}

// --- sums over rows

TEST_F(FuseProducts, TakesTheGradientOfABias) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[4,3]
      %g = placeholder() : f32[4,5]
      %s = sum[axes=[0], keepdims=false](%g) : f32[5]
      %d = matmul[transpose_a=true](%x, %g) : f32[3,5]
      return %d, %s
    )",
                 R"(
      %x = placeholder() : f32[4,3]
      %g = placeholder() : f32[4,5]
      %d = fused_matmul[sums="b", transpose_a=true](%x, %g) : f32[3,5], f32[5]
      return %d, %d:1
    )");
}

TEST_F(FuseProducts, TakesTheGradientOfTheBiasOfATransposedWeight) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[4,3]
      %g = placeholder() : f32[4,5]
      %b = placeholder() : f32[5]
      %n = shape_of(%b) : i64[1]
      %s = sum_to(%g, %n) : f32[5]
      %d = matmul[transpose_a=true](%g, %x) : f32[5,3]
      return %d, %s
    )",
                 R"(
      %x = placeholder() : f32[4,3]
      %g = placeholder() : f32[4,5]
      %b = placeholder() : f32[5]
      %d = fused_matmul[sums="a", transpose_a=true](%g, %x) : f32[5,3], f32[5]
      return %d, %d:1
    )");
}

// As gradients of batches are made: the product sees rows, the sum all axes.
TEST_F(FuseProducts, SeesThroughReshapesThatKeepRows) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[?,3]
      %g = placeholder() : f32[2,?,5]
      %r = reshape[shape=<?,5>](%g) : f32[?,5]
      %s = sum_to[shape=<5>](%g) : f32[5]
      %d = matmul[transpose_a=true](%x, %r) : f32[3,5]
      return %d, %s
    )",
                 R"(
      %x = placeholder() : f32[?,3]
      %g = placeholder() : f32[2,?,5]
      %r = reshape[shape=<?,5>](%g) : f32[?,5]
      %d = fused_matmul[sums="b", transpose_a=true](%x, %r) : f32[3,5], f32[5]
      return %d, %d:1
    )");
  // Rows of another length.
  expect_unchanged(kPass, R"(
      %x = placeholder() : f32[8,3]
      %g = placeholder() : f32[4,10]
      %r = reshape[shape=<8,5>](%g) : f32[8,5]
      %s = sum[axes=[0], keepdims=false](%g) : f32[10]
      %d = matmul[transpose_a=true](%x, %r) : f32[3,5]
      return %d, %s
    )");
}

TEST_F(FuseProducts, LeavesSumsOverOtherAxes) {
  expect_unchanged(kPass, R"(
      %x = placeholder() : f32[4,3]
      %g = placeholder() : f32[4,5]
      %p = sum[axes=[1], keepdims=false](%g) : f32[4]
      %q = sum[axes=[0], keepdims=true](%g) : f32[1,5]
      %r = sum[axes=ints[], keepdims=false](%g) : f32[]
      %t = mean[axes=[0], keepdims=false](%g) : f32[5]
      %d = matmul[transpose_a=true](%x, %g) : f32[3,5]
      return %d, %p, %q, %r, %t
    )");
  // The sum is not over k.
  expect_unchanged(kPass, R"(
      %w = placeholder() : f32[3,5]
      %g = placeholder() : f32[4,5]
      %s = sum[axes=[0], keepdims=false](%g) : f32[5]
      %d = matmul[transpose_b=true](%g, %w) : f32[4,3]
      return %d, %s
    )");
}

// The other matrix follows from the sum.
TEST_F(FuseProducts, MakesNoCycle) {
  expect_unchanged(kPass, R"(
      %g = placeholder() : f32[4,5]
      %s = sum[axes=[0], keepdims=false](%g) : f32[5]
      %x = mul(%g, %s) : f32[4,5]
      %d = matmul[transpose_a=true](%x, %g) : f32[5,5]
      return %d, %s
    )");
}

// --- gradients that replicas have yet to sum

TEST_F(FuseProducts, KeepsGradientsApartInReplicas) {
  const auto in_replicas = [](const std::string& marks) {
    return R"(
      %x0 = placeholder() : f32[4,3]
      %x1 = placeholder() : f32[4,3]
      %w = placeholder() : f32[3,5]
      %step = replicated[replicas=2, shared=1](%w, %x0, %x1) : f32[4,5], f32[4,5] {
        region {
          %w = placeholder() : f32[3,5]
          %x = placeholder() : f32[4,3]
          %m = matmul(%x, %w) : f32[4,5] gradient
          %y = relu(%m) : f32[4,5])" +
           marks + R"(
          return %y
        }
      }
      return %step, %step:1
    )";
  };
  expect_unchanged(kPass, in_replicas(""), {.same_meaning = false});
  Graph graph = parse(in_replicas(" gradient"));
  PassRegistry::global().parse_pipeline(kPass).run(graph);
  EXPECT_THAT(print(graph), HasSubstr(R"(%y = fused_matmul[then="relu"](%x, %w) : f32[4,5] gradient)"));
}

// --- where

constexpr const char* kLayer = R"(
      %x = placeholder() : f32[4,3]
      %w = placeholder() : f32[3,5]
      %m = matmul(%x, %w) : f32[4,5]
      %y = relu(%m) : f32[4,5]
      return %y
    )";
constexpr const char* kFusedLayer = R"(
      %x = placeholder() : f32[4,3]
      %w = placeholder() : f32[3,5]
      %y = fused_matmul[then="relu"](%x, %w) : f32[4,5]
      return %y
    )";

TEST_F(FuseProducts, LeavesCpusAloneUnlessAsked) {
  expect_unchanged("fuse-products", kLayer);
  expect_unchanged("fuse-products", kLayer, {.topology = "cpu:0; gpu:0 kernels=cpu"});
  expect_unchanged("fuse-products(device=\"cpu:0\")", kLayer, {.topology = "gpu:0 kernels=cpu"});
  expect_rewrite("fuse-products(device=\"cpu:0\", cpu=true)", kLayer, kFusedLayer);
}

TEST_F(FuseProducts, AsksTheKernelSetOfADevice) {
  expect_rewrite("fuse-products", kLayer, kFusedLayer, {.topology = "gpu:0 kernels=cpu; cpu:0"});
  expect_rewrite("fuse-products(device=\"gpu:0\")", kLayer, kFusedLayer,
                 {.topology = "cpu:0; gpu:0 kernels=cpu"});
  expect_unchanged("fuse-products", kLayer, {.topology = "gpu:0 kernels=unknown"});
  expect_unchanged("fuse-products(device=\"gpu:1\")", kLayer, {.topology = "cpu:0; gpu:0 kernels=cpu"});
  EXPECT_ANY_THROW(make_fuse_products({.device = "a place"}));
  Graph graph = parse(kLayer);
  for (const char* name : {"m", "y"}) graph.set_device(graph.find(name), "gpu:0");
  const Topology topology = Topology::parse("cpu:0; gpu:0 kernels=cpu");
  PassContext context{.topology = &topology};
  EXPECT_EQ(PassRegistry::global().parse_pipeline("fuse-products").run(graph, context).outcome,
            PassOutcome::kChanged);
  EXPECT_EQ(graph.node(graph.find("y")).device(), "gpu:0");
}

TEST_F(FuseProducts, LooksIntoRegions) {
  expect_rewrite(kPass, R"(
      %p = placeholder() : bool[]
      %x = placeholder() : f32[3,3]
      %y = cond(%p, %x) : f32[3,3] {
        region {
          %x = placeholder() : f32[3,3]
          %m = matmul(%x, %x) : f32[3,3]
          %y = relu(%m) : f32[3,3]
          return %y
        }
        region {
          %x = placeholder() : f32[3,3]
          return %x
        }
      }
      return %y
    )",
                 R"(
      %p = placeholder() : bool[]
      %x = placeholder() : f32[3,3]
      %y = cond(%p, %x) : f32[3,3] {
        region {
          %x = placeholder() : f32[3,3]
          %y = fused_matmul[then="relu"](%x, %x) : f32[3,3]
          return %y
        }
        region {
          %x = placeholder() : f32[3,3]
          return %x
        }
      }
      return %y
    )");
}

TEST_F(FuseProducts, SaysWhereNodesComeFrom) {
  Graph graph = parse(kLayer);
  const std::uint64_t origin = graph.node(graph.find("y")).provenance().origin;
  const SourceSite site = graph.node(graph.find("y")).site();
  PassRegistry::global().parse_pipeline(kPass).run(graph);
  const Node& fused = graph.node(graph.find("y"));
  EXPECT_EQ(fused.provenance().origin, origin);
  EXPECT_EQ(fused.site().line, site.line);
  EXPECT_EQ(graph.text(fused.provenance().made_by), "fuse-products");
}

// --- whole steps

Graph training_step(std::int64_t rows) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {rows, 3});
  const Value labels = b.placeholder("labels", DType::kI64, {rows});
  std::vector<VariableRef> variables;
  const auto weight = [&](const std::string& name, const Shape& shape) {
    variables.push_back(b.variable(name, testing::random_tensor({DType::kF32, shape}, variables.size())));
    return b.read(variables.back());
  };
  const Value first = relu(matmul(x, weight("w1", {3, 8})) + weight("b1", {8}));
  const Value second =
      first + matmul(gelu(matmul(first, weight("w2", {8, 16})) + weight("b2", {16})), weight("w3", {16, 8})) +
      weight("b3", {8});
  const Value third = relu(matmul(second, weight("w4", {6, 8}), false, true) + weight("b4", {6}));
  const Value loss =
      mean(softmax_cross_entropy(matmul(third, weight("w5", {6, 4})) + weight("b5", {4}), labels));
  Sgd(0.1).minimize(loss, variables);
  b.result(loss);
  return b.finish();
}

TEST_F(FuseProducts, TrainsWithTheSameBitsOnCpus) {
  const Runtime runtime({.threads = 2});
  for (const std::int64_t rows : {std::int64_t{12}, kUnknown}) {
    const Graph plain = optimize(training_step(rows));
    const Graph fused = optimize(training_step(rows), {.products = {.cpu = true}});
    EXPECT_THAT(print(plain), Not(HasSubstr("fused_matmul")));
    EXPECT_THAT(print(fused), HasSubstr(R"(fused_matmul[bias=true, then="relu", transpose_b=true])"));
    EXPECT_THAT(print(fused), HasSubstr(R"(fused_matmul[sums="b", transpose_a=true])"));
    EXPECT_THAT(print(fused), HasSubstr(R"(fused_matmul[sums="a", transpose_a=true])"));
    if (rows != kUnknown) {
      EXPECT_THAT(print(fused), Not(HasSubstr("sum_to")));
    }
    EXPECT_THAT(print(fused), HasSubstr("gelu(")) << "is taken by fuse-elementwise";
    auto plain_store = std::make_shared<VariableStore>(), fused_store = std::make_shared<VariableStore>();
    const Program first = compile(plain, runtime, {.variables = plain_store});
    const Program second = compile(fused, runtime, {.variables = fused_store});
    const std::vector<Tensor> feeds = {
        testing::random_tensor({DType::kF32, {12, 3}}, 9),
        Tensor::from<std::int64_t>({12}, {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3})};
    for (int step = 0; step < 3; ++step) testing::expect_same_tensors(second.run(feeds), first.run(feeds));
    testing::expect_same_values(testing::variables_of(*fused_store), testing::variables_of(*plain_store));
  }
}

// The product's factor has its rows in one axis, the sum's in two.
TEST_F(FuseProducts, SumsTheRowsOfBatchesWithTheSameBits) {
  for (const Shape& shape : {Shape{4, 50, 16}, Shape{1, 700, 16}, Shape{90, 200, 16}, Shape{3, 0, 16}}) {
    for (const std::int64_t n : {std::int64_t{24}, std::int64_t{1}}) {
      SCOPED_TRACE(str(shape, " to ", n));
      GraphBuilder b;
      const Value x = b.placeholder("x", DType::kF32, shape), w = b.placeholder("w", DType::kF32, {16, n}),
                  bias = b.placeholder("bias", DType::kF32, {n});
      for (const Value back : gradients(sum(square(matmul(x, w) + bias)), {w, bias})) b.result(back);
      const Graph before = b.finish();
      Graph after = before;
      PassRegistry::global().parse_pipeline(kPass).run(after);
      EXPECT_THAT(print(after), HasSubstr("sums=\"b\""));
      testing::expect_same_meaning(before, after);
    }
  }
}

TEST_F(FuseProducts, TrainsOnACardAsOnTheCpu) {
  const std::vector<Tensor> feeds = {testing::random_tensor({DType::kF32, {12, 3}}, 9),
                                     Tensor::from<std::int64_t>({12}, {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3})};
  testing::expect_same_on_card(optimize(training_step(12), {.products = {.cpu = true}}), feeds);
}

// Values of one shape and vectors along both axes: products, what may follow them, sums, order.
Graph random_graph(std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random()) % n; };
  GraphBuilder b;
  std::vector<Value> matrices = {b.placeholder("x", DType::kF32, {4, 4}),
                                 b.placeholder("y", DType::kF32, {4, 4})};
  std::vector<Value> vectors = {b.placeholder("b", DType::kF32, {4})};
  const VariableRef v = b.variable("v", Tensor::full(DType::kF32, {4}, 0.5));
  const auto matrix = [&] {
    return matrices[matrices.size() - 1 - below(std::min<std::size_t>(matrices.size(), 4))];
  };
  const auto vector = [&] { return vectors[below(vectors.size())]; };
  for (int i = 0; i < 30; ++i) {
    switch (below(11)) {
      case 0:
      case 1:
      case 2: {
        const Value a = matrix(), small = matrix() * 0.25F;
        const bool ta = below(2) == 0, tb = below(2) == 0;
        matrices.push_back(below(2) == 0 ? matmul(a, small, ta, tb) : matmul(small, a, ta, tb));
        break;
      }
      case 3: matrices.push_back(matrices.back() + vector()); break;
      case 4: matrices.push_back(relu(matrices.back())); break;
      case 5: matrices.push_back(relu_grad(matrix(), matrix())); break;
      case 6: matrices.push_back(matrix() + matrix()); break;
      case 7:
      case 8:
      case 9: vectors.push_back(sum(matrix(), {static_cast<std::int64_t>(below(2))}) * 0.0625F); break;
      default:
        if (below(2) == 0) {
          b.assign(v, vector());
        } else {
          vectors.push_back(b.read(v));
        }
    }
  }
  for (int i = 0; i < 3; ++i) b.result(matrix());
  b.result(vectors.back());
  return b.finish();
}

TEST_F(FuseProducts, KeepsTheMeaningOfRandomGraphs) {
  std::map<std::string, int> made;
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    const Graph before = random_graph(seed);
    Graph after = before;
    PassRegistry::global()
        .parse_pipeline("dead-node-elimination,fuse-products(cpu=true),fuse-elementwise")
        .run(after);
    for (const Node& node : after.nodes()) {
      if (node.op().name != "fused_matmul") continue;
      if (node.find<bool>("bias") != nullptr) ++made["bias"];
      for (const char* name : {"then", "sums"}) {
        if (const auto* word = node.find<std::string>(name)) ++made[str(name, " ", *word)];
      }
    }
    testing::expect_same_meaning(before, after, seed);
    if (HasFailure()) FAIL() << "seed " << seed << "\n" << print(before) << "\nbecame\n" << print(after);
  }
  for (const char* form : {"bias", "then relu", "then relu_grad", "then add", "sums a", "sums b"})
    EXPECT_GT(made[form], 5) << form << ": the graphs give the pass too little to do";
}

}  // namespace
}  // namespace lockstep
