// Training that is killed half-way and ends with the bits of training that was not.
//
//   uninterrupted:   step 0 ------------------------------------------> 20
//   a process:       step 0 ---- save 5 ---- save 10 --- killed at 13
//   another:                                 restore 10 ------------> 20    the same bits
//
// Checkpoints hold every variable, Adam's slots too, and the step counter, from which dropout draws: so the
// second process continues in the first one's place. Saving copies the variables between two steps; a thread
// of its own writes.
#include <cmath>
#include <csignal>
#include <filesystem>
#include <iostream>

#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

constexpr std::uint64_t kSteps = 20;

// What a replica sees in a step: always the same, so that only the state decides how training goes on.
PerReplica<Tensor> batch(Strategy& strategy) {
  const std::uint64_t step = strategy.variables().step();
  return strategy.distribute_values_from_function([&](std::int64_t replica, std::int64_t) {
    Tensor x = Tensor::empty(DType::kF32, {4, 3});
    double i = static_cast<double>(step) * 100 + static_cast<double>(replica) * 12;
    for (float& value : x.data<float>()) value = static_cast<float>(std::sin(i += 1));
    return x;
  });
}

// Trains to the last step, from the newest checkpoint in the folder on, and gives w. Dies after step
// `killed_at`.
Tensor train(const std::filesystem::path& folder, std::uint64_t killed_at = kSteps + 1) {
  MirroredStrategy strategy({.devices = {"cpu:0", "cpu:1"}});
  auto scope = strategy.scope();
  const Variable w("w", Tensor::from({3}, {0.5F, -0.5F, 0.25F}));
  const Adam adam(0.05);
  const auto step = strategy.function({InputSpec(DType::kF32, {kUnknown, 3}, "x")}, [=](Value x) {
    const Value loss = global_mean(square(sum(dropout(x, 0.25, 1) * w, {1}) - 1.F));
    adam.minimize(loss, {w});
    return loss;
  });

  CheckpointSeries series(folder, {.keep = 2});
  if (const auto restored = series.restore_latest(strategy.variables())) {
    std::cout << "resumed from step " << restored->report.step << '\n';
  }
  while (strategy.variables().step() < kSteps) {
    step(batch(strategy));
    if (strategy.variables().step() % 5 == 0) series.save(strategy.variables());
    if (strategy.variables().step() == killed_at) {
      series.wait();  // so that this program prints the same every time; without it the newest may be step 5
      std::raise(SIGKILL);
    }
  }
  return w.value();
}

}  // namespace

int main() {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / str("lockstep-example-14-", ::getpid());
  const pid_t child = ::fork();  // before there are threads
  if (child == 0) {
    train(folder / "killed", 13);
    ::_exit(1);  // not reached
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  std::cout << "a process was "
            << (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL ? "killed" : "NOT killed")
            << " after step 13\n";

  const Tensor resumed = train(folder / "killed"), uninterrupted = train(folder / "whole");
  const bool same = resumed.bit_equal(uninterrupted);
  std::cout << (same ? "the same bits" : "OTHER bits") << " as training that was not interrupted\n";
  std::filesystem::remove_all(folder);
  return same ? 0 : 1;
}
