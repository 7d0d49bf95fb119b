// strategies/trace/step.h - a traced function of a strategy, distributed and compiled.
//
// Strategy::function() and cross_function() return it inside their typed handles. Its graphs can be
// inspected: step_graph() is what was traced, replicated_graph() is what the strategy's passes made from it
// and what runs. A cheap handle. Thread safety: as Program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/run/program.h"
#include "lockstep/graph/transform/pipeline.h"
#include "lockstep/strategies/proof/collective_schedule.h"
#include "lockstep/strategies/trace/values.h"

namespace lockstep {

// One input of a step.
struct InputSpec {
  // NOLINTNEXTLINE(google-explicit-constructor)
  InputSpec(TensorSpec tensor, std::string called = {}, bool same_for_all = false)
      : spec(std::move(tensor)), name(std::move(called)), shared(same_for_all) {}
  InputSpec(DType dtype, Shape shape, std::string called = {}, bool same_for_all = false)
      : spec{dtype, std::move(shape)}, name(std::move(called)), shared(same_for_all) {}

  TensorSpec spec;      // of one replica; the batch dimension is best left unknown
  std::string name;     // empty: "input_<i>"
  bool shared = false;  // all replicas see one value, fed once
};

class LOCKSTEP_API Step {
 public:
  // The slots that the program's results fill, by result of the function.
  struct Slots {
    ReplicaKind kind = ReplicaKind::kPerReplica;
    std::size_t first = 0;  // among the program's results; one per replica, or a single one
  };
  struct Parts {
    Graph step_graph;
    Program program;
    PipelineReport report;
    std::vector<InputSpec> inputs;
    std::vector<Slots> results;
    std::size_t replicas = 1;
    std::vector<ScheduledCollective> schedule = {};
    // Called after each run: with the steps that were committed, and null where it has succeeded.
    std::function<void(std::uint64_t steps, const Error* failure)> after = {};
  };

  Step() = default;  // empty
  explicit Step(Parts parts);

  const Graph& step_graph() const { return parts().step_graph; }
  const Graph& replicated_graph() const { return parts().program.graph(); }
  const Program& program() const { return parts().program; }
  const PipelineReport& report() const { return parts().report; }
  const std::vector<InputSpec>& inputs() const { return parts().inputs; }
  // The order in which it communicates, as order-collectives left it
  // (strategies/proof/collective_schedule.h), and the digest that workers compare. Empty if the strategy's
  // pipeline does not run that pass.
  const std::vector<ScheduledCollective>& collective_schedule() const { return parts().schedule; }
  std::uint64_t collective_digest() const { return lockstep::collective_digest(parts().schedule); }

  // One argument per input; a single value goes to every replica. Throws InvalidArgument for a wrong number
  // of arguments or slots, and what Program::run throws.
  std::vector<PerReplica<Tensor>> run(std::span<const PerReplica<Tensor>> arguments,
                                      const RunOptions& options = {},
                                      SourceSite site = SourceSite::current()) const;
  // `steps` runs on the same arguments inside the program, each committing separately; returns the results of
  // the last. Throws InvalidArgument for 0 steps.
  std::vector<PerReplica<Tensor>> run_n(std::uint64_t steps, std::span<const PerReplica<Tensor>> arguments,
                                        const RunOptions& options = {},
                                        SourceSite site = SourceSite::current()) const;

 protected:
  // The same; `prepare` is given the results before the first step: Program::run_n.
  using PrepareResults = std::function<void(std::span<const PerReplica<Tensor>> results)>;
  void run_n(std::uint64_t steps, std::span<const PerReplica<Tensor>> arguments, const RunOptions& options,
             const PrepareResults& prepare, SourceSite site) const;

 private:
  std::vector<Tensor> feeds_of(std::span<const PerReplica<Tensor>> arguments, const SourceSite& site) const;
  std::vector<PerReplica<Tensor>> results_of(const std::vector<Tensor>& values) const;
  const Parts& parts() const;
  std::shared_ptr<const Parts> parts_;
};

}  // namespace lockstep
