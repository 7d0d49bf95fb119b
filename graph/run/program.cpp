// graph/run/program.cpp - a graph compiled for a runtime; run many times.
#include "lockstep/graph/run/program.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "lockstep/graph/ir/internal/group_rounds.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/run/internal/earlier_runs.h"
#include "lockstep/graph/run/internal/feed_check.h"
#include "lockstep/graph/run/internal/plan.h"
#include "lockstep/graph/run/internal/plan_cache.h"
#include "lockstep/graph/run/internal/run_context.h"

namespace lockstep {

RunError::RunError(ErrorCode code, std::string message, ErrorPlace place, std::uint64_t committed)
    : Error(code, std::move(message), std::move(place)), committed_(committed) {}
RunError::~RunError() = default;

namespace {

using internal::after_steps;
using internal::FeedCheck;
using internal::GroupRounds;
using internal::Plan;
using internal::PlanCache;
using internal::PlannedPhase;
using internal::PlannedProgram;
using internal::RunContext;

// Keeps the variables of a graph in their store.
class Binding {
 public:
  Binding(const Graph& graph, VariableStore& store) : store_(store) {
    bound_.reserve(graph.variables().size());
    for (const VariableDecl& decl : graph.variables()) {
      if (!decl.shares) bound_.push_back(&store.bind(decl.name));  // else its original is bound
    }
  }
  ~Binding() {
    for (StoredVariable* variable : bound_) store_.unbind(*variable);
  }
  Binding(const Binding&) = delete;
  Binding& operator=(const Binding&) = delete;

 private:
  VariableStore& store_;
  std::vector<StoredVariable*> bound_;
};

bool overlap(const Tensor& a, const Tensor& b) {
  if (a.memory() != b.memory() || a.num_bytes() == 0 || b.num_bytes() == 0) return false;
  const auto begin = [](const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.raw()); };
  return begin(a) < begin(b) + b.num_bytes() && begin(b) < begin(a) + a.num_bytes();
}

bool all_on_host(std::span<const Tensor> tensors) {
  for (const Tensor& tensor : tensors) {
    if (tensor.memory() != kHostMemory) return false;
  }
  return true;
}

// The given tensors, if they are in memories of the runtime; else `kept`, where the others are copied to the
// host.
std::span<const Tensor> within_reach(std::span<const Tensor> tensors, const Runtime& runtime,
                                     std::vector<Tensor>& kept) {
  const auto is_near = [&](const Tensor& tensor) {
    return tensor.memory() == kHostMemory || runtime.find_pool(tensor.memory()) != nullptr;
  };
  if (std::ranges::all_of(tensors, is_near)) return tensors;
  for (const Tensor& tensor : tensors) kept.push_back(is_near(tensor) ? tensor : tensor.host());
  return kept;
}

std::vector<internal::PlacedSpec> on_host(std::span<const TensorSpec> specs) {
  std::vector<internal::PlacedSpec> placed;
  for (const TensorSpec& spec : specs) placed.push_back({spec, kHostMemory});
  return placed;
}

}  // namespace

class Program::Impl : public std::enable_shared_from_this<Program::Impl> {
 public:
  using Lease = PlanCache::Lease;
  // The graph's variables are in options.variables, the store.
  Impl(Graph graph, const Runtime& runtime, const CompileOptions& options)
      : graph_(std::move(graph)), runtime_(runtime), options_(options), store_(options_.variables) {
    // A run that has voted has nothing on devices that may still fail.
    if (std::ranges::any_of(groups_, &Group::votes)) options_.runs_ahead = 1;
    std::vector<TensorSpec> specs;
    for (const NodeId id : graph_.parameters()) specs.push_back(graph_.node(id).outputs()[0]);
    if (std::ranges::all_of(specs, [](const TensorSpec& spec) { return spec.shape.is_known(); }))
      plans_.find(on_host(specs), {});
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const Graph& graph() const { return graph_; }
  const Runtime& runtime() const { return runtime_; }
  VariableStore& store() const { return *store_; }

  void check_feeds(std::span<const Tensor> feeds) const { feeds_.all(feeds); }
  std::vector<Tensor> order_feeds(std::span<const Feed> feeds) const { return feeds_.in_order(feeds); }
  std::shared_ptr<PlannedProgram> plan_for(std::span<const internal::PlacedSpec> feeds) {
    feeds_.count(feeds.size());
    for (std::size_t i = 0; i < feeds.size(); ++i) feeds_.spec(i, feeds[i].spec);
    return plans_.find(feeds, {});
  }
  std::size_t cached_plans() const { return plans_.size(); }

  std::vector<Tensor> make_results(const Plan& plan) const {
    std::vector<Tensor> results;
    results.reserve(plan.results.size());
    for (const auto& [spec, memory] : plan.results)
      results.push_back(Tensor::empty(spec.dtype, spec.shape, runtime_.find_pool(memory)));
    return results;
  }

  void check_results(const Plan& plan, std::span<const Tensor> feeds, std::span<Tensor> results) const {
    if (results.size() != plan.results.size()) {
      throw InvalidArgument(str("run_into: the graph gives ", counted(plan.results.size(), "result"),
                                ", got room for ", results.size()));
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!results[i].defined() || results[i].spec() != plan.results[i].spec) {
        throw InvalidArgument(str("run_into: result ", i, " ('", graph_.node(graph_.results()[i].node).name(),
                                  "') is ", plan.results[i].spec, ", got ",
                                  results[i].defined() ? to_string(results[i].spec()) : "an empty handle"));
      }
      for (std::size_t j = 0; j < feeds.size(); ++j) {
        if (overlap(results[i], feeds[j])) {
          throw InvalidArgument(str("run_into: result ", i, " shares memory with the feed of '",
                                    graph_.node(graph_.parameters()[j]).name(),
                                    "'; give it memory of its own"));
        }
      }
      for (std::size_t j = 0; j < i; ++j) {
        if (overlap(results[i], results[j]))
          throw InvalidArgument(str("run_into: results ", j, " and ", i, " share memory"));
      }
    }
  }

  // What one call runs or fails to run, with its rounds of the groups that the graph names: if it throws, the other members are told.
  template <class F>
  auto take_part(const F& body) const {
    GroupRounds rounds(groups_);
    try {
      return body(rounds);
    } catch (const std::exception& error) {
      give_up(rounds, error);
      throw;
    } catch (...) {
      rounds.give_up(ErrorCode::kFailedPrecondition, "an exception that is not a std::exception");
      throw;
    }
  }

  void give_up(const std::exception& why) const {
    GroupRounds rounds(groups_);
    give_up(rounds, why);
  }
  static void give_up(GroupRounds& rounds, const std::exception& why) {
    rounds.give_up(code_of(why, ErrorCode::kFailedPrecondition), why.what());
  }

  std::vector<Tensor> run_n(std::uint64_t steps, std::span<const Tensor> feeds, const RunOptions& options,
                            bool awaited, const PrepareResults& prepare) {
    return take_part(
        [&](GroupRounds& rounds) { return run_n(steps, feeds, options, awaited, prepare, rounds); });
  }

  void run_into(std::span<const Tensor> feeds, std::span<Tensor> results, const RunOptions& options,
                GroupRounds& rounds) {
    Lease lease(plans_, feeds, results);
    check_results(lease.planned().plan(), feeds, results);
    run_step(lease, feeds, results, options, rounds, 0, RunContext::is_awaited(), true);
  }

  // Until nothing is in flight.
  void wait() {
    for (const std::shared_ptr<PlannedProgram>& planned : plans_.all()) {
      for (const std::shared_ptr<WorkInFlight>& work : plans_.work_ahead(*planned)) {
        try {
          work->wait(work->last());
        } catch (...) {
          internal::earlier_run_failed(0);
        }
        if (planned->plan().refuses)
          deal_with_refusals(*planned, work, {}, nullptr, 0, RunContext::is_awaited());
      }
    }
  }

 private:
  std::vector<Tensor> run_n(std::uint64_t steps, std::span<const Tensor> feeds, const RunOptions& options,
                            bool awaited, const PrepareResults& prepare, GroupRounds& rounds) {
    if (steps == 0) throw InvalidArgument("run_n: at least one step is needed for results");
    std::vector<Tensor> kept;
    if (!all_on_host(feeds)) feeds = within_reach(feeds, runtime_, kept);
    std::optional<Lease> lease(std::in_place, plans_, feeds);
    std::vector<Tensor> results = make_results(lease->planned().plan());
    if (prepare) prepare(results);
    for (std::uint64_t step = 0; step < steps; ++step) {
      try {
        if (step > 0) rounds.next();
        if (step > 0 && lease->context().runs_ahead()) lease.emplace(plans_, feeds);  // the last is under way
        run_step(*lease, feeds, results, options, rounds, step, awaited);
      } catch (const std::bad_alloc&) {
        if (step == 0) throw;
        throw RunError(ErrorCode::kOutOfMemory, "there is not enough memory" + after_steps(step), {}, step);
      }
    }
    return results;
  }

  // One step. Throws RunError; `committed` is the number of earlier steps of the same call. `awaited`: may a
  // run that holds locks be waiting for this one? `given`: are the results the caller's tensors?
  void run_step(Lease& lease, std::span<const Tensor> feeds, std::span<Tensor> results,
                const RunOptions& options, GroupRounds& rounds, std::uint64_t committed, bool awaited,
                bool given = false) {
    PlannedProgram& planned = lease.planned();
    std::optional<RunEvent> event;
    if (options.observer != nullptr) {
      event.emplace(
          RunEvent{.run = next_number(),
                   .program = number_,
                   .graph = graph_,
                   .step = store_->step(),
                   .planned_bytes = planned.plan().memory.planned_bytes + planned.plan().region_planned_bytes,
                   .worker = runtime_.scheduler().this_worker(),
                   .workers = static_cast<int>(runtime_.scheduler().num_workers())});
    }
    RunContext& context = lease.context();
    const RunEvent* const seen = event ? &*event : nullptr;
    if (context.runs_ahead()) {
      wait_for_devices(context, options, committed);
      if (planned.plan().refuses)
        deal_with_refusals(planned, context.work(), options, seen, committed, awaited);
    }
    lock_variables(planned, options, seen, committed, awaited);
    for (std::size_t i = 0; i < feeds.size(); ++i) context.feeds()[i] = const_cast<void*>(feeds[i].raw());
    for (std::size_t i = 0; i < results.size(); ++i) context.results()[i] = results[i].raw();
    for (std::size_t i = 0; i < planned.variables().size(); ++i) {
      context.variables()[i] = planned.variables()[i]->storage().raw();
    }
    if (planned.uses_devices()) {
      try {
        internal::follow_runs_in_flight(planned, context, feeds, results);
      } catch (...) {
        planned.locks().unlock();
        throw;
      }
    }
    RunInfo info{runtime_.seed(), store_->step()};
    info.cancel = options.cancel.stop_possible() ? &options.cancel : nullptr;
    info.deadline = options.deadline ? &*options.deadline : nullptr;
    info.observer = options.observer;
    info.synchronous = options.synchronous;
    info.rounds = rounds.any() ? &rounds : nullptr;
    info.votes = rounds.any();
    const RunContext::Outcome outcome =
        context.run(planned.locks().all(), info, event ? &*event : nullptr, awaited);
    if (outcome.committed && !outcome.error && planned.plan().commits) store_->advance_step();
    if (outcome.left) {
      lease.leave_behind(shared_from_this(), feeds, results, given);
    } else {
      planned.locks().unlock();
    }
    if (!outcome.error && outcome.committed) {
      if (context.runs_ahead()) context.keep(feeds, results);
      return;
    }
    throw_error(planned.plan(), outcome, committed);
  }

  // The last run of the work is over. If data of it, or of another run of the plan, was refused, those runs and the
  // ones after them did not happen: throws that, unless someone was told when reading a result, and lets runs
  // commit again.
  void deal_with_refusals(PlannedProgram& planned, const std::shared_ptr<WorkInFlight>& work,
                          const RunOptions& options, const RunEvent* event, std::uint64_t committed,
                          bool awaited) {
    const std::shared_ptr<internal::StreamRun::Decision> decision = planned.decision();
    if (decision == nullptr) {  // such runs commit nothing
      if (const internal::Refusals found = internal::take_refusals({&work, 1}); found.why != nullptr)
        internal::did_not_happen(found, committed);
      return;
    }
    work->refusal(work->last(), false);
    if (!decision->is_refused()) return;
    lock_variables(planned, options, event, committed, awaited);  // so that no run begins meanwhile
    internal::Refusals found;
    try {
      if (decision->is_refused()) {
        const std::vector<std::shared_ptr<WorkInFlight>> all = plans_.work_ahead(planned);
        for (const std::shared_ptr<WorkInFlight>& other : all) other->wait(other->last());
        found = internal::take_refusals(all);
        decision->clear();
        if (planned.plan().commits) store_->take_back_steps(found.runs);
      }
    } catch (...) {
      planned.locks().unlock();
      internal::earlier_run_failed(committed);
    }
    planned.locks().unlock();
    if (found.why != nullptr) internal::did_not_happen(found, committed);
  }

  // Until the context's last run is over on its devices.
  void wait_for_devices(RunContext& context, const RunOptions& options, std::uint64_t committed) const {
    try {
      while (!context.wait(next_look(options))) check_stop(options, committed);
    } catch (const RunError&) {
      throw;
    } catch (...) {
      internal::earlier_run_failed(committed);
    }
  }

  static void check_stop(const RunOptions& options, std::uint64_t committed) {
    if (options.cancel.stop_requested()) stopped(ErrorCode::kCancelled, committed);
    if (options.deadline && std::chrono::steady_clock::now() >= *options.deadline)
      stopped(ErrorCode::kDeadlineExceeded, committed);
  }
  // When a thread that sleeps has to ask again. A stop request does not wake a waiter: poll for it.
  static std::optional<SteadyTime> next_look(const RunOptions& options) {
    if (!options.cancel.stop_possible()) return options.deadline;
    const SteadyTime soon = std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
    return options.deadline ? std::min(*options.deadline, soon) : soon;
  }

  // Tells the run's observer about one wait, from the first lock it waits for until the run goes ahead.
  class Wait {
   public:
    Wait(Observer* observer, const RunEvent* run) : observer_(observer), run_(run) {}
    ~Wait() {
      if (waiting_) observer_->on_wait_end({*run_, variable_});
    }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;
    void wait_for(std::string_view variable) {
      if (observer_ == nullptr || waiting_) return;
      waiting_ = true;
      variable_ = variable;
      observer_->on_wait_begin({*run_, variable_});
    }

   private:
    Observer* observer_;
    const RunEvent* run_;
    std::string_view variable_;
    bool waiting_ = false;
  };

  void lock_variables(PlannedProgram& planned, const RunOptions& options, const RunEvent* event,
                      std::uint64_t committed, bool awaited) {
    const RunLockSet& locks = planned.locks();
    if (locks.try_lock(awaited)) return;
    LockTurn turn(*store_, locks, awaited ? LockTurn::Kind::kAhead : LockTurn::Kind::kInLine);
    Wait wait(options.observer, event);
    while (!turn.try_lock()) {
      if (turn.waits_for_rest()) wait.wait_for("*");
      for (std::size_t i = 0; i < locks.all().size(); ++i) {
        const bool taken = locks.is_blocked_by(i);
        if (taken || (!awaited && locks.is_reserved(i))) wait.wait_for(planned.name_of(i));
        // A lock that is in the way and that this thread holds itself: nobody else can ever release it.
        if (taken && RunContext::held_by_this_thread(locks.all()[i])) {
          throw FailedPrecondition(
              "a program was run inside a node of a run that holds a variable (or the random step) it needs; "
              "return the "
              "value from the node and run the program afterwards");
        }
      }
      check_stop(options, committed);
      turn.wait(next_look(options));
    }
  }

  [[noreturn]] static void stopped(ErrorCode why, std::uint64_t committed) {
    const char* what = why == ErrorCode::kCancelled ? "the run was cancelled before its commit"
                                                    : "the deadline passed before the run could commit";
    throw RunError(why, str(what, "; no variable was changed by it", after_steps(committed)), {}, committed);
  }

  [[noreturn]] void throw_error(const Plan& plan, const RunContext::Outcome& outcome,
                                std::uint64_t committed) const {
    if (!outcome.error) stopped(outcome.stopped, committed);
    ErrorPlace place;  // empty: a device failed, and did not say where
    if (outcome.failed_phase) {
      const PlannedPhase& phase = plan.phases[*outcome.failed_phase];
      place = place_of(graph_.node(phase.node));
      if (place.device.empty()) place.device = plan.arenas[phase.arena].to_string();
    }
    ErrorCode code = ErrorCode::kFailedPrecondition;
    std::string message;
    std::exception_ptr cause = outcome.error;
    try {
      std::rethrow_exception(outcome.error);
    } catch (const Error& error) {
      code = error.code();
      message = error.message();
      if (!error.place().node.empty()) {  // inside a region: the inner node, and its error
        const std::string device = place.device;
        place = error.place();
        if (place.device.empty()) place.device = device;
        const auto* wrapper = dynamic_cast<const std::nested_exception*>(&error);
        if (wrapper != nullptr && wrapper->nested_ptr() != nullptr) cause = wrapper->nested_ptr();
      }
    } catch (const std::exception& error) {
      code = code_of(error, code);
      message = message_of(error);
    } catch (...) {
      message = "an exception that is not a std::exception";
    }
    if (find_declined(outcome.error)) place = {};  // it says where that member failed
    if (outcome.committed) {
      code = ErrorCode::kInternal;
      message = str("the commit stage failed, variables may be changed: ", message);
    }
    try {
      std::rethrow_exception(cause);
    } catch (...) {
      std::throw_with_nested(RunError(code, message + after_steps(committed), std::move(place), committed));
    }
  }

  static std::uint64_t next_number() {
    static std::atomic<std::uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
  }

  Graph graph_;
  Runtime runtime_;
  CompileOptions options_;
  const std::uint64_t number_ = next_number();  // among the programs and runs of the process
  std::shared_ptr<VariableStore> store_;
  const Binding binding_{graph_, *store_};
  const FeedCheck feeds_{graph_};
  const std::vector<Group*> groups_ = internal::groups_of(graph_, runtime_, options_.groups);
  PlanCache plans_{graph_, runtime_, *store_, options_};
};

Program::Program() = default;
Program::~Program() = default;
Program::Program(const Program&) = default;
Program& Program::operator=(const Program&) = default;
Program::Program(Program&&) noexcept = default;
Program& Program::operator=(Program&&) noexcept = default;

Program::Program(Graph graph, const Runtime& runtime, const CompileOptions& options)
    : impl_(std::make_shared<Impl>(std::move(graph), runtime, options)) {}

Program::Impl& Program::impl() const {
  if (!impl_) throw FailedPrecondition("the program is empty; make one with compile()");
  return *impl_;
}

const Graph& Program::graph() const { return impl().graph(); }
const Runtime& Program::runtime() const { return impl().runtime(); }
VariableStore& Program::variables() const { return impl().store(); }
std::size_t Program::cached_plans() const { return impl().cached_plans(); }
void Program::give_up(const std::exception& why) const { impl().give_up(why); }
void Program::wait(SourceSite site) const {
  named_call("Program::wait()", site, [&] { impl().wait(); });
}

std::vector<Tensor> Program::run(std::span<const Tensor> feeds, const RunOptions& options,
                                 SourceSite site) const {
  return run_n(1, feeds, options, site);
}

std::vector<Tensor> Program::run(std::initializer_list<Feed> feeds, const RunOptions& options,
                                 SourceSite site) const {
  return run_n(1, impl().take_part([&](GroupRounds&) { return order_feeds(feeds, site); }), options, site);
}

std::vector<Tensor> Program::order_feeds(std::initializer_list<Feed> feeds, SourceSite site) const {
  return order_feeds(std::span<const Feed>(feeds.begin(), feeds.size()), site);
}
std::vector<Tensor> Program::order_feeds(std::span<const Feed> feeds, SourceSite site) const {
  return named_call("Program::order_feeds()", site, [&] { return impl().order_feeds(feeds); });
}

void Program::run_into(std::span<const Tensor> feeds, std::span<Tensor> results, const RunOptions& options,
                       SourceSite site) const {
  named_call("Program::run_into()", site, [&] {
    Impl& self = impl();
    if (all_on_host(feeds) && all_on_host(results)) {
      self.take_part([&](GroupRounds& rounds) { self.run_into(feeds, results, options, rounds); });
      return;
    }
    std::vector<Tensor> kept, kept_results;
    self.take_part([&](GroupRounds& rounds) {
      feeds = within_reach(feeds, self.runtime(), kept);
      const bool is_here = within_reach(results, self.runtime(), kept_results).data() == results.data();
      self.run_into(feeds, is_here ? results : kept_results, options, rounds);
    });
    // In a memory that the runtime does not know: computed here, and copied there.
    for (std::size_t i = 0; i < kept_results.size(); ++i) {
      if (!results[i].shares_memory_with(kept_results[i])) results[i].assign(kept_results[i]);
    }
  });
}

std::vector<Tensor> Program::run_n(std::uint64_t steps, std::span<const Tensor> feeds,
                                   const RunOptions& options, SourceSite site) const {
  return run_n(steps, feeds, options, nullptr, site);
}

std::vector<Tensor> Program::run_n(std::uint64_t steps, std::span<const Tensor> feeds,
                                   const RunOptions& options, const PrepareResults& prepare,
                                   SourceSite site) const {
  return named_call("Program::run()", site,
                    [&] { return impl().run_n(steps, feeds, options, RunContext::is_awaited(), prepare); });
}

std::future<std::vector<Tensor>> Program::run_async(std::vector<Tensor> feeds, const RunOptions& options,
                                                    SourceSite site) const {
  auto promise = std::make_shared<std::promise<std::vector<Tensor>>>();
  std::future<std::vector<Tensor>> future = promise->get_future();
  // Wrong feeds are refused here, not in the future.
  named_call("Program::run_async()", site,
             [&] { impl().take_part([&](GroupRounds&) { impl().check_feeds(feeds); }); });
  impl().runtime().scheduler().submit([promise, program = *this, feeds = std::move(feeds), options, site,
                                       awaited = RunContext::is_awaited()]() mutable {
    try {
      promise->set_value(named_call("Program::run_async()", site, [&] {
        return program.impl().run_n(1, feeds, options, awaited, nullptr);
      }));
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  });
  return future;
}

namespace {

PlanSummary summary_of(const Plan& plan, std::size_t nodes) {
  PlanSummary summary;
  summary.nodes = nodes;
  summary.calls = plan.clusters.calls.size() + plan.device_calls.size() - plan.segments.size() -
                  static_cast<std::size_t>(std::ranges::count_if(plan.phases, &PlannedPhase::awaits));
  summary.clusters = plan.clusters.sequential ? 1 : plan.clusters.clusters.size();
  summary.lanes = plan.lanes;
  summary.planned_bytes = plan.memory.planned_bytes + plan.region_planned_bytes;
  summary.live_set_bytes = plan.memory.live_set_bytes + plan.region_live_bytes;
  summary.estimated_seconds = plan.seconds;
  for (const internal::Segment& segment : plan.segments) {
    const bool records = static_cast<bool>(segment.records);
    summary.segments.push_back(
        {segment.end - segment.begin, records, records ? std::string() : segment.records.reason()});
  }
  return summary;
}

}  // namespace

PlanSummary Program::plan(std::span<const TensorSpec> feeds) const {
  return summary_of(impl().plan_for(on_host(feeds))->plan(), graph().size());
}

PlanSummary Program::plan(std::span<const Tensor> feeds) const {
  std::vector<Tensor> kept;
  std::vector<internal::PlacedSpec> placed;
  for (const Tensor& feed : within_reach(feeds, runtime(), kept))
    placed.push_back({feed.spec(), feed.memory()});
  return summary_of(impl().plan_for(placed)->plan(), graph().size());
}

}  // namespace lockstep
