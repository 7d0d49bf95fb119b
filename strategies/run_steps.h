// strategies/run_steps.h - many steps over a source of batches.
//
//   MultiStepContext last = run_steps(strategy, source, 100, specs, [&](MultiStepContext& context, std::span<const PerReplica<Value>> batch) {
//     PerReplica<Value> loss = strategy.run(train, batch[0], batch[1]);
//     context.set_last_step_output("loss", loss, ReduceOp::kSum);
//   });
//   last.last_step_outputs().at("loss");
//
// A source is any callable that gives the next batch, one PerReplica<Tensor> per input, or nothing when it has ended; strategies
// know no datasets. The function is traced once, in cross-replica context; every iteration runs it on the next batch and
// commits by itself, and the next one begins when it has ended.
#pragma once

#include <any>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/strategies/strategy.h"

namespace lockstep {

using BatchSource = std::function<std::optional<std::vector<PerReplica<Tensor>>>()>;

class LOCKSTEP_API MultiStepContext {
 public:
  // While the function is traced. The last call for a name counts. In cross-replica context: the value as it is, or with `reduce`
  // combined over replicas. In replica context it is refused: give the value back from run() and set it outside.
  void set_last_step_output(const std::string& name, const PerReplica<Value>& value,
                            std::optional<ReduceOp> reduce = std::nullopt);
  // Whatever it is, kept as it was given while tracing.
  void set_non_tensor_output(const std::string& name, std::any value) {
    non_tensor_outputs_[name] = std::move(value);
  }

  // Afterwards: of the last iteration; the initial values where there was none.
  const std::map<std::string, PerReplica<Tensor>>& last_step_outputs() const { return last_; }
  const std::map<std::string, std::any>& non_tensor_outputs() const { return non_tensor_outputs_; }
  std::int64_t iterations() const { return iterations_; }

 private:
  friend LOCKSTEP_API MultiStepContext run_steps(
      Strategy& strategy, const BatchSource& source, std::int64_t iterations, std::vector<InputSpec> inputs,
      const std::function<void(MultiStepContext&, std::span<const PerReplica<Value>>)>& fn,
      std::map<std::string, PerReplica<Tensor>> initial);
  Strategy* strategy_ = nullptr;
  std::map<std::string, PerReplica<Value>> outputs_;  // while tracing
  std::map<std::string, PerReplica<Tensor>> last_;
  std::map<std::string, std::any> non_tensor_outputs_;
  std::int64_t iterations_ = 0;
};

// Throws RunError (kFailedPrecondition) saying how many iterations committed where the source ends before `iterations`, and what
// a run throws. `initial` is what the outputs are before the first iteration; where given, it names the same outputs.
LOCKSTEP_API MultiStepContext run_steps(
    Strategy& strategy, const BatchSource& source, std::int64_t iterations, std::vector<InputSpec> inputs,
    const std::function<void(MultiStepContext&, std::span<const PerReplica<Value>>)>& fn,
    std::map<std::string, PerReplica<Tensor>> initial = {});

// One step on the next batch of the source, by run(): fn takes one Value per input, or a span of all. Throws RunError where the
// source has ended.
template <class F>
auto experimental_run(Strategy& strategy, const F& fn, const BatchSource& source) {
  const std::optional<std::vector<PerReplica<Tensor>>> batch = source();
  if (!batch) throw RunError(ErrorCode::kFailedPrecondition, "the source of batches has ended", {}, 0);
  return strategy.run_list(fn, *batch);
}

}  // namespace lockstep
