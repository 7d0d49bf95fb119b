// Tests: core/scheduler.cpp, graph/run/program.cpp
// Runs inside nodes of runs: what they share, and what they leave behind.
#include <array>
#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "support/program_test.h"
#include "support/sanitizers.h"
#include "support/test_devices.h"

namespace lockstep {
namespace {

using testing::compile_here;
using testing::repeats;
using testing::with_lanes;

// Reading what the outer run reads is no conflict, however the race for what both write ends.
TEST(NestedRun, MayShareWhatTheOuterRunReads) {
  const Runtime runtime({.threads = 2});
  GraphBuilder inner_builder;
  const VariableRef inner_v = inner_builder.variable("v", Tensor::scalar(1.0F));
  const VariableRef w = inner_builder.variable("w", Tensor::scalar(0.0F));
  inner_builder.assign_add(w, inner_builder.read(inner_v));
  const Program inner = compile_here(inner_builder.finish(), runtime);

  GraphBuilder b;
  const VariableRef v = b.variable("v", Tensor::scalar(1.0F));
  const std::array inputs{b.read(v)};
  const std::array outputs{TensorSpec{DType::kF32, {}}};
  b.result(b.call("nested", inputs, outputs, [inner](KernelContext& c) {
    inner.run();
    c.output<float>(0)[0] = c.input<float>(0)[0];
  })[0]);
  const Program outer = compile_here(b.finish(), runtime);

  const std::size_t runs = repeats(500);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (std::size_t i = 0; i < runs; ++i) EXPECT_EQ(outer.run()[0].item(), 1.0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(runtime.variables()->value("w").item(), static_cast<double>(3 * runs));
}

// A program that is made, run and dropped inside a node must not draw other tasks onto what the outer run
// holds.
TEST(NestedRun, MayDropAProgramWhileOthersWantWhatTheOuterRunHolds) {
  const Runtime runtime({.threads = 2});
  const auto counter = [&](const char* name) {
    GraphBuilder b;
    const VariableRef v = b.variable(name, Tensor::scalar(0.0F));
    b.assign_add(v, b.constant(1.0F));
    return compile_here(b.finish(), runtime);
  };
  const Program u = counter("u");
  GraphBuilder b;
  const VariableRef held = b.variable("u", Tensor::scalar(0.0F));
  b.assign_add(held, b.constant(1.0F));
  b.call("make and drop", [&runtime] {
    GraphBuilder inner;
    const Value x = inner.placeholder("x", DType::kF32, {1000});
    inner.result(sum(relu(x) + x));
    compile_here(inner.finish(), runtime, with_lanes()).run({{"x", Tensor::zeros({1000})}});
  });
  const Program outer = compile_here(b.finish(), runtime);
  const std::size_t runs = repeats(100);
  std::vector<std::future<std::vector<Tensor>>> later;
  for (std::size_t i = 0; i < runs; ++i) {
    later.push_back(u.run_async());
    later.push_back(outer.run_async());
  }
  for (auto& future : later) EXPECT_NO_THROW(future.get());
  EXPECT_EQ(runtime.variables()->value("u").item(), static_cast<double>(2 * runs));
}

}  // namespace
}  // namespace lockstep
