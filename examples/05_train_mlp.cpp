// Trains a classifier of digits: the whole training step is one graph.
//
//   images [n,784] --> dense 256, relu --> dense 10 --> softmax cross entropy --> mean --> Adam
//                        w1, b1              w2, b2        labels [n]            loss     updates all four
//
// Usage: 05_train_mlp [--quick]     (--quick: a few steps, no bar to clear)
#include <chrono>
#include <iomanip>
#include <iostream>
#include <string_view>

#include "glyphs.h"
#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

constexpr std::int64_t kBatch = 128;

struct Mlp {
  explicit Mlp(GraphBuilder& b)
      : w1(b.variable("w1", initializers::he_normal({784, 256}, 1))),
        b1(b.variable("b1", initializers::zeros({256}))),
        w2(b.variable("w2", initializers::glorot_uniform({256, 10}, 2))),
        b2(b.variable("b2", initializers::zeros({10}))) {}

  Value logits(GraphBuilder& b, const Value& x) const {
    const Value hidden = relu(matmul(x, b.read(w1)) + b.read(b1));
    return matmul(hidden, b.read(w2)) + b.read(b2);
  }
  VariableRef w1, b1, w2, b2;
};

Graph training_step() {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 784});
  const Value y = b.placeholder("y", DType::kI64, {kUnknown});
  const Mlp mlp(b);
  const Value loss = mean(softmax_cross_entropy(mlp.logits(b, x), y));
  Adam(1e-3).minimize(loss, {mlp.w1, mlp.b1, mlp.w2, mlp.b2});
  b.result(loss);
  return b.finish();
}

Graph accuracy() {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 784});
  const Value y = b.placeholder("y", DType::kI64, {kUnknown});
  const Value right = equal(argmax(Mlp(b).logits(b, x), -1), y);
  b.result(mean(cast(right, DType::kF32)));
  return b.finish();
}

}  // namespace

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::string_view(argv[1]) == "--quick";
  const glyphs::Set train = glyphs::make(quick ? 640 : 16000, 1), test = glyphs::make(quick ? 200 : 4000, 2);
  const std::int64_t batches = train.images.shape()[0] / kBatch, steps = batches * (quick ? 1 : 8);

  const Runtime runtime;  // both programs find the variables here, by name
  const Program step = compile(optimize(training_step()), runtime);
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t i = 1; i <= steps; ++i) {
    const std::int64_t first = (i - 1) % batches * kBatch;
    const float loss = step.run({{"x", train.images.slice(first, first + kBatch)},
                                 {"y", train.labels.slice(first, first + kBatch)}})[0]
                           .data<float>()[0];
    if (i % 100 != 0 && i != steps) continue;
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    std::cout << "step " << std::setw(4) << i << " of " << steps << "   loss " << std::fixed
              << std::setprecision(4) << loss << "   " << std::setprecision(0)
              << static_cast<double>(i * kBatch) / spent.count() << " examples/s   " << std::setprecision(1)
              << spent.count() * static_cast<double>(steps - i) / static_cast<double>(i) << " s left"
              << std::endl;
  }
  const Program evaluate = compile(optimize(accuracy()), runtime);
  const float share = evaluate.run({{"x", test.images}, {"y", test.labels}})[0].data<float>()[0];
  std::cout << "test accuracy " << std::setprecision(2) << 100 * share << " %\n";
  return quick || share >= 0.97F ? 0 : 1;
}
