// Tests: graph/cuda/register.cpp, graph/cuda/updates.cpp, graph/cuda/replicas.cpp
// Whole programs on a card: training as on the CPU, the same bits each time, refusals, logical GPUs.
#include "support/program_test.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/core/runtime.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
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

std::vector<float> losses_on(const std::string& device, const std::string& optimizer, int steps) {
  const Runtime runtime({.threads = 2});
  const Program program = compile(training(device, optimizer), runtime);
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

TEST_F(CardProgram, GivesTheSameBitsEachTime) {
  const std::vector<float> first = losses_on("gpu:0", "adam", 6);
  for (int i = 0; i < 50; ++i) {
    const std::vector<float> again = losses_on("gpu:0", "adam", 6);
    ASSERT_EQ(std::memcmp(first.data(), again.data(), first.size() * sizeof(float)), 0) << "repetition " << i;
  }
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
