// bench/workers/lockstep.cpp - a worker of MultiWorkerMirroredStrategy: one replica, one thread.
#include <utility>
#include <vector>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/run/program.h"
#include "lockstep/strategies/multi_worker.h"
#include "participants.h"
#include "support/measure.h"
#include "support/models.h"
#include "support/profile.h"

namespace lockstep::bench {
namespace {

using namespace std::chrono_literals;

MultiWorkerOptions options_of(int rank, int size, const std::filesystem::path& folder) {
  return {.worker = WorkerSpec{.index = rank, .rank = rank, .count = size},
          .folder = folder.string(),
          .start = 60s,
          .runtime = {.threads = 1, .backends = {}}};
}

class Worker final : public Participant {
 public:
  Worker(const std::string& model, std::int64_t batch, int rank, int size,
         const std::filesystem::path& folder)
      : strategy_(options_of(rank, size, folder)), group_(strategy_.runtime().group("world")) {
    const Batch data = batch_of(model, batch);
    const std::int64_t first = batch * rank / size, last = batch * (rank + 1) / size;
    feeds_ = {data.inputs.slice(first, last), data.targets.slice(first, last)};
    const auto spec = [](const Tensor& t) { return InputSpec(t.dtype(), t.shape()); };
    step_ = strategy_.function({spec(feeds_[0]), spec(feeds_[1])}, [&](Value x, Value y) {
      return replica_context().all_reduce(ReduceOp::kSum, train(model, x, y));
    });
  }

  double run(std::size_t steps) override {
    for (std::size_t s = 0; s < steps; ++s) {
      if (results_.empty()) {
        results_ = step_.program().run(feeds_);
      } else {
        step_.program().run_into(feeds_, results_);
      }
    }
    return results_[0].data<float>()[0];
  }

  std::string profile(std::size_t steps) override {
    Profile profile(step_.program().graph());
    const double begin = now(), used = cpu_now();
    for (std::size_t s = 0; s < steps; ++s)
      step_.program().run_into(feeds_, results_, {.observer = &profile});
    return profile.table(now() - begin, cpu_now() - used, steps);
  }

  std::string plan() override {
    const PlanSummary plan = step_.program().plan(feeds_);
    return str("nodes=", plan.nodes, " calls=", plan.calls, " clusters=", plan.clusters,
               " planned_bytes=", plan.planned_bytes);
  }

 private:
  MultiWorkerMirroredStrategy strategy_;
  Group& group_;
  Function<PerReplica<Tensor>> step_;
  std::vector<Tensor> feeds_, results_;
};

}  // namespace

std::unique_ptr<Participant> make_worker(const std::string& model, std::int64_t batch, int rank, int size,
                                         const std::filesystem::path& folder) {
  return std::make_unique<Worker>(model, batch, rank, size, folder);
}

void start_cold(int rank, int size, const std::filesystem::path& folder) {
  MultiWorkerMirroredStrategy strategy(options_of(rank, size, folder));
  const auto scope = strategy.scope();
  const Variable w("w", Tensor::zeros(DType::kF32, {16}), {.aggregation = Aggregation::kMean});
  const auto step = strategy.function({{DType::kF32, {16}}}, [&](Value x) { w.assign_add(x); });
  step(PerReplica<Tensor>(std::vector{Tensor::full(DType::kF32, {16}, 1)}));
  if (strategy.last_step() != 1) throw Error(ErrorCode::kInternal, "the first step was not committed");
}

}  // namespace lockstep::bench
