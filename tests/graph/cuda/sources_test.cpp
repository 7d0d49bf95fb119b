// Tests: graph/cuda/elementwise.cpp, graph/cuda/elementwise_source.cpp, graph/cuda/jit.cpp, graph/cuda/prelude.cpp,
//        graph/cuda/toolkit_libraries.cpp, graph/cuda/types.cpp, graph/cuda/moves.cpp, graph/cuda/copies.cpp, graph/cuda/random.cpp,
//        graph/cuda/rows/reductions.cpp, graph/cuda/rows/softmax.cpp, graph/cuda/rows/layer_norm.cpp,
//        graph/cuda/rows/scans.cpp, graph/cuda/rows/rows.cpp, graph/cuda/indices/indexing.cpp,
//        graph/cuda/indices/scatter.cpp, graph/cuda/indices/sorted_rows.cpp, graph/cuda/products/matmul.cpp,
//        graph/cuda/products/windows.cpp, graph/cuda/products/pooling.cpp, graph/cuda/products/convolution.cpp,
//        graph/cuda/products/product.cpp, graph/cuda/products/attention.cpp, graph/cuda/products/attention_source.cpp,
//        graph/cuda/updates/merged_updates.cpp
// The kernels that are generated compile, on machines without a card too.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/cuda/internal/jit.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/passes/merge_updates.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/graph/train/gradients.h"
#include "lockstep/graph/train/optimizer.h"
#include "support/program_test.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using internal::cuda::collect_sources;
using internal::cuda::compile_source;

constexpr int kCapability = 90;
constexpr std::size_t kMostShown = 2000;  // characters of warnings
constexpr DType kFloating[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

// Of all nodes that have a kernel for cards.
std::set<std::string> sources_of(const Graph& graph) {
  std::vector<std::string> sources;
  const NodeView::VariableSpecs variables = variable_specs(graph);
  collect_sources(&sources);
  for (const Node& node : graph.nodes()) {
    const KernelDef* const kernel = OpRegistry::global().kernel(node.op(), "cuda");
    if (kernel == nullptr) continue;
    const std::vector<TensorSpec> inputs = input_specs(graph, node);
    const NodeView view = view_of(node, inputs, variables);
    static_cast<void>(kernel->make(view, node.outputs()));
  }
  collect_sources(nullptr);
  return {sources.begin(), sources.end()};
}

class CudaSources : public ::testing::Test {
 protected:
  void SetUp() override { setenv("LOCKSTEP_CACHE", "", 1); }  // none
  void TearDown() override { unsetenv("LOCKSTEP_CACHE"); }

  // Returns what the compiler warns of.
  static std::string expect_compiles(const Graph& graph, std::size_t at_least) {
    const std::set<std::string> sources = sources_of(graph);
    EXPECT_GE(sources.size(), at_least);
    std::string all;
    for (const std::string& source : sources) {
      std::string warnings;
      EXPECT_FALSE(compile_source(source, kCapability, &warnings).empty());
      all += warnings;
    }
    return all.substr(0, kMostShown);
  }
};

TEST_F(CudaSources, OfElementWiseOps) {
  GraphBuilder b;
  std::size_t ops = 0, placeholders = 0;
  for (const std::string& name : OpRegistry::global().names()) {
    const OpDef& op = OpRegistry::global().get(name);
    if (op.source.empty()) continue;
    ++ops;
    std::vector<Attribute> attributes;
    if (name == "clip") attributes = {{"low", -1.0}, {"high", 2.0}};
    if (name == "check_finite") attributes = {{"infinite", true}};
    bool taken = false;
    for (const DType dtype : kAllDTypes) {
      if (name == "cast") attributes = {{"dtype", dtype}};
      for (const std::vector<DType>& inputs :
           {std::vector{dtype}, std::vector{dtype, dtype}, std::vector{DType::kBool, dtype, dtype}}) {
        std::vector<Value> values;
        for (const DType input : inputs)
          values.push_back(b.placeholder(str("x", placeholders++), input, {2, 3}));
        try {
          b.result(b.op(name, values, attributes)[0]);
          taken = true;
        } catch (const InvalidArgument&) {  // of another number of inputs, or of other dtypes
        }
      }
    }
    EXPECT_TRUE(taken) << name;
  }
  EXPECT_GE(ops, 45U);
  expect_compiles(b.finish(), 200);
}

TEST_F(CudaSources, OfCastsBetweenAllDTypes) {
  GraphBuilder b;
  for (const DType from : kAllDTypes) {
    const Value x = b.placeholder(str("x", static_cast<int>(from)), from, {5});
    for (const DType to : kAllDTypes) {
      if (from != to) b.result(cast(x, to));
    }
  }
  expect_compiles(b.finish(), 56);
}

TEST_F(CudaSources, OfBroadcasts) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {4, 1, 6}), y = b.placeholder("y", DType::kF32, {5, 1}),
              one = b.placeholder("one", DType::kF32, {});
  b.result(x + y);
  b.result(x * one);
  b.result(where(x < y, x, one));
  expect_compiles(b.finish(), 4);
}

TEST_F(CudaSources, OfConstantsInFusedNodes) {
  for (const DType dtype : kAllDTypes) {
    std::string few = "inf, -inf, nan, -1.5";
    if (is_integer(dtype)) few = dtype == DType::kU8 ? "0, 1, 254, 255" : "0, 1, -1, -2147483648";
    if (dtype == DType::kI64) few = "0, 1, -1, -9223372036854775808";
    if (dtype == DType::kBool) few = "true, false, false, true";
    const Graph graph = parse(
        str("%x = placeholder() : ", dtype, "[3,4]\n%y = fused(%x) : bool[3,4], bool[3,4], ", dtype,
            "[4] {\n  region {\n    %a = placeholder() : ", dtype, "[3,4]\n    %c = constant[value=", dtype,
            "[4]{", few, "}]() : ", dtype, "[4]\n    %d = constant[value=", dtype, "[3,1]{",
            few.substr(0, few.rfind(',')), "}]() : ", dtype, "[3,1]\n    %b = equal(%a, %c) : bool[3,4]\n",
            "    %e = equal(%a, %d) : bool[3,4]\n    return %b, %e, %c\n  }\n}\nreturn %y\n"));
    EXPECT_EQ(expect_compiles(graph, 2), "");
  }
}

// One of the most elements that a kernel takes.
TEST_F(CudaSources, OfALargeConstantInAFusedNode) {
  for (const DType dtype : {DType::kF64, DType::kI32}) {
    std::string elements;
    for (int i = 0; i < 4096; ++i)
      elements += str(i == 0 ? "" : ",", i * 1000, dtype == DType::kF64 ? ".25" : "");
    const Graph graph =
        parse(str("%x = placeholder() : ", dtype, "[9,4096]\n%y = fused(%x) : ", dtype,
                  "[9,4096] {\n  region {\n    %a = placeholder() : ", dtype,
                  "[9,4096]\n    %c = constant[value=", dtype, "[4096]{", elements, "}]() : ", dtype,
                  "[4096]\n    %b = add(%a, %c) : ", dtype, "[9,4096]\n    return %b\n  }\n}\nreturn %y\n"));
    EXPECT_EQ(expect_compiles(graph, 1), "");
  }
}

TEST_F(CudaSources, OfReductionsSoftmaxAndProducts) {
  GraphBuilder b;
  for (const DType dtype : kAllDTypes) {
    const Value x = b.placeholder(str("x", static_cast<int>(dtype)), dtype, {70, 3, 1000});
    for (const char* op : {"sum", "mean", "max", "min", "prod", "any", "all", "logsumexp"}) {
      for (const std::vector<std::int64_t>& axes : {std::vector<std::int64_t>{}, {1}, {0, 2}, {2}}) {
        try {
          b.result(b.op1(op, {x}, {{"axes", axes}, {"keepdims", false}}));
        } catch (const InvalidArgument&) {
        }
      }
    }
  }
  for (const DType dtype : kFloating) {
    const Value x = b.placeholder(str("logits", static_cast<int>(dtype)), dtype, {9, 11});
    const Value classes = b.placeholder(str("classes", static_cast<int>(dtype)), DType::kI32, {9});
    const Value gamma = b.placeholder(str("gamma", static_cast<int>(dtype)), dtype, {11});
    b.result(gradients(sum(square(layer_norm(x, gamma, gamma))), {gamma})[0]);
    const Value loss = sum(softmax_cross_entropy(x, classes)) + sum(softmax_cross_entropy(x, softmax(x))) +
                       sum(log_softmax(x, 0));
    b.result(loss);
    for (const Value back : gradients(loss, {x})) b.result(back);
  }
  const Value i = b.placeholder("i", DType::kI32, {4, 5});
  b.result(matmul(i, i, false, true));
  expect_compiles(b.finish(), 100);
}

// What is done after a product where cuBLASLt does not do it.
TEST_F(CudaSources, OfWhatFollowsProducts) {
  GraphBuilder b;
  const auto text = [](const char* name, const char* value) { return Attribute{name, std::string(value)}; };
  for (const DType dtype : kFloating) {
    const auto name = [&](const char* prefix) { return str(prefix, static_cast<int>(dtype)); };
    const Value x = b.placeholder(name("x"), dtype, {6, 4}), w = b.placeholder(name("w"), dtype, {4, 5}),
                bias = b.placeholder(name("bias"), dtype, {5}), z = b.placeholder(name("z"), dtype, {6, 5});
    b.result(b.op1("fused_matmul", {x, w, bias}, {{"bias", true}}));
    b.result(b.op1("fused_matmul", {x, w}, {text("then", "relu")}));
    b.result(b.op1("fused_matmul", {x, w, bias}, {{"bias", true}, text("then", "relu")}));
    for (const char* then : {"relu_grad", "add"}) {
      b.result(b.op1("fused_matmul", {x, w, z}, {text("then", then)}));
      b.result(b.op1("fused_matmul", {x, w, bias, z}, {{"bias", true}, text("then", then)}));
    }
    for (const char* sums : {"a", "b"})
      b.result(b.op("fused_matmul", std::vector{x, w}, {text("sums", sums)})[1]);
  }
  expect_compiles(b.finish(), 32);
}

TEST_F(CudaSources, OfAttention) {
  GraphBuilder b;
  const auto add = [&](DType dtype, std::int64_t width, bool packed, std::vector<Attribute> attributes) {
    const std::string end = str(static_cast<int>(dtype), "x", width);
    const bool has_mask =
        std::ranges::any_of(attributes, [](const Attribute& a) { return a.name == "mask"; });
    const Value mask = has_mask ? b.placeholder("mask" + end, dtype, {6, 6}) : Value();
    const Value x =
        b.placeholder("x" + end, dtype, packed ? Shape{2, 6, 3, 4, width} : Shape{2, 4, 6, width});
    std::vector<Value> inputs(packed ? 1 : 3, x);
    if (packed) attributes.push_back({"packed", true});
    attributes.push_back({"scale", 0.125});
    if (has_mask) inputs.push_back(mask);
    const std::vector<Value> out = b.op("attention", inputs, attributes);
    inputs.insert(inputs.end(), {out[0], out[1], out[0]});
    b.op("attention_grad", inputs, attributes);
  };
  const Attribute mask{"mask", true}, rate{"rate", 0.1}, key{"key", std::int64_t{7}};
  add(DType::kBF16, 64, true, {});
  add(DType::kF16, 128, false, {mask, rate, key});
  add(DType::kBF16, 12, false, {mask, rate, key});
  add(DType::kF64, 8, false, {});
  expect_compiles(b.finish(), 18);
}

TEST_F(CudaSources, OfMoves) {
  GraphBuilder b;
  for (const DType dtype : {DType::kU8, DType::kBF16, DType::kF32, DType::kI64}) {
    const Value x = b.placeholder(str("x", static_cast<int>(dtype)), dtype, {4, 6, 5});
    b.result(transpose(x, {2, 0, 1}));
    b.result(flip(x, {1}));
    b.result(tile(x, {2, 1, 3}));
    b.result(concat({x, x}, 1));
    for (const Value& piece : split(x, {1, 5}, 1)) b.result(piece);
    b.result(pad(x, {1, 0, 2}, {0, 1, 0}, 7));
    b.result(broadcast_to(x, Shape{3, 4, 6, 5}));
    const Value picked = argmax(x, 1);
    b.result(gather(x, picked, 2));
    b.result(one_hot(picked, 6, dtype));
    b.result(argmin(x, 2));
    b.result(full(b, dtype, {300, 2}, 3));
  }
  expect_compiles(b.finish(), 22);
}

TEST_F(CudaSources, OfScansAndRows) {
  GraphBuilder b;
  for (const DType dtype : {DType::kI32, DType::kF16, DType::kF32, DType::kF64}) {
    const auto name = [&](const char* prefix) { return str(prefix, static_cast<int>(dtype)); };
    const Value x = b.placeholder(name("x"), dtype, {4, 6});
    b.result(cumsum(x, 1));
    b.result(cumsum(x, 0, true, true));
    b.result(top_k(x, 3).values);
    const Value large = b.placeholder(name("large"), dtype, {2, 9000});
    b.result(cumsum(large, 1, true));
    b.result(top_k(large, 3).values);
    b.result(scatter_add(b.placeholder(name("at"), DType::kI64, {4}), x,
                         b.constant(Tensor::from<std::int64_t>({2}, {9, 6}))));
    b.result(iota(b, dtype, 300, 1, 2));
    if (dtype != DType::kI32) b.result(moments(x, {1}).mean);
  }
  expect_compiles(b.finish(), 32);
}

TEST_F(CudaSources, OfWindows) {
  GraphBuilder b;
  for (const DType dtype : kFloating) {
    const auto name = [&](const char* prefix) { return str(prefix, static_cast<int>(dtype)); };
    const Value x = b.placeholder(name("x"), dtype, {2, 9, 8, 4}),
                w = b.placeholder(name("w"), dtype, {3, 3, 4, 6}),
                grouped = b.placeholder(name("grouped"), dtype, {3, 3, 2, 6});
    const Value loss = sum(max_pool(x, {2, 2})) + sum(avg_pool(x, {2, 2})) + sum(square(conv2d(x, w))) +
                       sum(square(conv2d(x, grouped, {.groups = 2})));
    b.result(loss);
    for (const Value back : gradients(loss, {x, w, grouped})) b.result(back);
  }
  expect_compiles(b.finish(), 40);
}

TEST_F(CudaSources, OfRandomOps) {
  GraphBuilder b;
  for (const DType dtype : kFloating) {
    b.result(b.random_uniform({dtype, {5, 3}}, -1, 2));
    b.result(random_normal(b, TensorSpec{dtype, {5, 3}}, 1, 2));
    b.result(dropout(b.placeholder(str("x", static_cast<int>(dtype)), dtype, {7}), 0.25));
  }
  b.result(random_integers(b, TensorSpec{DType::kI32, {9}}, -3, 12));
  b.result(random_integers(b, TensorSpec{DType::kI64, {9}}, -3, std::int64_t{1} << 40));
  b.result(random_permutation(b, 9));
  expect_compiles(b.finish(), 18);
}

template <class F>
void with_each_optimizer(const F& minimize) {
  minimize(Sgd(0.1));
  minimize(Momentum(0.1, 0.9, true));
  minimize(Adagrad(0.1));
  minimize(RmsProp(0.1));
  minimize(RmsProp(0.1, {.momentum = 0.9}));
  minimize(RmsProp(0.1, {.momentum = 0.9, .centered = true}));
  minimize(Adam(0.1));
  minimize(AdamW(0.1));
}

TEST_F(CudaSources, OfOptimizers) {
  for (const DType dtype : {DType::kF16, DType::kF32, DType::kF64}) {
    GraphBuilder b;
    int variables = 0;
    const auto minimize = [&](Optimizer&& optimizer) {
      const VariableRef w = b.variable(str("w", variables++), Tensor::zeros(dtype, {3, 4}));
      optimizer.minimize(sum(square(b.read(w))), {w});
    };
    with_each_optimizer(minimize);
    expect_compiles(b.finish(), 8);
  }
}

TEST_F(CudaSources, OfMergedUpdates) {
  for (const DType dtype : kFloating) {
    GraphBuilder b;
    int variables = 0;
    const auto minimize = [&](Optimizer&& optimizer) {
      const VariableRef w = b.variable(str("w", variables++), Tensor::zeros(dtype, {3, 4}));
      const VariableRef v = b.variable(str("w", variables++), Tensor::zeros(dtype, {5}));
      optimizer.minimize(sum(square(b.read(w))) + sum(square(b.read(v))), {w, v});
    };
    with_each_optimizer(minimize);
    Graph graph = b.finish();
    PassContext context;
    ASSERT_EQ(make_merge_updates()->run(graph, context), PassOutcome::kChanged);
    std::set<std::string> merged;
    for (const std::string& source : sources_of(graph)) {
      if (source.find("unsigned first[") != std::string::npos) merged.insert(source);
    }
    EXPECT_EQ(merged.size(), 16U);  // in place and apart
    for (const std::string& source : merged) EXPECT_FALSE(compile_source(source, kCapability).empty());
  }
}

TEST_F(CudaSources, OfUpdatesOfRows) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF64}) {
    GraphBuilder b;
    const Value at = b.placeholder("at", DType::kI64, {5}), rows = b.placeholder("rows", dtype, {5, 4});
    int variables = 0;
    const auto minimize = [&](Optimizer&& optimizer) {
      const VariableRef w = b.variable(str("w", variables++), Tensor::zeros(dtype, {3, 4}));
      optimizer.minimize(sum(square(gather(b.read(w), at))), {w});
    };
    with_each_optimizer(minimize);
    const VariableRef w = b.variable("w", Tensor::zeros(dtype, {3, 4}));
    for (const char* how : {"set", "add", "mul", "div", "min", "max"})
      b.result(b.op1("assign_rows", {at, rows}, {{"variable", w}, {"how", how}}));
    expect_compiles(b.finish(), 14);
  }
}

TEST_F(CudaSources, OfValuesOfReplicas) {
  GraphBuilder b;
  for (const DType dtype : {DType::kI32, DType::kBF16, DType::kF32, DType::kF64}) {
    const auto name = [&](const char* prefix) { return str(prefix, static_cast<int>(dtype)); };
    const Value x = b.placeholder(name("x"), dtype, {4, 6}), y = b.placeholder(name("y"), dtype, {4, 6});
    const std::vector<Value> both = {x, y};
    const Attribute two{"replicas", std::int64_t{2}};
    for (const char* reduce : {"sum", "mean", "min", "max", "prod"}) {
      if (is_integer(dtype) && std::string_view(reduce) == "mean") continue;
      b.op("all_reduce", both, {two, {"reduce", reduce}});
      b.op("reduce_scatter", both, {two, {"reduce", reduce}, {"axis", std::int64_t{1}}});
      b.op("reduce_chunk", both,
           {two, {"reduce", reduce}, {"chunk", std::int64_t{1}}, {"chunks", std::int64_t{3}}});
    }
    b.op("all_gather", both, {two, {"axis", std::int64_t{1}}});
    b.op("broadcast_replica", both, {two, {"root", std::int64_t{1}}});
    if (dtype != DType::kI32) b.op1("prod_of_others", {x}, {{"axis", std::int64_t{0}}});
  }
  b.result(replica_id(b));
  expect_compiles(b.finish(), 45);
}

// What runs on the host, with copies, and why.
TEST_F(CudaSources, AreThereForAllOpsButThese) {
  const std::set<std::string> on_host = {
      "call",        "cond", "while_loop", "replicated",
      "merge_call",  // run their regions, whose nodes have kernels
      "placeholder",
      "read",  // have no kernel anywhere
  };
  for (const std::string& name : OpRegistry::global().names()) {
    EXPECT_EQ(OpRegistry::global().kernel(OpRegistry::global().get(name), "cuda") == nullptr,
              on_host.contains(name))
        << name;
  }
}

TEST_F(CudaSources, AMistakeInOneShowsTheCompilersWords) {
  const auto error = testing::caught(
      [] { compile_source("extern \"C\" __global__ void kernel() { nonsense; }", kCapability); });
  EXPECT_EQ(error.code, ErrorCode::kInternal);
  EXPECT_NE(error.what.find("nonsense"), std::string::npos) << error.what;
}

TEST_F(CudaSources, AreCompiledOnceAndKeptInFiles) {
  const TemporaryFolder folder;
  setenv("LOCKSTEP_CACHE", folder.path().c_str(), 1);
  const std::string source = "extern \"C\" __global__ void kernel(float* x) { x[threadIdx.x] += 1; }";
  const std::string code = compile_source(source, kCapability);
  ASSERT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
  EXPECT_EQ(compile_source(source, kCapability), code);
  // A file that belongs to something else, and one that was cut off, are not taken for it.
  const std::filesystem::path file = std::filesystem::directory_iterator(folder.path())->path();
  std::filesystem::resize_file(file, 10);
  EXPECT_EQ(compile_source(source, kCapability), code);
}

}  // namespace
}  // namespace lockstep
