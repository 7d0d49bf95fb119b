// Tests: graph/cuda/register.cpp, graph/cuda/updates/updates.cpp, graph/cuda/replicas.cpp,
//        graph/cuda/indices/scatter.cpp, graph/cuda/indices/sorted_rows.cpp
// Whole programs on a card: training as on the CPU, the same bits each time, refusals, logical GPUs.
#include "support/program_test.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/core/runtime.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/passes/optimize.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/train/gradients.h"
#include "lockstep/graph/train/optimizer.h"
#include "support/on_card.h"

namespace lockstep {
namespace {

using testing::caught;
using testing::vec;

class CardProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::has_card()) GTEST_SKIP() << "this machine has no card";
  }
};

Tensor numbers(const Shape& shape, int seed) {
  Tensor tensor = Tensor::empty(DType::kF32, shape);
  std::uint32_t state = static_cast<std::uint32_t>(seed) * 2654435761U + 1;
  for (float& x : tensor.data<float>()) {
    state = state * 1664525U + 1013904223U;
    x = static_cast<float>(state >> 8U) / static_cast<float>(1U << 24U) - 0.5F;
  }
  return tensor;
}

constexpr std::int64_t kBatch = 37, kIn = 19, kHidden = 31, kClasses = 7;

std::unique_ptr<Optimizer> optimizer_of(const std::string& name) {
  if (name == "sgd") return std::make_unique<Sgd>(0.05);
  if (name == "momentum") return std::make_unique<Momentum>(0.05, 0.9);
  if (name == "adagrad") return std::make_unique<Adagrad>(0.05);
  if (name == "rmsprop") return std::make_unique<RmsProp>(0.05);
  if (name == "adam") return std::make_unique<Adam>(0.05);
  return std::make_unique<AdamW>(0.05);
}

// Two layers with a softmax, and one of the optimizers: loss, then the variables behind.
Graph training(const std::string& device, const std::string& optimizer) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kBatch, kIn});
  const Value labels = b.placeholder("labels", DType::kI64, {kBatch});
  const auto there = b.device(device);
  const VariableRef w1 = b.variable("w1", numbers({kIn, kHidden}, 1)),
                    b1 = b.variable("b1", numbers({kHidden}, 2));
  const VariableRef w2 = b.variable("w2", numbers({kHidden, kClasses}, 3)),
                    b2 = b.variable("b2", numbers({kClasses}, 4));
  const Value hidden = tanh(matmul(x, b.read(w1)) + b.read(b1));
  const Value logits = matmul(hidden, b.read(w2)) + b.read(b2);
  const Value loss = mean(softmax_cross_entropy(logits, labels));
  optimizer_of(optimizer)->minimize(loss, {w1, b1, w2, b2});
  b.result(loss);
  return b.finish();
}

std::vector<float> losses_on(const std::string& device, const std::string& optimizer, int steps,
                             bool optimized = false) {
  const Runtime runtime({.threads = 2});
  Graph graph = training(device, optimizer);
  if (optimized) {
    graph = optimize(std::move(graph), {.topology = &runtime.topology()});
    const auto made = std::ranges::count_if(
        graph.nodes(), [](const Node& node) { return node.op().name == "fused_matmul"; });
    EXPECT_EQ(made, device == "gpu:0" ? 3 : 0) << "the logits, and the gradients of both layers";
  }
  const Program program = compile(std::move(graph), runtime);
  Tensor classes = Tensor::empty(DType::kI64, {kBatch});
  for (std::int64_t i = 0; i < kBatch; ++i)
    classes.data<std::int64_t>()[static_cast<std::size_t>(i)] = i * i % kClasses;
  std::vector<float> losses;
  for (int i = 0; i < steps; ++i) {
    const std::vector<Tensor> fed = {numbers({kBatch, kIn}, 100 + i), classes};
    losses.push_back(static_cast<float>(program.run(fed)[0].item()));
  }
  return losses;
}

TEST_F(CardProgram, TrainsAsOnTheCpu) {
  for (const char* optimizer : {"sgd", "momentum", "adagrad", "rmsprop", "adam", "adamw"}) {
    const std::vector<float> here = losses_on("cpu:0", optimizer, 12),
                             there = losses_on("gpu:0", optimizer, 12);
    for (std::size_t i = 0; i < here.size(); ++i)
      EXPECT_NEAR(there[i], here[i], 1e-4 * std::max(1.0F, here[i])) << optimizer << ", step " << i;
  }
}

TEST_F(CardProgram, TrainsAsOnTheCpuWithProductsThatTakeWhatFollows) {
  const std::vector<float> here = losses_on("cpu:0", "adam", 12, true),
                           there = losses_on("gpu:0", "adam", 12, true);
  for (std::size_t i = 0; i < here.size(); ++i)
    EXPECT_NEAR(there[i], here[i], 1e-4 * std::max(1.0F, here[i])) << "step " << i;
}

TEST_F(CardProgram, GivesTheSameBitsEachTime) {
  for (const bool optimized : {false, true}) {
    const std::vector<float> first = losses_on("gpu:0", "adam", 6, optimized);
    for (int i = 0; i < 50; ++i) {
      const std::vector<float> again = losses_on("gpu:0", "adam", 6, optimized);
      ASSERT_EQ(std::memcmp(first.data(), again.data(), first.size() * sizeof(float)), 0)
          << "repetition " << i << (optimized ? ", optimized" : "");
    }
  }
}

// Rows that are named several times, and rows that are not named; twelve steps, so that slots count.
TEST_F(CardProgram, UpdatesRowsAsOnTheCpu) {
  const auto rows_after = [](const std::string& device, const std::string& optimizer) {
    GraphBuilder b;
    const Value at = b.placeholder("at", DType::kI64, {64});
    const auto there = b.device(device);
    const VariableRef w = b.variable("w", numbers({33, 5}, 7));
    const Value loss = mean(square(gather(b.read(w), at)));
    optimizer_of(optimizer)->minimize(loss, {w});
    b.result(loss);
    const Runtime runtime({.threads = 2});
    const auto store = std::make_shared<VariableStore>();
    const Program program = compile(b.finish(), runtime, {.variables = store});
    for (int step = 0; step < 12; ++step) {
      Tensor indices = Tensor::empty(DType::kI64, {64});
      for (std::int64_t i = 0; i < 64; ++i)
        indices.data<std::int64_t>()[static_cast<std::size_t>(i)] = (i * i + step) % 29;
      program.run(std::vector{indices});
    }
    return store->value("w").host();
  };
  for (const char* optimizer : {"sgd", "momentum", "adagrad", "rmsprop", "adam", "adamw"}) {
    const Tensor here = rows_after("cpu:0", optimizer), there = rows_after("gpu:0", optimizer);
    for (std::size_t i = 0; i < here.data<float>().size(); ++i)
      ASSERT_NEAR(there.data<float>()[i], here.data<float>()[i], 2e-6) << optimizer << ", element " << i;
  }
}

TEST_F(CardProgram, RefusesIndicesBeforeRowsAreUpdated) {
  GraphBuilder b;
  const Value at = b.placeholder("at", DType::kI64, {3});
  const auto there = b.device("gpu:0");
  const VariableRef w = b.variable("w", numbers({5, 4}, 7));
  Adam(0.1).minimize(sum(square(gather(b.read(w), at))), {w});
  const auto store = std::make_shared<VariableStore>();
  const Program program = compile(b.finish(), Runtime({.threads = 2}), {.variables = store});
  for (int i = 0; i < 4; ++i) {
    program.run(std::vector{Tensor::from<std::int64_t>({3}, {1, 4, 1})});
    program.wait();
    const Tensor before = store->value("w").host();
    const auto refused = caught([&] {
      program.run(std::vector{Tensor::from<std::int64_t>({3}, {2, 5, 1})});
      program.wait();
    });
    EXPECT_EQ(refused.code, ErrorCode::kInvalidArgument) << refused.what;
    EXPECT_TRUE(store->value("w").host().bit_equal(before));
  }
}

TEST_F(CardProgram, ChangesRowsInTheirOrder) {
  for (const DType dtype : {DType::kI64, DType::kF32, DType::kBF16}) {
    for (const char* how : {"set", "add", "mul", "div", "min", "max"}) {
      GraphBuilder b;
      const VariableRef w = b.variable("w", Tensor::full(dtype, {5, 3}, 60));
      const Value at = b.placeholder("at", DType::kI64, {6}), rows = b.placeholder("rows", dtype, {6, 3});
      b.result(b.op1("assign_rows", {at, rows}, {{"variable", w}, {"how", how}}));
      Tensor given = Tensor::empty(dtype, {6, 3});
      visit_dtype(dtype, [&]<class T>(T) {
        for (std::size_t i = 0; i < 18; ++i)
          given.data<T>()[i] = static_cast<T>(static_cast<float>(i % 7 + 1));
      });
      testing::expect_same_on_card(b.finish(), {Tensor::from<std::int64_t>({6}, {1, 4, 1, 1, 0, 4}), given});
    }
  }
}

TEST_F(CardProgram, CombinesTheValuesOfReplicas) {
  for (const DType dtype : {DType::kI32, DType::kF16, DType::kF32, DType::kF64}) {
    GraphBuilder b;
    const Value x = b.placeholder("x", dtype, {6, 9}), y = b.placeholder("y", dtype, {6, 9}),
                z = b.placeholder("z", dtype, {6, 9});
    const std::vector<Value> all = {x, y, z};
    const Attribute three{"replicas", std::int64_t{3}};
    const auto results = [&](const std::vector<Value>& values) {
      for (const Value& value : values) b.result(value);
    };
    for (const char* reduce : {"sum", "mean", "min", "max", "prod"}) {
      if (is_integer(dtype) && std::string_view(reduce) == "mean") continue;
      results(b.op("all_reduce", all, {three, {"reduce", reduce}}));
      for (const std::int64_t axis : {0, 1})
        results(b.op("reduce_scatter", all, {three, {"reduce", reduce}, {"axis", axis}}));
      std::vector<Value> chunks;
      for (const std::int64_t chunk : {0, 1, 2, 3})
        chunks.push_back(b.op1("reduce_chunk", {x, y, z},
                               {three, {"reduce", reduce}, {"chunk", chunk}, {"chunks", std::int64_t{4}}}));
      results(chunks);
      chunks.push_back(x);
      results(b.op("join_chunks", chunks, {{"chunks", std::int64_t{4}}}));
    }
    for (const std::int64_t axis : {0, 1}) results(b.op("all_gather", all, {three, {"axis", axis}}));
    results(b.op("broadcast_replica", all, {three, {"root", std::int64_t{2}}}));
    std::vector<Tensor> feeds(3, Tensor());
    for (std::size_t f = 0; f < feeds.size(); ++f) {
      feeds[f] = Tensor::empty(dtype, {6, 9});
      visit_dtype(dtype, [&]<class T>(T) {
        for (std::size_t i = 0; i < 54; ++i)
          feeds[f].data<T>()[i] = static_cast<T>(static_cast<float>((i * 5 + f * 3) % 11) - 4.0F);
      });
    }
    testing::expect_same_on_card(b.finish(), feeds);
  }
}

// More patches than there is room for at a time: 28 of 40 images, then the others.
TEST_F(CardProgram, ConvolvesLargeBatchesInPieces) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {40, 64, 64, 16}),
              w = b.placeholder("w", DType::kF32, {3, 3, 16, 8});
  const auto there = b.device("gpu:0");
  // Padding at the end alone, which is not left to cuDNN: rows are laid out, of 28 images at a time.
  const Value y = conv2d(x, w, {.padding = Padding::of(0, 2, 0, 2)});
  b.result(y);
  for (const Gradient& gradient : gradients(sum(y * y), {x, w})) b.result(Value(gradient));
  const Graph graph = b.finish();
  const std::vector<Tensor> fed = {numbers({40, 64, 64, 16}, 1), numbers({3, 3, 16, 8}, 2)};
  const Runtime runtime({.threads = 2});
  const std::vector<Tensor> exact = Interpreter(graph).run(fed), found = compile(graph, runtime).run(fed);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const Tensor here = found[i].host();
    double largest = 0, off = 0;
    for (std::size_t e = 0; e < here.data<float>().size(); ++e) {
      const double wanted = exact[i].data<float>()[e];
      largest = std::max(largest, std::abs(wanted));
      off = std::max(off, std::abs(here.data<float>()[e] - wanted));
    }
    EXPECT_LT(off, 2e-5 * largest) << "result " << i;  // the filter's gradient adds 160,000 products
  }
}

// TF32 keeps 10 bits of a factor: far from f32, and not far off.
TEST_F(CardProgram, MultipliesInTf32OnlyWhenAllowed) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {64, 512}), y = b.placeholder("y", DType::kF32, {512, 48});
  const auto there = b.device("gpu:0");
  b.result(matmul(x, y));
  const Graph graph = b.finish();
  const Runtime runtime({.threads = 1});
  const std::vector<Tensor> fed = {numbers({64, 512}, 1), numbers({512, 48}, 2)};
  const auto product = [&](bool allow_tf32) {
    return compile(graph, runtime, {.allow_tf32 = allow_tf32}).run(fed)[0].host();
  };
  const Tensor exact = Interpreter(graph).run(fed)[0], narrow = product(true), wide = product(false);
  double off_wide = 0, off_narrow = 0;
  for (std::size_t i = 0; i < exact.data<float>().size(); ++i) {
    off_wide = std::max(off_wide, std::abs(double{wide.data<float>()[i]} - exact.data<float>()[i]));
    off_narrow = std::max(off_narrow, std::abs(double{narrow.data<float>()[i]} - exact.data<float>()[i]));
  }
  EXPECT_LT(off_wide, 1e-5);
  EXPECT_GT(off_narrow, 1e-4);
  EXPECT_LT(off_narrow, 1e-2);
}

TEST_F(CardProgram, RefusesDataBeforeItCommits) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kI64, {3});
  const auto there = b.device("gpu:0");
  const VariableRef sum = b.variable("sum", Tensor::full(DType::kI64, {3}, 100));
  b.assign_add(sum, 10 / x);
  const Runtime runtime({.threads = 2});
  const auto store = std::make_shared<VariableStore>();
  const Program program = compile(b.finish(), runtime, {.variables = store});
  for (int i = 0; i < 4; ++i) {
    program.run(std::vector{Tensor::from<std::int64_t>({3}, {1, 2, 5})});
    const auto refused = caught([&] {
      program.run(std::vector{Tensor::from<std::int64_t>({3}, {1, 0, 5})});
      program.wait();
    });
    EXPECT_EQ(refused.code, ErrorCode::kInvalidArgument) << refused.what;
    EXPECT_NE(refused.what.find("div"), std::string::npos) << refused.what;
  }
  program.wait();
  const Tensor value = store->value("sum").host();
  EXPECT_EQ(value.data<std::int64_t>()[1], 100 + 4 * 5);
}

TEST_F(CardProgram, WhatDoesNotFitNamesTheNode) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {1});
  const auto there = b.device("gpu:0");
  b.result(sum(exp(broadcast_to(x, Shape{std::int64_t{1} << 40}))));
  const Runtime runtime({.threads = 1});
  const Program program = compile(b.finish(), runtime);
  const auto error = caught([&] { program.run(std::vector{vec({1})}); });
  EXPECT_EQ(error.code, ErrorCode::kOutOfMemory) << error.what;
  EXPECT_NE(error.what.find("gpu:0"), std::string::npos) << error.what;
}

}  // namespace
}  // namespace lockstep
