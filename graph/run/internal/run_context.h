// graph/run/internal/run_context.h - what changes during one run of a plan.
//
// A RunContext holds the run's memory, its arguments with their addresses, and the state of the schedule. It
// is made once and used for many runs, one at a time. How a run goes:
//
//   inline    every call in the plan's order on the calling thread
//   lanes     the calling thread and helpers share the plan's clusters (graph/run/internal/lanes.h)
//   streams   work of devices is put on their streams, segment by segment (graph/run/internal/stream_run.h);
//             the gate and the end of the run wait for them, or, if the plan allows it, nobody does
//
// A plan with deferred calls always has lanes, if only the calling thread's.
//
// The gate stands between the last fallible call and the first of the commit stage: there the run decides
// once whether it commits, with the other members of the groups that its nodes name. After a failure the
// remaining clusters are counted off without running.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/core/runtime.h"
#include "lockstep/graph/run/internal/drain.h"
#include "lockstep/graph/run/internal/lanes.h"
#include "lockstep/graph/run/internal/plan.h"
#include "lockstep/graph/run/internal/stream_run.h"
#include "lockstep/graph/run/observer.h"
#include "lockstep/graph/run/program.h"

namespace lockstep::internal {

class RunContext : private Lanes::Work {
 public:
  // `shared`: the arenas that the contexts of the plan share, which the first of them makes; null: it shares none.
  RunContext(const Plan& plan, const Runtime& runtime, std::vector<Tensor>* shared = nullptr);
  ~RunContext() override;
  RunContext(const RunContext&) = delete;
  RunContext& operator=(const RunContext&) = delete;

  // Runs one step and says how it ended.
  struct Outcome {
    bool committed = false;
    std::exception_ptr error;                   // of the first call that failed
    std::optional<std::uint32_t> failed_phase;  // whose call failed, if one did
    ErrorCode stopped = ErrorCode::kInternal;   // kCancelled or kDeadlineExceeded, if no call failed
    // The run failed while deferred calls were in flight. The context, what the run works on and its locks
    // must stay until flights() are over, and the context cannot run again.
    bool left = false;
  };
  // What the next run works on, in the order of the plan. Feeds are only read.
  std::span<void*> feeds() { return feeds_; }
  std::span<void*> results() { return results_; }
  std::span<void*> variables() { return variables_; }
  // Room for a result, if that is a condition which the host reads.
  bool& condition() { return condition_; }
  // Runs in flight that use the same memory (Tensor::uses), by feed, result and variable, for a plan that has
  // streams.
  std::span<MemoryUses*> feed_uses() { return feed_uses_; }
  std::span<MemoryUses*> result_uses() { return result_uses_; }
  std::span<MemoryUses*> variable_uses() { return variable_uses_; }
  // Its runs return while they are on streams. What such a run uses has to be kept until it is over: the context
  // keeps a share of these tensors until the next run begins. If its devices may refuse data, whether it commits
  // is decided there; the contexts of one plan share the decision, which the first of them makes.
  void run_ahead(std::shared_ptr<StreamRun::Decision>& decision);
  bool runs_ahead() const { return ahead_; }
  bool has_streams() const { return streams_ != nullptr; }
  const std::shared_ptr<WorkInFlight>& work() const { return streams_->work(); }
  void keep(std::span<const Tensor> feeds, std::span<const Tensor> results);
  // Is the last run over on its devices? wait() sleeps until it is, or returns false when the deadline has
  // passed; it throws what went wrong there. A run begins only when the one before is over.
  bool is_over() const;
  bool wait(std::optional<SteadyTime> deadline = std::nullopt);
  // `locks` are the locks that the caller holds for this run; they, and what the other arguments point at,
  // must outlive it. Observers are told about the run as `event`, if it is given. A run inside a node of
  // another run (a region) has no event: observers are told only about its nodes, as part of the outer run.
  // `awaited`: a run that holds locks may be waiting for this one. Pass it for a run that such a run started
  // on another thread; on its own threads the context knows by itself.
  Outcome run(std::span<RunLock* const> locks, const RunInfo& info, const RunEvent* event,
              bool awaited = false) noexcept;
  // The variables that this context's commits write, and the gate of their store; both must outlive it.
  // Without this call a run commits into memory that nobody else reads.
  void set_commit(CommitGate& gate, std::span<StoredVariable* const> written) {
    gate_ = written.empty() ? nullptr : &gate;
    written_ = written;
  }

  const Plan& plan() const { return plan_; }
  Flights& flights() { return flights_; }

  // Is the calling thread inside a run that holds this lock? (A nested run would wait for itself.)
  static bool held_by_this_thread(const RunLock* lock);
  // May a run that holds locks be waiting for what the calling thread does?
  static bool is_awaited();

 private:
  struct Instruction {
    const void* target;  // a KernelFn, or a std::function<void()> if context is null
    KernelContext* context;
  };
  struct Active;  // marks the thread as working on this run
  class DeferredCall;
  static bool is_held(const RunLock* lock, const Active* active);

  KernelContext make_context(const PlannedPhase& phase, std::uint32_t number, std::uint32_t shard);
  void bind_streams();
  void bind_deferred();
  void bind();
  void run_call(std::uint32_t at);
  void run_observed_call(std::uint32_t at, int worker, bool follows);
  template <bool kWatched>
  bool run_calls(std::uint32_t begin, std::uint32_t end, bool follows);
  bool run_range(std::uint32_t begin, std::uint32_t end, bool follows = false);
  void run_inline();
  void run_cluster(std::uint32_t cluster, bool follows) noexcept override;
  void run_helper(Lanes& lanes, std::size_t helper) noexcept override;
  bool wants_to_leave(std::optional<SteadyTime>& ask_again) noexcept override;
  void run_starting_cluster(std::uint32_t index, bool follows);
  void run_segment(std::uint32_t index);
  void follow_runs_in_flight();
  bool wait_for_streams();
  void end_streams();
  void note_uses(std::uint64_t number);
  void tell_spans();
  void tell_exchanges();
  RefusedData refused(const StreamRun::Refusal& refusal) const;
  std::optional<SteadyTime> next_look() const;
  void end_run(bool complete);
  bool should_stop();
  void fail(std::optional<std::uint32_t> phase, std::exception_ptr error);
  void stop(ErrorCode why);
  bool pass_gate();
  bool vote();

  const Plan& plan_;
  Runtime runtime_;
  std::vector<Tensor> arenas_;
  std::vector<TensorArg> args_;
  std::vector<KernelContext> contexts_;
  std::vector<Instruction> instructions_;
  struct Patch {
    std::uint32_t arg;
    std::uint32_t source;
  };
  std::vector<Patch> feed_patches_, result_patches_, variable_patches_;
  std::vector<void*> feeds_, results_, variables_;

  CommitGate* gate_ = nullptr;
  std::span<StoredVariable* const> written_;

  // --- one run
  RunInfo info_;
  const RunEvent* event_ = nullptr;  // null if nobody observes
  std::span<RunLock* const> locks_;
  const Active* caller_ = nullptr;  // the runs that the calling thread was already inside
  bool awaited_ = false;            // a run that holds locks may be waiting for this one
  bool votes_ = false;              // RunInfo::votes
  bool watched_ = false;            // an observer, a deadline or a cancellation must be checked
  // kVoting: all of it is done, and whether it commits lies with the other members of its groups.
  enum class State : std::uint8_t { kRunning, kFailed, kVoting, kCommitting };
  std::atomic<State> state_{State::kRunning};
  std::atomic_flag failing_;
  std::atomic<bool> outcome_known_{false};  // of a run that fails: why is written
  Outcome outcome_;

  // Deferred calls: in the order of the plan's calls, and for each cluster the first of its own.
  Flights flights_;
  std::unique_ptr<DeferredCall[]> deferred_;
  std::size_t num_deferred_ = 0;
  std::vector<std::uint32_t> first_deferred_;

  // Of plans with streams.
  std::unique_ptr<StreamRun> streams_;
  std::vector<std::function<void()>> segments_;
  std::vector<std::vector<std::uint32_t>> segment_awaits_;  // by segment: of the deferred calls
  std::vector<MemoryUses*> feed_uses_, result_uses_, variable_uses_;
  bool commits_on_streams_ = false;
  bool ahead_ = false;  // a run may return while it is on streams
  bool condition_ = false;
  std::vector<Tensor> kept_;  // what it uses there

  std::unique_ptr<Lanes>
      lanes_;  // null: inline. The last member: helpers use the others until they have left
};

}  // namespace lockstep::internal
