// Tests: graph/train/gradients.cpp, graph/train/optimizer.cpp
// An op that the library has never heard of takes part in everything: gradients of both orders, optimizers,
// fusion, programs, text, checkpoints.
#include <cmath>

#include <gtest/gtest.h>

#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/passes/optimize.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/graph/train/gradients.h"
#include "lockstep/graph/train/optimizer.h"
#include "support/gradient_check.h"

namespace lockstep {
namespace {

using testing::expect_gradients;
using testing::random_tensor;

// x / (1 + |x|)
void register_soft_sign() {
  static const bool done = [] {
    OpDef def;
    def.name = "test_soft_sign";
    def.inputs = Arity::exactly(1);
    def.traits.elementwise = true;
    def.traits.in_place = true;
    def.traits.infallible = true;
    def.infer = [](InferContext& c) {
      c.require(c.input(0).dtype == DType::kF64, "takes f64");
      c.add_output(c.input(0));
    };
    const auto tile = [](const void* const* inputs, void* output, std::int64_t count) {
      const auto* in = static_cast<const double*>(inputs[0]);
      auto* out = static_cast<double*>(output);
      for (std::int64_t i = 0; i < count; ++i) out[i] = in[i] / (1 + std::abs(in[i]));
    };
    def.tile = [tile](const NodeView&, std::span<const TensorSpec>) -> TileFn { return tile; };
    def.split = [](const NodeView&, std::span<const TensorSpec> outputs) {
      return Split{1 + outputs[0].shape.num_elements() / 1000, 0, false};
    };
    def.kernels["cpu"] = [tile](const NodeView&, std::span<const TensorSpec>) -> KernelFn {
      return [tile](KernelContext& c) {
        const auto [begin, end] = c.range(c.output_spec(0).shape.num_elements());
        const void* in = static_cast<const double*>(c.input(0)) + begin;
        tile(&in, static_cast<double*>(c.output(0)) + begin, end - begin);
      };
    };
    def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
      return {c.grad() / square(1 + abs(c.input()))};
    };
    OpRegistry::global().add(std::move(def));
    return true;
  }();
  ASSERT_TRUE(done);
}

Value soft_sign(const Value& x) { return x.builder().op1("test_soft_sign", {x}); }

TEST(CustomOp, HasGradientsOfBothOrders) {
  register_soft_sign();
  expect_gradients([](GraphBuilder&, std::span<const Value> x) { return soft_sign(x[0] * x[1]); },
                   {random_tensor({3, 4}, 1, 0.2, 1), random_tensor({4}, 2, 0.2, 1)});
}

Graph fitting_step() {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {kUnknown, 3});
  const Value y = b.placeholder("y", DType::kF64, {kUnknown});
  const VariableRef w = b.variable("w", random_tensor({3}, 3));
  const Value guess = checkpoint(soft_sign(sum(x * b.read(w), {1})));
  const Value loss = mean(square(guess - y));
  Momentum(0.2).minimize(loss, {w});
  b.result(loss);
  return b.finish();
}

TEST(CustomOp, IsTrainedFusedAndRunLikeAnyOther) {
  register_soft_sign();
  const Graph graph = fitting_step();
  EXPECT_EQ(print(parse(print(graph))), print(graph));
  const Tensor x = random_tensor({5000, 3}, 4);
  Tensor y = Tensor::empty(DType::kF64, {5000});
  for (std::size_t i = 0; i < 5000; ++i) {
    const double* row = x.data<double>().data() + 3 * i;
    const double s = 2 * row[0] - row[1] + 0.5 * row[2];
    y.data<double>()[i] = s / (1 + std::abs(s));
  }
  const Graph optimized = optimize(graph);
  bool fused = false;
  for (const Node& node : optimized.nodes()) {
    for (const Graph& region : node.regions()) {
      for (const Node& inner : region.nodes()) fused = fused || inner.op().name == "test_soft_sign";
    }
  }
  EXPECT_TRUE(fused);
  Interpreter oracle(graph);
  const Program program = compile(optimized, Runtime({.threads = 2}));
  double loss = 1;
  for (int step = 0; step < 200; ++step) {
    const Tensor expected = oracle.run({x, y})[0];
    const Tensor got = program.run(std::vector<Tensor>{x, y})[0];
    ASSERT_TRUE(got.bit_equal(expected)) << "step " << step;
    loss = got.item();
  }
  EXPECT_LT(loss, 1e-6);
  const Tensor w = program.variables().value("w");
  EXPECT_NEAR(w.data<double>()[0], 2, 1e-2);
  EXPECT_NEAR(w.data<double>()[1], -1, 1e-2);
}

}  // namespace
}  // namespace lockstep
