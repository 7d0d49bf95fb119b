// graph/run/internal/plan_cache.h - the plans of a program, and who uses them.
//
// A plan is for feeds of certain shapes in certain memories, and for results in certain memories. A program
// keeps the ones that it used last. A run leases a plan together with a context of it; a plan that the cache
// drops meanwhile lives as long as its leases.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/core/variable_store.h"
#include "lockstep/core/work_in_flight.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/run/internal/feed_check.h"
#include "lockstep/graph/run/internal/plan.h"
#include "lockstep/graph/run/internal/run_context.h"

namespace lockstep::internal {

// A plan with the variables it binds and the contexts that run it.
class PlannedProgram : public std::enable_shared_from_this<PlannedProgram> {
 public:
  // `ahead`: the most runs of it that are under way on devices.
  PlannedProgram(const Runtime& runtime, VariableStore& store, std::unique_ptr<const Plan> plan,
                 std::size_t ahead);

  const Plan& plan() const { return *plan_; }
  std::span<StoredVariable* const> variables() const { return variables_; }
  // Does it use memory that is not the host's?
  bool uses_devices() const { return uses_devices_; }
  // The locks of the variables, in their order, and of the random step if the plan draws from it.
  const RunLockSet& locks() const { return locks_; }
  // The name of the variable that lock i guards; empty: the random step.
  std::string_view name_of(std::size_t i) const {
    return i < variables_.size() ? std::string_view(variables_[i]->name()) : std::string_view();
  }
  // Whether runs that are under way commit; null: they commit nothing that can be refused.
  std::shared_ptr<StreamRun::Decision> decision() const;

 private:
  friend class PlanCache;
  // What follows is called under the cache's mutex, but for make_context.

  // A context that no run is using, or null: make one. One that runs ahead may be in flight: the oldest, if
  // there are as many as there may be.
  RunContext* take_free();
  void give_back(RunContext& context) { free_.push_back(&context); }
  RunContext* adopt(std::unique_ptr<RunContext> fresh);
  // Takes a context out that no run can use any more; the caller destroys it.
  std::unique_ptr<RunContext> take_out(const RunContext& context);
  std::unique_ptr<RunContext> make_context() const;
  std::vector<std::shared_ptr<WorkInFlight>> work_ahead() const;

  const Runtime& runtime_;
  CommitGate& gate_;
  std::unique_ptr<const Plan> plan_;
  const std::size_t ahead_;
  mutable std::mutex making_;                  // held while a context is made
  mutable std::vector<Tensor> shared_arenas_;  // of all contexts
  mutable std::mutex deciding_;
  mutable std::shared_ptr<StreamRun::Decision> decision_;  // of contexts that run ahead
  std::vector<StoredVariable*> variables_;
  std::vector<StoredVariable*> written_;  // the ones it writes
  RunLockSet locks_;
  bool uses_devices_ = false;
  std::vector<RunContext*> free_;
  std::vector<std::unique_ptr<RunContext>> contexts_;
  std::size_t leases_ = 0;
  bool dropped_ = false;  // by the cache
};

// Thread safety: any thread.
class PlanCache {
 public:
  // What it is given must outlive it.
  PlanCache(const Graph& graph, const Runtime& runtime, VariableStore& store, const CompileOptions& options)
      : graph_(graph), runtime_(runtime), store_(store), options_(options) {}

  // The plan for these feeds, and for results in these memories (none: where they are made), which becomes the
  // one used last. Two threads may both make one; the first to finish is kept.
  std::shared_ptr<PlannedProgram> find(std::span<const PlacedSpec> feeds, std::span<const MemoryId> results);
  std::size_t size() const;
  // All of them, those that were dropped and are leased, too.
  std::vector<std::shared_ptr<PlannedProgram>> all() const;
  // What may be in flight of a plan.
  std::vector<std::shared_ptr<WorkInFlight>> work_ahead(const PlannedProgram& planned) const;

  // A plan and a context of it, for one run.
  class Lease {
   public:
    // `results`, unless there are none, are for a plan that writes where they are.
    Lease(PlanCache& cache, std::span<const Tensor> feeds, std::span<const Tensor> results = {});
    ~Lease() { end(); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    PlannedProgram& planned() const { return *planned_; }
    RunContext& context() const { return *context_; }

    // The run has ended for its caller, and calls of it are in flight: everything stays as it is until they are
    // over, and so does `keeper`, with the cache in it. Calls on streams also use feeds and results: those are
    // kept, or, if the caller has them (`given`), waited for.
    void leave_behind(std::shared_ptr<const void> keeper, std::span<const Tensor> feeds,
                      std::span<const Tensor> results, bool given) noexcept;

   private:
    void find_plan(std::span<const Tensor> feeds, std::span<const Tensor> results);
    void make_context();
    void end() noexcept;

    PlanCache& cache_;
    PlannedProgram* planned_ = nullptr;  // the cache has it, or the list of those that it dropped
    RunContext* context_ = nullptr;
  };

 private:
  std::shared_ptr<PlannedProgram> take_dropped(const PlannedProgram& plan);

  const Graph& graph_;
  const Runtime& runtime_;
  VariableStore& store_;
  const CompileOptions& options_;
  mutable std::mutex mutex_;
  std::list<std::shared_ptr<PlannedProgram>> plans_;      // most recently used first
  std::vector<std::shared_ptr<PlannedProgram>> dropped_;  // from the cache, and still leased
};

}  // namespace lockstep::internal
