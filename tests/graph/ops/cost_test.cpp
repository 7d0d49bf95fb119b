// Tests: graph/ops/convolution.cpp, graph/ops/indexing.cpp, graph/ops/pooling.cpp, graph/ops/random.cpp,
//        graph/ops/rules/products.cpp, graph/ops/scans.cpp, graph/ops/updates.cpp, graph/ops/variables.cpp,
//        graph/ops/fused/attention_on_cpu.cpp, graph/ops/fused/fused.cpp, graph/ops/fused/fused_matmul.cpp
// What ops say of their work: the bytes that must move, and the multiply-adds of products.
#include <string_view>

#include <gtest/gtest.h>

#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/text/text.h"

namespace lockstep {
namespace {

// Of the node that gives the first result.
Cost cost_of(std::string_view text) {
  const Graph graph = parse(text);
  const Node& node = graph.node(graph.results()[0].node);
  const std::vector<TensorSpec> inputs = input_specs(graph, node);
  const NodeView::VariableSpecs variables = variable_specs(graph);
  return node.op().cost(view_of(node, inputs, variables), node.outputs());
}

void expect_work(std::string_view text, double bytes, double multiply_adds = 0) {
  const Cost cost = cost_of(text);
  EXPECT_EQ(cost.bytes, bytes) << text;
  EXPECT_EQ(cost.multiply_adds, multiply_adds) << text;
  EXPECT_GE(cost.flops, 2 * cost.multiply_adds) << text;
}

TEST(Cost, ProductsCountTheirOperandsAndEachMultiplyAdd) {
  expect_work(R"(%a = placeholder() : f32[4,3]
%b = placeholder() : f32[3,5]
%y = matmul(%a, %b) : f32[4,5]
return %y)",
              4 * (12 + 15 + 20), 4 * 3 * 5);
  expect_work(R"(%a = placeholder() : bf16[2,3,4]
%b = placeholder() : bf16[2,5,3]
%y = matmul[transpose_a=true, transpose_b=true](%a, %b) : bf16[2,4,5]
return %y)",
              2 * (24 + 30 + 40), 2 * 4 * 3 * 5);
  expect_work(R"(%a = placeholder() : f32[4,3]
%b = placeholder() : f32[3,5]
%bias = placeholder() : f32[5]
%y = fused_matmul[bias=true, then="relu"](%a, %b, %bias) : f32[4,5]
return %y)",
              4 * (12 + 15 + 5 + 20), 4 * 3 * 5);
  expect_work(R"(%a = placeholder() : f32[4,3]
%b = placeholder() : f32[3,5]
%y = fused_matmul[sums="b"](%a, %b) : f32[4,5], f32[5]
return %y)",
              4 * (12 + 15 + 20 + 5), 4 * 3 * 5);
}

TEST(Cost, ConvolutionsMultiplyOncePerPlaceOfTheFilter) {
  expect_work(R"(%x = placeholder() : f32[2,6,6,3]
%w = placeholder() : f32[3,3,3,4]
%y = conv2d[strides=[1,1], padding="valid"](%x, %w) : f32[2,4,4,4]
return %y)",
              4 * (216 + 108 + 128), 128 * 27);
}

TEST(Cost, AttentionCountsOperandsAndNoScores) {
  // 6 heads of 5 queries and 7 keys, 4 wide: two products, backward five.
  expect_work(R"(%q = placeholder() : f32[2,3,5,4]
%k = placeholder() : f32[2,3,7,4]
%v = placeholder() : f32[2,3,7,4]
%y = attention[scale=0.5](%q, %k, %v) : f32[2,3,5,4], f32[2,3,5]
return %y)",
              4 * (120 + 168 + 168 + 120 + 30), 2 * 6 * 5 * 7 * 4);
  expect_work(R"(%q = placeholder() : f32[2,3,5,4]
%k = placeholder() : f32[2,3,7,4]
%v = placeholder() : f32[2,3,7,4]
%y = placeholder() : f32[2,3,5,4]
%logs = placeholder() : f32[2,3,5]
%g = placeholder() : f32[2,3,5,4]
%dq = attention_grad[scale=0.5](%q, %k, %v, %y, %logs, %g) : f32[2,3,5,4], f32[2,3,7,4], f32[2,3,7,4]
return %dq)",
              4 * (120 + 168 + 168 + 120 + 30 + 120 + 120 + 168 + 168), 5 * 6 * 5 * 7 * 4);
}

TEST(Cost, ElementwiseOpsAndReductionsReadAndWriteOnce) {
  expect_work(R"(%x = placeholder() : f32[8,4]
%row = placeholder() : f32[4]
%y = add(%x, %row) : f32[8,4]
return %y)",
              4 * (32 + 4 + 32));
  expect_work(R"(%x = placeholder() : f16[8,4]
%y = sum[axes=[0], keepdims=false](%x) : f16[4]
return %y)",
              2 * (32 + 4));
  expect_work(R"(%x = placeholder() : f32[8,4]
%y = top_k[k=2](%x) : f32[8,2], i64[8,2]
return %y)",
              4 * (32 + 16) + 8 * 16);
  expect_work(R"(%x = placeholder() : f32[8,4]
%y = dropout[rate=0.5, key=1](%x) : f32[8,4]
return %y)",
              4 * (32 + 32));
  expect_work(R"(%x = placeholder() : f32[1,4,4,1]
%g = placeholder() : f32[1,2,2,1]
%y = max_pool_backward[strides=[2,2], padding="valid", window=[2,2]](%x, %g) : f32[1,4,4,1]
return %y)",
              4 * (16 + 4 + 16));
}

// x and row go in, the result comes out: what lies between stays in registers.
TEST(Cost, FusedNodesCountWhatGoesInAndOut) {
  expect_work(R"(%x = placeholder() : f32[8,4]
%row = placeholder() : f32[4]
%y = fused(%x, %row) : f32[8,4] {
  region {
    %a = placeholder() : f32[8,4]
    %b = placeholder() : f32[4]
    %sum = add(%a, %b) : f32[8,4]
    %root = sqrt(%sum) : f32[8,4]
    %product = mul(%root, %a) : f32[8,4]
    return %product
  }
}
return %y)",
              4 * (32 + 4 + 32));
}

TEST(Cost, LookingUpRowsReadsThoseRows) {
  expect_work(R"(%table = placeholder() : f32[1000,4]
%at = placeholder() : i64[3]
%y = gather[axis=0](%table, %at) : f32[3,4]
return %y)",
              4 * (12 + 12) + 8 * 3);
  // A small table is read once at most, however often its rows are asked for.
  expect_work(R"(%table = placeholder() : f32[2,4]
%at = placeholder() : i64[100]
%y = gather[axis=0](%table, %at) : f32[100,4]
return %y)",
              4 * (8 + 400) + 8 * 100);
}

TEST(Cost, UpdatesReadAndWriteTheVariable) {
  expect_work(R"(var @w : f32[8,4] = f32[8,4]{*1.0}
%g = placeholder() : f32[8,4]
%rate = placeholder() : f32[]
%y = sgd[variable=@w](%g, %rate) : f32[8,4]
return %y)",
              4 * 3 * 32);
  expect_work(R"(var @w : f32[8,4] = f32[8,4]{*1.0}
%at = placeholder() : i64[2]
%g = placeholder() : f32[2,4]
%rate = placeholder() : f32[]
%y = sgd_sparse[variable=@w](%at, %g, %rate) : f32[8,4]
return %y)",
              4 * 3 * 8 + 8 * 2);
  expect_work(R"(var @w : f32[8,4] = f32[8,4]{*1.0}
%x = placeholder() : f32[8,4]
%y = assign_add[variable=@w](%x) : f32[8,4]
return %y)",
              4 * 3 * 32);
  expect_work(R"(var @w : f32[8,4] = f32[8,4]{*1.0}
%at = placeholder() : i64[2]
%x = placeholder() : f32[2,4]
%y = assign_rows[variable=@w, how="set"](%at, %x) : f32[8,4]
return %y)",
              4 * 2 * 8 + 8 * 2);
}

}  // namespace
}  // namespace lockstep
