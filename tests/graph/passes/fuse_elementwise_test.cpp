// Tests: graph/passes/fuse_elementwise.cpp, graph/passes/optimize.cpp
#include "lockstep/graph/passes/fuse_elementwise.h"

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/passes/optimize.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/train/gradients.h"
#include "support/pass_test.h"

namespace lockstep {
namespace {

using FuseElementwise = testing::PassTest;
constexpr const char* kPass = "fuse-elementwise";

TEST_F(FuseElementwise, JoinsAChainWithItsScalars) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[4,3]
      %b = placeholder() : f32[3]
      %two = constant[value=f32[]{2.0}]() : f32[]
      %m = mul(%x, %two) : f32[4,3]
      %a = add(%m, %b) : f32[4,3]
      %y = relu(%a) : f32[4,3]
      return %y
    )",
                 R"(
      %x = placeholder() : f32[4,3]
      %b = placeholder() : f32[3]
      %y = fused(%x, %b) : f32[4,3] {
        region {
          %x = placeholder() : f32[4,3]
          %b = placeholder() : f32[3]
          %two = constant[value=f32[]{2.0}]() : f32[]
          %m = mul(%x, %two) : f32[4,3]
          %a = add(%m, %b) : f32[4,3]
          %y = relu(%a) : f32[4,3]
          return %y
        }
      }
      return %y
    )");
}

TEST_F(FuseElementwise, LeavesALoneNodeAlone) {
  expect_unchanged(kPass, R"(
      %x = placeholder() : f32[4]
      %s = sum[axes=ints[], keepdims=false](%x) : f32[]
      %y = mul(%x, %s) : f32[4]
      return %y
    )");
}

TEST_F(FuseElementwise, KnowsThatABatchStaysABatch) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[?,8]
      %w = placeholder() : f32[8,4]
      %b = placeholder() : f32[4]
      %m = matmul(%x, %w) : f32[?,4]
      %a = add(%m, %b) : f32[?,4]
      %y = relu(%a) : f32[?,4]
      return %y
    )",
                 R"(
      %x = placeholder() : f32[?,8]
      %w = placeholder() : f32[8,4]
      %b = placeholder() : f32[4]
      %m = matmul(%x, %w) : f32[?,4]
      %y = fused(%m, %b) : f32[?,4] {
        region {
          %m = placeholder() : f32[?,4]
          %b = placeholder() : f32[4]
          %a = add(%m, %b) : f32[?,4]
          %y = relu(%a) : f32[?,4]
          return %y
        }
      }
      return %y
    )");
}

// A forward value and a gradient, each from a product of its own, meet.
TEST_F(FuseElementwise, KnowsThatTwoProductsHaveOneBatch) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[?,8]
      %g = placeholder() : f32[?,2]
      %w = placeholder() : f32[8,4]
      %v = placeholder() : f32[2,4]
      %m = matmul(%x, %w) : f32[?,4]
      %d = matmul(%g, %v) : f32[?,4]
      %a = relu(%m) : f32[?,4]
      %y = mul(%a, %d) : f32[?,4]
      return %y
    )",
                 R"(
      %x = placeholder() : f32[?,8]
      %g = placeholder() : f32[?,2]
      %w = placeholder() : f32[8,4]
      %v = placeholder() : f32[2,4]
      %m = matmul(%x, %w) : f32[?,4]
      %d = matmul(%g, %v) : f32[?,4]
      %y = fused(%m, %d) : f32[?,4] {
        region {
          %m = placeholder() : f32[?,4]
          %d = placeholder() : f32[?,4]
          %a = relu(%m) : f32[?,4]
          %y = mul(%a, %d) : f32[?,4]
          return %y
        }
      }
      return %y
    )");
}

TEST_F(FuseElementwise, DoesNotTakeOneAxisForAnother) {
  expect_unchanged(kPass, R"(
      %x = placeholder() : f32[?,1]
      %y = placeholder() : f32[1,?]
      %a = relu(%x) : f32[?,1]
      %b = relu(%y) : f32[1,?]
      %c = mul(%a, %b) : f32[?,?]
      return %c
    )");
}

TEST_F(FuseElementwise, LeavesWhatIsComputedInASmallerShapeOutside) {
  expect_unchanged(kPass, R"(
      %x = placeholder() : f32[4,3]
      %b = placeholder() : f32[3]
      %c = relu(%b) : f32[3]
      %y = add(%x, %c) : f32[4,3]
      return %y
    )");
}

TEST_F(FuseElementwise, LeavesWhatShapesAreComputedFrom) {
  expect_unchanged(kPass, R"(
      %x = placeholder() : f32[?,4]
      %s = shape_of(%x) : i64[2]
      %two = constant[value=i64[]{2}]() : i64[]
      %m = mul(%s, %two) : i64[2]
      %a = add(%m, %s) : i64[2]
      %y = full[dtype=f32, value=1.0](%a) : f32[?,12]
      return %y
    )");
  // Those of gradients too; what is computed for others is fused all the same.
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, kUnknown, 3});
  b.result(gradients(sum(square(mean(x, {1}))), {x})[0]);
  const Value n = slice(shape_of(x), {0}, {1});
  b.result(reshape(x, concat({n * 2 + n, b.constant(Tensor::from<std::int64_t>({1}, {-1}))}, 0)));
  const Graph graph = b.finish();
  const Tensor feed = testing::random_tensor({DType::kF32, {4, 2, 3}}, 1);
  const std::vector<Tensor> plain = Interpreter(graph).run(std::vector<Tensor>{feed});
  const std::vector<Tensor> fused =
      compile(optimize(graph), Runtime({.threads = 1})).run(std::vector<Tensor>{feed});
  ASSERT_EQ(fused.size(), plain.size());
  for (std::size_t i = 0; i < fused.size(); ++i) EXPECT_TRUE(fused[i].bit_equal(plain[i])) << i;
}

TEST_F(FuseElementwise, WritesWhatOthersReadToo) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[4]
      %a = relu(%x) : f32[4]
      %b = add(%a, %x) : f32[4]
      %c = mul(%b, %a) : f32[4]
      %s = sum[axes=ints[], keepdims=false](%a) : f32[]
      return %c, %s, %a
    )",
                 R"(
      %x = placeholder() : f32[4]
      %c = fused(%x) : f32[4], f32[4] {
        region {
          %x = placeholder() : f32[4]
          %a = relu(%x) : f32[4]
          %b = add(%a, %x) : f32[4]
          %c = mul(%b, %a) : f32[4]
          return %a, %c
        }
      }
      %s = sum[axes=ints[], keepdims=false](%c) : f32[]
      return %c:1, %s, %c
    )");
}

// a and y may not be joined: the sum needs the one and makes the other.
TEST_F(FuseElementwise, MakesNoCycleThroughOtherNodes) {
  expect_unchanged(kPass, R"(
      %x = placeholder() : f32[4]
      %a = relu(%x) : f32[4]
      %s = sum[axes=ints[], keepdims=false](%a) : f32[]
      %y = mul(%a, %s) : f32[4]
      return %y
    )");
}

TEST_F(FuseElementwise, MakesNoCycleThroughControls) {
  expect_unchanged(kPass, R"(
      var @v : f32[4]
      %x = placeholder() : f32[4]
      %a = relu(%x) : f32[4]
      %u = assign[variable=@v](%x) : f32[4] after(%a)
      %y = add(%a, %u) : f32[4]
      return %y
    )");
}

TEST_F(FuseElementwise, WhatNobodyNeedsEarlierWaitsForItsReader) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[4,4]
      %a = relu(%x) : f32[4,4]
      %n = mul(%a, %a) : f32[4,4]
      %m = matmul(%x, %x) : f32[4,4]
      %y = add(%n, %m) : f32[4,4]
      return %y
    )",
                 R"(
      %x = placeholder() : f32[4,4]
      %m = matmul(%x, %x) : f32[4,4]
      %y = fused(%x, %m) : f32[4,4] {
        region {
          %x = placeholder() : f32[4,4]
          %m = placeholder() : f32[4,4]
          %a = relu(%x) : f32[4,4]
          %n = mul(%a, %a) : f32[4,4]
          %y = add(%n, %m) : f32[4,4]
          return %y
        }
      }
      return %y
    )");
}

TEST_F(FuseElementwise, KeepsDevicesApart) {
  expect_unchanged(kPass, R"(
      %x = placeholder() : f32[4]
      %a = relu(%x) : f32[4] on "cpu:0"
      %y = add(%a, %x) : f32[4] on "cpu:1"
      return %y
    )");
  expect_unchanged(kPass, R"(
      %x = placeholder() : f32[4]
      %a = relu(%x) : f32[4] on "gpu:0"
      %y = add(%a, %x) : f32[4] on "gpu:0"
      return %y
    )");
}

TEST_F(FuseElementwise, KeepsTheDevice) {
  expect_rewrite(kPass, R"(
      %x = placeholder() : f32[4]
      %a = relu(%x) : f32[4] on "cpu:1"
      %y = add(%a, %x) : f32[4] on "cpu:1"
      return %y
    )",
                 R"(
      %x = placeholder() : f32[4]
      %y = fused(%x) : f32[4] on "cpu:1" {
        region {
          %x = placeholder() : f32[4]
          %a = relu(%x) : f32[4]
          %y = add(%a, %x) : f32[4]
          return %y
        }
      }
      return %y
    )");
}

TEST_F(FuseElementwise, NodesThatWaitForTheSameStayTogether) {
  expect_rewrite(kPass, R"(
      var @v : f32[4]
      %x = placeholder() : f32[4]
      %u = assign[variable=@v](%x) : f32[4]
      %a = relu(%x) : f32[4] after(%u)
      %b = add(%a, %x) : f32[4] after(%u)
      %c = mul(%b, %x) : f32[4]
      return %c
    )",
                 R"(
      var @v : f32[4]
      %x = placeholder() : f32[4]
      %u = assign[variable=@v](%x) : f32[4]
      %b = fused(%x) : f32[4] after(%u) {
        region {
          %x = placeholder() : f32[4]
          %a = relu(%x) : f32[4]
          %b = add(%a, %x) : f32[4]
          return %b
        }
      }
      %c = mul(%b, %x) : f32[4]
      return %c
    )");
}

TEST_F(FuseElementwise, CutsLongChains) {
  expect_rewrite("fuse-elementwise(max_nodes=2)", R"(
      %x = placeholder() : f32[4]
      %a = relu(%x) : f32[4]
      %b = add(%a, %x) : f32[4]
      %c = mul(%b, %x) : f32[4]
      return %c
    )",
                 R"(
      %x = placeholder() : f32[4]
      %b = fused(%x) : f32[4] {
        region {
          %x = placeholder() : f32[4]
          %a = relu(%x) : f32[4]
          %b = add(%a, %x) : f32[4]
          return %b
        }
      }
      %c = mul(%b, %x) : f32[4]
      return %c
    )");
  EXPECT_THROW(PassRegistry::global().make("fuse-elementwise(max_nodes=1)"), BadOptionValue);
}

// Two chains that meet at the end: each piece is a piece of a chain, not some of both.
TEST_F(FuseElementwise, CutsAlongChains) {
  GraphBuilder b;
  Value left = b.placeholder("x", DType::kF32, {4});
  Value right = b.placeholder("y", DType::kF32, {4});
  for (int i = 0; i < 50; ++i) {
    left = left * left;
    right = right + right;
  }
  b.result(left - right);
  Graph graph = b.finish();
  const Graph before = graph;
  PassRegistry::global().parse_pipeline("fuse-elementwise(max_nodes=10)").run(graph);
  testing::expect_same_meaning(before, graph);
  std::size_t mixed = 0;
  for (const Node& node : graph.nodes()) {
    if (node.regions().empty()) continue;
    EXPECT_LE(node.regions()[0].size(), 12U);
    bool has_mul = false;
    bool has_add = false;
    for (const Node& inner : node.regions()[0].nodes()) {
      has_mul = has_mul || inner.op().name == "mul";
      has_add = has_add || inner.op().name == "add";
    }
    mixed += has_mul && has_add ? 1 : 0;
  }
  EXPECT_LE(graph.size(), 15U);
  EXPECT_LE(mixed, 1U);
}

TEST_F(FuseElementwise, LooksIntoRegions) {
  expect_rewrite(kPass, R"(
      %p = placeholder() : bool[]
      %x = placeholder() : f32[4]
      %y = cond(%p, %x) : f32[4] {
        region {
          %a = placeholder() : f32[4]
          %b = relu(%a) : f32[4]
          %c = add(%b, %a) : f32[4]
          return %c
        }
        region {
          %a = placeholder() : f32[4]
          return %a
        }
      }
      return %y
    )",
                 R"(
      %p = placeholder() : bool[]
      %x = placeholder() : f32[4]
      %y = cond(%p, %x) : f32[4] {
        region {
          %a = placeholder() : f32[4]
          %c = fused(%a) : f32[4] {
            region {
              %a = placeholder() : f32[4]
              %b = relu(%a) : f32[4]
              %c = add(%b, %a) : f32[4]
              return %c
            }
          }
          return %c
        }
        region {
          %a = placeholder() : f32[4]
          return %a
        }
      }
      return %y
    )");
}

TEST_F(FuseElementwise, SaysWhereNodesComeFrom) {
  Graph graph = parse(R"(
      %x = placeholder() : f32[4]
      %a = relu(%x) : f32[4]
      %y = add(%a, %x) : f32[4]
      return %y
    )");
  const std::uint64_t relu_origin = graph.node(graph.find("a")).provenance().origin;
  const std::uint64_t add_origin = graph.node(graph.find("y")).provenance().origin;
  PassRegistry::global().parse_pipeline(kPass).run(graph);
  const Node& fused = graph.node(graph.find("y"));
  EXPECT_EQ(fused.provenance().origin, add_origin);
  EXPECT_EQ(graph.text(fused.provenance().made_by), "fuse-elementwise");
  const Graph& region = fused.regions()[0];
  EXPECT_EQ(region.node(region.find("a")).provenance().origin, relu_origin);
}

}  // namespace
}  // namespace lockstep
