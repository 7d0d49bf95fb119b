// Large batches on little memory: gradients of four small batches are gathered, then applied once.
//
//   every step:        g --> accumulated += g                       (each replica its own)
//   every fourth:      all_reduce(accumulated) / 4 --> sgd          (one all-reduce instead of four)
//
// The pass accumulate-gradients does it to any step; nothing in the step itself changes. Four steps equal one
// step on the joined batch, which the program checks.
#include <cmath>
#include <iostream>

#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

Tensor batch(int number, std::int64_t rows) {
  Tensor x = Tensor::empty(DType::kF64, {rows, 3});
  std::int64_t i = 0;
  for (double& value : x.data<double>()) value = std::sin(static_cast<double>(number * 1000 + ++i));
  return x;
}

// Trains on 2 replicas and gives w. `slices` batches of 4 rows per replica and update.
Tensor train(const std::string& passes, int slices) {
  MirroredStrategy strategy({.devices = {"cpu:0", "cpu:1"}, .step_passes = passes});
  auto scope = strategy.scope();
  const Variable w("w", Tensor::zeros(DType::kF64, {3}));
  const Sgd sgd(0.5);
  const auto step = strategy.function({InputSpec(DType::kF64, {kUnknown, 3}, "x")}, [=](Value x) {
    const Value loss = global_mean(square(sum(x * w, {1}) - 1.0));
    sgd.minimize(loss, {w});
    return loss;
  });
  constexpr int kUpdates = 5, kSlices = 4;
  for (int update = 0; update < kUpdates; ++update) {
    for (int slice = 0; slice < kSlices; slice += kSlices / slices) {
      std::vector<Tensor> mine;
      for (int replica = 0; replica < 2;
           ++replica) {  // the same rows either way, four at a time or all at once
        Tensor rows = Tensor::empty(DType::kF64, {4 * kSlices / slices, 3});
        for (int part = 0; part < kSlices / slices; ++part)
          rows.slice(4 * part, 4 * (part + 1)).assign(batch(update * 10 + slice + part + 100 * replica, 4));
        mine.push_back(rows);
      }
      step(PerReplica<Tensor>(std::move(mine)));
    }
  }
  return w.value();
}

}  // namespace

int main() {
  const Tensor accumulated = train("accumulate-gradients(steps=4)", 4), joined = train("", 1);
  double apart = 0;
  for (std::size_t i = 0; i < 3; ++i)
    apart = std::max(apart, std::abs(accumulated.data<double>()[i] - joined.data<double>()[i]));
  std::cout << "20 small steps and 5 large ones agree " << (apart < 1e-12 ? "to rounding" : "NOT") << '\n';
  return apart < 1e-12 ? 0 : 1;
}
