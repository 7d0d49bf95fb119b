// bench/mirrored_step/lockstep.cpp - steps of MirroredStrategy: traced, distributed, compiled once; then run.
#include <functional>
#include <vector>

#include "lockstep/core/runtime.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/run/program.h"
#include "lockstep/strategies/mirrored.h"
#include "participants.h"
#include "support/measure.h"
#include "support/models.h"
#include "support/profile.h"

namespace lockstep::bench {
namespace {

std::vector<std::string> devices(std::int64_t replicas) {
  std::vector<std::string> names;
  for (std::int64_t r = 0; r < replicas; ++r) names.push_back(str("cpu:", r));
  return names;
}

// Input by input, the slots of all replicas: the order in which a step's program is fed.
using Feeds = std::vector<std::vector<Tensor>>;

class Mirrored final : public Participant {
 public:
  Mirrored(std::int64_t replicas, std::size_t threads, const Feeds& feeds, bool tiny,
           const std::function<Value(const Value&, const Value&)>& step)
      : tiny_(tiny),
        runtime_({.threads = threads, .cpu_devices = static_cast<std::size_t>(replicas)}),
        strategy_({.devices = devices(replicas), .optimize = !tiny, .base = {.runtime = runtime_}}) {
    const auto spec = [](const Tensor& t) { return InputSpec(t.dtype(), t.shape()); };
    step_ = strategy_.function({spec(feeds[0][0]), spec(feeds[1][0])},
                               [&](Value x, Value y) { return step(x, y); });
    for (const std::vector<Tensor>& input : feeds) feeds_.insert(feeds_.end(), input.begin(), input.end());
  }

  double run(std::size_t steps) override {
    for (std::size_t s = 0; s < steps; ++s) {
      if (results_.empty()) {
        results_ = program().run(feeds_);
      } else {
        program().run_into(feeds_, results_);
      }
    }
    if (tiny_) return results_[0].data<float>()[0];  // the same on all replicas
    double loss = 0;
    for (const Tensor& share : results_) loss += share.data<float>()[0];
    return loss;
  }

  std::string plan() override {
    const PlanSummary plan = program().plan(feeds_);
    return str("nodes=", plan.nodes, " calls=", plan.calls, " clusters=", plan.clusters,
               " lanes=", plan.lanes, " planned_bytes=", plan.planned_bytes,
               " live_set_bytes=", plan.live_set_bytes);
  }

  std::string profile(std::size_t steps) override {
    Profile profile(program().graph());
    const double begin = now(), used = cpu_now();
    for (std::size_t s = 0; s < steps; ++s) program().run_into(feeds_, results_, {.observer = &profile});
    return profile.table(now() - begin, cpu_now() - used, steps);
  }

 private:
  const Program& program() const { return step_.program(); }

  bool tiny_;  // nodes as they are, not fused: many small ones are what is measured
  Runtime runtime_;
  MirroredStrategy strategy_;
  Function<PerReplica<Tensor>> step_;
  std::vector<Tensor> feeds_, results_;
};

Value tiny(const Value& x, const Value& y) {
  const Variable w("w", Tensor::full(DType::kF32, {kTinyElements}, 1), {.aggregation = Aggregation::kMean});
  Value h = w.read();
  for (int i = 0; i < kTinyOps; ++i) h = i % 2 == 0 ? h * x : h + y;
  return w.assign_sub(h);
}

}  // namespace

std::unique_ptr<Participant> make_mirrored(const std::string& model, std::int64_t batch,
                                           std::size_t threads) {
  Feeds feeds(2);
  if (model == "tiny") {
    for (std::int64_t r = 0; r < batch; ++r) {
      const float own = static_cast<float>(r) / 1000;
      feeds[0].push_back(Tensor::full(DType::kF32, {kTinyElements}, kTinyX + own));
      feeds[1].push_back(Tensor::full(DType::kF32, {kTinyElements}, kTinyY + own / 100));
    }
    return std::make_unique<Mirrored>(batch, threads, feeds, true, tiny);
  }
  const auto replicas = static_cast<std::int64_t>(threads);
  const Batch data = batch_of(model, batch);
  for (std::int64_t r = 0; r < replicas; ++r) {
    const std::int64_t first = batch * r / replicas, last = batch * (r + 1) / replicas;
    feeds[0].push_back(data.inputs.slice(first, last));
    feeds[1].push_back(data.targets.slice(first, last));
  }
  return std::make_unique<Mirrored>(replicas, threads, feeds, false,
                                    [&](const Value& x, const Value& y) { return train(model, x, y); });
}

}  // namespace lockstep::bench
