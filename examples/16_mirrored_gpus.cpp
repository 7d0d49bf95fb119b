// The classifier of digits, mirrored over the GPUs of this machine.
//
//   one card:      it becomes two logical GPUs, which share its memory       +--> gpu:0 --+
//   several:       one replica each                               batch --split          all-reduce --> one update
//   none:          two replicas on the CPU, and a message                    +--> gpu:1 --+
//
// Nothing but the names of the devices tells the graph where it runs.
//
// Usage: 16_mirrored_gpus [--quick]     (--quick: a few steps, no bar to clear)
#include <algorithm>
#include <chrono>
#include <iomanip>
#include <iostream>
#include <string_view>

#include "glyphs.h"
#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

constexpr std::int64_t kBatch = 512;
const InputSpec kImages(DType::kF32, {kUnknown, 784}, "x"), kLabels(DType::kI64, {kUnknown}, "y");

std::int64_t gpus_of(const Runtime& runtime) {
  return std::ranges::count_if(runtime.topology().devices(), [](const DeviceFacts& facts) {
    return facts.device.kind == DeviceKind::kGpu;
  });
}

MirroredStrategy make_strategy() {
  Runtime runtime;
  if (gpus_of(runtime) == 0) {
    std::cout << "no GPU: two replicas on the CPU\n";
    return MirroredStrategy({.devices = {"cpu:0", "cpu:1"}});
  }
  if (gpus_of(runtime) == 1) runtime = Runtime({.gpus = {{.card = 0}, {.card = 0}}});
  MirroredOptions options;
  options.base.runtime = runtime;
  return MirroredStrategy(options);  // every GPU of the runtime
}

// The first half of the rows, and so on.
PerReplica<Tensor> parts_of(const Tensor& batch, std::int64_t replicas) {
  std::vector<Tensor> parts;
  const std::int64_t rows = batch.shape()[0];
  for (std::int64_t r = 0; r < replicas; ++r)
    parts.push_back(batch.slice(rows * r / replicas, rows * (r + 1) / replicas));
  return PerReplica<Tensor>(std::move(parts));
}

}  // namespace

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::string_view(argv[1]) == "--quick";
  MirroredStrategy strategy = make_strategy();
  const std::int64_t replicas = strategy.num_replicas_in_sync();
  for (const std::string& device : strategy.worker_devices()) std::cout << "a replica on " << device << '\n';

  auto scope = strategy.scope();
  const Variable w1("w1", initializers::he_normal({784, 512}, 1)), b1("b1", initializers::zeros({512}));
  const Variable w2("w2", initializers::glorot_uniform({512, 10}, 2)), b2("b2", initializers::zeros({10}));
  const Adam adam(1e-3);
  const auto logits = [&](const Value& x) { return matmul(relu(matmul(x, w1) + b1), w2) + b2; };
  const auto step = strategy.function({kImages, kLabels}, [&](Value x, Value y) {
    const Value loss = global_mean(softmax_cross_entropy(logits(x), y));
    adam.minimize(loss, {w1, b1, w2, b2});
    return loss;
  });
  const auto right = strategy.function({kImages, kLabels}, [&](Value x, Value y) {
    return cast(equal(argmax(logits(x), -1), y), DType::kF32);
  });

  const glyphs::Set digits = glyphs::make(quick ? 1024 : 16384, 1),
                    test = glyphs::make(quick ? 200 : 4000, 2);
  const std::int64_t steps = quick ? 4 : 400, batches = digits.images.shape()[0] / kBatch;
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < steps; ++i) {
    const std::int64_t first = i % batches * kBatch;
    const PerReplica<Tensor> loss = step(parts_of(digits.images.slice(first, first + kBatch), replicas),
                                         parts_of(digits.labels.slice(first, first + kBatch), replicas));
    if ((i + 1) % 100 != 0) continue;
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    std::cout << "step " << i + 1 << "   loss " << std::fixed << std::setprecision(4)
              << strategy.reduce(ReduceOp::kSum, loss).item() << "   " << std::setprecision(0)
              << static_cast<double>((i + 1) * kBatch) / spent.count() << " examples/s\n";
  }
  const double accuracy =
      strategy
          .reduce(ReduceOp::kMean, right(parts_of(test.images, replicas), parts_of(test.labels, replicas)), 0)
          .item();
  std::cout << "test accuracy " << std::setprecision(2) << std::fixed << 100 * accuracy << " %\n";
  return quick || accuracy >= 0.97 ? 0 : 1;
}
