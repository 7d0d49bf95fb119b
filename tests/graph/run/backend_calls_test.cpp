// Tests: graph/run/stream_run.cpp, graph/run/run_context.cpp, core/work_in_flight.cpp
// What a run asks of its device once everything is recorded: each of these calls costs the host microseconds on a card.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/passes/optimize.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/testing/null_device.h"

namespace lockstep::testing {
namespace {

class BackendCalls : public ::testing::Test {
 protected:
  // A training step of three dense layers, whose labels a device may refuse.
  Graph mlp() const {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {8, 6});
    const Value y = b.placeholder("y", DType::kI64, {8});
    const auto there = b.device("gpu:0");
    std::vector<VariableRef> variables;
    Value h = x;
    std::int64_t width = 6;
    for (const std::int64_t next : {7, 5, 3}) {
      variables.push_back(
          b.variable("w" + std::to_string(next), Tensor::full(DType::kF32, {width, next}, 0.1)));
      variables.push_back(b.variable("b" + std::to_string(next), Tensor::zeros({next})));
      const Value w = b.read(variables[variables.size() - 2]), bias = b.read(variables.back());
      h = matmul(h, w) + bias;
      if (next != 3) h = relu(h);
      width = next;
    }
    const Value loss = global_mean(softmax_cross_entropy(h, y));
    Sgd(0.1).minimize(loss, variables);
    b.result(loss);
    return optimize(b.finish(), {.topology = &runtime_.topology()});
  }
  Program compiled(Graph graph) const {
    return compile(std::move(graph), runtime_, {.variables = std::make_shared<VariableStore>()});
  }
  std::vector<Tensor> batch() const {
    const Device device = Device::parse("gpu:0");
    return {Tensor::zeros({8, 6}).to(device, runtime_), Tensor::zeros(DType::kI64, {8}).to(device, runtime_)};
  }
  // Of one run, with nothing in flight, as Program::wait() knows.
  NullCalls calls_of(const Program& program, const std::vector<Tensor>& feeds) const {
    for (int i = 0; i < 8; ++i) program.run(feeds);
    program.wait();
    const NullCalls before = gpu_->calls();
    const std::vector<Tensor> results = program.run(feeds);
    return gpu_->calls() - before;
  }

  std::shared_ptr<NullBackend> gpu_ = std::make_shared<NullBackend>();
  Runtime runtime_{{.threads = 2, .backends = {gpu_}}};
};

// One recording, which reads the feeds where they are; the result is copied to memory of its own.
TEST_F(BackendCalls, OfATrainingStep) {
  const NullCalls expected = {.copies = 1, .replays = 1, .records = 1};
  EXPECT_EQ(calls_of(compiled(mlp()), batch()), expected);
}

// Feeds that never come again are copied.
TEST_F(BackendCalls, OfATrainingStepWithOtherFeedsEachTime) {
  const Program program = compiled(mlp());
  std::vector<std::vector<Tensor>> batches;
  for (int i = 0; i < 20; ++i) batches.push_back(batch());
  for (const std::vector<Tensor>& feeds : batches) program.run(feeds);
  program.wait();
  const NullCalls before = gpu_->calls();
  program.run(batches[0]);
  const NullCalls expected = {.copies = 3, .replays = 1, .records = 1};
  EXPECT_EQ(gpu_->calls() - before, expected);
}

TEST_F(BackendCalls, OfOneKernel) {
  GraphBuilder b;
  const auto there = b.device("gpu:0");
  const Value start = b.read(b.variable("start", Tensor::zeros({4})));
  b.result(start + start);
  const NullCalls expected = {.copies = 1, .replays = 1, .records = 1};
  EXPECT_EQ(calls_of(compiled(b.finish()), {}), expected);
}

}  // namespace
}  // namespace lockstep::testing
