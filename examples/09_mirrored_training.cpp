// The classifier of digits again, on several replicas that train in lockstep.
//
//            +--> replica 0: loss share --> gradients --+
//   batch --split                                     all-reduce --> one update, seen by all
//            +--> replica 1: loss share --> gradients --+
//
// Each replica sees its slice of every batch; global_mean makes the sum of their losses the mean over the
// whole batch, so that N replicas compute what one device would. The program trains both and compares them.
//
// Usage: 09_mirrored_training [replicas] [--quick]     (--quick: a few steps, no bar to clear)
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <string_view>

#include "glyphs.h"
#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

constexpr std::int64_t kBatch = 128;
const InputSpec kImages(DType::kF32, {kUnknown, 784}, "x"), kLabels(DType::kI64, {kUnknown}, "y");

// Variables belong to the strategy in whose scope they are made.
struct Mlp {
  Variable w1{"w1", initializers::he_normal({784, 256}, 1)}, b1{"b1", initializers::zeros({256})};
  Variable w2{"w2", initializers::glorot_uniform({256, 10}, 2)}, b2{"b2", initializers::zeros({10})};

  Value logits(const Value& x) const { return matmul(relu(matmul(x, w1) + b1), w2) + b2; }
};

// The rows of a batch, cut as evenly as possible: the first replicas get one more where they do not divide.
PerReplica<Tensor> split(const Tensor& batch, std::int64_t replicas) {
  const std::int64_t rows = batch.shape()[0];
  std::vector<Tensor> slices;
  for (std::int64_t r = 0, first = 0; r < replicas; ++r) {
    const std::int64_t size = rows / replicas + (r < rows % replicas ? 1 : 0);
    slices.push_back(batch.slice(first, first + size));
    first += size;
  }
  return PerReplica<Tensor>(std::move(slices));
}

// Trains and gives the accuracy on the test set.
double train(Strategy& strategy, const glyphs::Set& train, const glyphs::Set& test, std::int64_t steps) {
  auto scope = strategy.scope();
  const Mlp mlp;
  const Adam adam(1e-3);
  const auto step = strategy.function({kImages, kLabels}, [=](Value x, Value y) {
    const Value loss = global_mean(softmax_cross_entropy(mlp.logits(x), y));
    adam.minimize(loss, {mlp.w1, mlp.b1, mlp.w2, mlp.b2});
    return loss;  // this replica's share
  });
  const auto right = strategy.function({kImages, kLabels}, [=](Value x, Value y) {
    return cast(equal(argmax(mlp.logits(x), -1), y), DType::kF32);
  });

  const std::int64_t replicas = strategy.num_replicas_in_sync(), batches = train.images.shape()[0] / kBatch;
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t i = 1; i <= steps; ++i) {
    const std::int64_t first = (i - 1) % batches * kBatch;
    const PerReplica<Tensor> loss = step(split(train.images.slice(first, first + kBatch), replicas),
                                         split(train.labels.slice(first, first + kBatch), replicas));
    if (i % 250 != 0 && i != steps) continue;
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    const double rate = static_cast<double>(i * kBatch) / spent.count();
    const Tensor total = replicas == 1 ? loss[0] : strategy.reduce(ReduceOp::kSum, loss);
    std::cout << "step " << std::setw(4) << i << " of " << steps << "   loss " << std::fixed
              << std::setprecision(4) << total.item() << "   " << std::setprecision(0) << rate
              << " examples/s, " << rate / static_cast<double>(replicas) << " per replica" << std::endl;
  }
  return strategy
      .reduce(ReduceOp::kMean, right(split(test.images, replicas), split(test.labels, replicas)), 0)
      .item();
}

}  // namespace

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::string_view(argv[argc - 1]) == "--quick";
  const int replicas = argc > (quick ? 2 : 1) ? std::atoi(argv[1]) : 2;
  if (replicas < 1) {
    std::cerr << "usage: 09_mirrored_training [replicas] [--quick]\n";
    return 2;
  }
  const glyphs::Set digits = glyphs::make(quick ? 640 : 16000, 1), test = glyphs::make(quick ? 200 : 4000, 2);
  const std::int64_t steps = quick ? 5 : 1000;
  std::vector<std::string> devices;
  for (int r = 0; r < replicas; ++r) devices.push_back("cpu:" + std::to_string(r));

  MirroredStrategy mirrored({.devices = devices});
  std::cout << replicas << " replicas\n";
  const double many = train(mirrored, digits, test, steps);
  OneDeviceStrategy single;
  std::cout << "one device\n";
  const double one = train(single, digits, test, steps);

  double apart = 0, size = 0;  // f32 sums in another order: close, not equal
  const Tensor a = mirrored.variables().value("w1"), b = single.variables().value("w1");
  for (std::size_t i = 0; i < a.data<float>().size(); ++i) {
    apart += std::pow(a.data<float>()[i] - b.data<float>()[i], 2);
    size += std::pow(b.data<float>()[i], 2);
  }
  std::cout << std::setprecision(2) << "test accuracy " << 100 * many << " % on " << replicas << " replicas, "
            << 100 * one << " % on one device; w1 differs by " << std::scientific << std::sqrt(apart / size)
            << '\n';
  return quick || (many >= 0.97 && std::sqrt(apart / size) < 0.05) ? 0 : 1;
}
