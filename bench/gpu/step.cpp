// bench/gpu/step.cpp - training steps of Lockstep on a card, and what they answer as a participant.
#include "step.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/passes/optimize.h"
#include "lockstep/graph/run/compile.h"
#include "participants.h"
#include "support/profile.h"

namespace lockstep::bench {

BuiltStep build_step(const Runtime& runtime, const Case& what, std::int64_t batch) {
  GraphBuilder b;
  const Batch data = batch_of(what, batch);
  const Value x = b.placeholder("x", data.inputs.dtype(), data.inputs.shape());
  const Value y = b.placeholder("y", data.targets.dtype(), data.targets.shape());
  const auto there = b.device(kCard);
  b.result(train(what, x, y));
  const Device card = Device::parse(kCard);
  return {b.finish(), {data.inputs.to(card, runtime), data.targets.to(card, runtime)}};
}

Program compile_step(Graph graph, const Runtime& runtime, const Case& what) {
  CompileOptions options{.variables = std::make_shared<VariableStore>()};
  options.allow_tf32 = what.tf32;
  return compile(optimize(std::move(graph), {.topology = &runtime.topology()}), runtime, options);
}

std::int64_t variable_bytes(const Program& program) {
  std::int64_t bytes = 0;
  for (const VariableDecl& variable : program.graph().variables()) bytes += num_bytes(variable.spec);
  return bytes;
}

TrainingStep::TrainingStep(const Runtime& runtime, const Case& what, std::int64_t batch) {
  BuiltStep built = build_step(runtime, what, batch);
  feeds_ = std::move(built.feeds);
  program_ = compile_step(std::move(built.graph), runtime, what);
}

void TrainingStep::put(std::size_t steps) {
  for (std::size_t s = 0; s < steps; ++s) results_ = program_.run(feeds_);
}

double TrainingStep::loss() const { return results_.at(0).item(); }

Contender contender(std::string name, const Program& program, std::vector<Tensor> feeds) {
  return {std::move(name), [program, feeds = std::move(feeds)](std::size_t times) {
            for (std::size_t i = 0; i < times; ++i) program.run(feeds);
            program.wait();
          }};
}

namespace {

constexpr std::size_t kStepsPerLoss = 10;  // everybody fetches the loss as often

class Lockstep final : public Participant {
 public:
  Lockstep(const std::string& what, std::int64_t batch, std::size_t threads)
      : runtime_({.threads = threads}), pool_(*runtime_.pool(Device::parse(kCard))) {
    live_before_ = pool_.stats().live_bytes;
    pool_.reset_peak();
    step_ = std::make_unique<TrainingStep>(runtime_, parse_case(what), batch);
  }

  double run(std::size_t steps) override {
    for (std::size_t done = 0; done < steps;) {
      const std::size_t next = std::min(kStepsPerLoss, steps - done);
      step_->put(next);
      step_->loss();
      done += next;
    }
    step_->finish();
    return step_->loss();
  }

  std::string profile(std::size_t steps) override {
    Profile profile(step_->program().graph());
    const double begin = now();
    for (std::size_t s = 0; s < steps; ++s)
      step_->program().run(step_->feeds(), {.observer = &profile}).at(0).wait();
    const double seconds = now() - begin;
    return profile.table(seconds, seconds, steps);
  }

  std::string plan() override {
    const PlanSummary plan = step_->program().plan(step_->feeds());
    return str("nodes=", plan.nodes, " calls=", plan.calls, " segments=", plan.segments.size(),
               " planned_bytes=", plan.planned_bytes, " live_set_bytes=", plan.live_set_bytes,
               " variable_bytes=", variable_bytes(step_->program()),
               " peak_bytes=", pool_.stats().peak_bytes - live_before_);
  }

 private:
  Runtime runtime_;
  MemoryPool& pool_;  // of the card
  std::int64_t live_before_ = 0;
  std::unique_ptr<TrainingStep> step_;
};

}  // namespace

std::unique_ptr<Participant> make_lockstep(const std::string& what, std::int64_t batch, std::size_t threads) {
  return std::make_unique<Lockstep>(what, batch, threads);
}

}  // namespace lockstep::bench
