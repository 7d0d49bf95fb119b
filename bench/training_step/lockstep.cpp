// bench/training_step/lockstep.cpp - Lockstep's training steps: build, differentiate, optimize, compile; then
// run.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/runtime.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/passes/optimize.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/run/program.h"
#include "participants.h"
#include "support/measure.h"
#include "support/models.h"
#include "support/profile.h"

namespace lockstep::bench {
namespace {

class Lockstep final : public Participant {
 public:
  Lockstep(const std::string& model, std::int64_t batch, std::size_t threads)
      : runtime_({.threads = threads}) {
    GraphBuilder builder;
    Batch data = batch_of(model, batch);
    Value x = builder.placeholder("x", data.inputs.dtype(), data.inputs.shape());
    Value y = builder.placeholder("y", data.targets.dtype(), data.targets.shape());
    builder.result(train(model, x, y));
    program_ = compile(optimize(builder.finish()), runtime_);
    feeds_ = {std::move(data.inputs), std::move(data.targets)};
    results_ = {Tensor::zeros(Shape{})};
  }

  double run(std::size_t steps) override {
    for (std::size_t s = 0; s < steps; ++s) program_.run_into(feeds_, results_);
    return results_[0].item();
  }

  std::string plan() override {
    const PlanSummary plan = program_.plan(feeds_);
    return str("nodes=", plan.nodes, " calls=", plan.calls, " clusters=", plan.clusters,
               " lanes=", plan.lanes, " planned_bytes=", plan.planned_bytes,
               " live_set_bytes=", plan.live_set_bytes);
  }

  std::string profile(std::size_t steps) override {
    Profile profile(program_.graph());
    const double begin = now(), used = cpu_now();
    for (std::size_t s = 0; s < steps; ++s) program_.run_into(feeds_, results_, {.observer = &profile});
    return profile.table(now() - begin, cpu_now() - used, steps);
  }

 private:
  Runtime runtime_;
  Program program_;
  std::vector<Tensor> feeds_, results_;
};

}  // namespace

std::unique_ptr<Participant> make_lockstep(const std::string& model, std::int64_t batch,
                                           std::size_t threads) {
  return std::make_unique<Lockstep>(model, batch, threads);
}

}  // namespace lockstep::bench
