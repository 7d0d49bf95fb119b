// graph/run/program.cpp - a graph compiled for a runtime; run many times.
#include "lockstep/graph/run/program.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/run/internal/drain.h"
#include "lockstep/graph/run/internal/plan.h"
#include "lockstep/graph/run/internal/run_context.h"

namespace lockstep {

RunError::RunError(ErrorCode code, std::string message, ErrorPlace place, std::uint64_t committed)
    : Error(code, std::move(message), std::move(place)), committed_(committed) {}
RunError::~RunError() = default;

namespace {

using internal::Plan;
using internal::PlannedPhase;
using internal::PlannedVariable;
using internal::RunContext;

// A plan with the variables it binds and the contexts that run it.
class PlannedProgram : public std::enable_shared_from_this<PlannedProgram> {
 public:
  // Under the program's mutex: how many leases there are, and whether the cache has dropped it meanwhile.
  std::size_t leases = 0;
  bool dropped = false;

  // `ahead`: the most runs of it that are under way on devices.
  PlannedProgram(const Runtime& runtime, VariableStore& store, std::unique_ptr<const Plan> plan,
                 std::size_t ahead)
      : runtime_(runtime),
        gate_(store.commits()),
        plan_(std::move(plan)),
        ahead_(plan_->runs_ahead ? std::max<std::size_t>(ahead, 1) : 1) {
    for (const PlannedVariable& variable : plan_->variables) {
      StoredVariable* stored = store.find(variable.name);
      LOCKSTEP_CHECK(stored != nullptr, "variable '", variable.name, "' is not in the store");
      variables_.push_back(stored);
      if (variable.written) written_.push_back(stored);
      locks_.add(*stored, variable.written);
    }
    if (plan_->draws_random) locks_.add(store.step_lock(), true);
    const auto is_far = [](const auto& placed) { return placed.memory != kHostMemory; };
    uses_devices_ = !plan_->streams.empty() || std::ranges::any_of(plan_->feeds, is_far) ||
                    std::ranges::any_of(plan_->results, is_far) ||
                    std::ranges::any_of(plan_->variables, is_far);
  }

  const Plan& plan() const { return *plan_; }
  std::span<StoredVariable* const> variables() const { return variables_; }
  // Does it use memory that is not the host's?
  bool uses_devices() const { return uses_devices_; }
  // The locks of the variables, in their order, and of the random step if the plan draws from it.
  const RunLockSet& locks() const { return locks_; }

  // A context that no run is using, or null: make one. Like give_back and adopt, called under the program's
  // mutex. One that runs ahead may be in flight: the oldest, if there are as many as there may be.
  RunContext* take_free() {
    if (free_.empty()) return nullptr;
    const auto taken = ahead_ > 1 ? free_.begin() : free_.end() - 1;
    RunContext* const context = *taken;
    if (contexts_.size() < ahead_ && !is_over(*context)) return nullptr;
    free_.erase(taken);
    return context;
  }
  void give_back(RunContext& context) { free_.push_back(&context); }
  RunContext* adopt(std::unique_ptr<RunContext> fresh) {
    free_.reserve(contexts_.size() + 1);
    contexts_.push_back(std::move(fresh));
    return contexts_.back().get();
  }
  // Takes a context out that no run can use any more; the caller destroys it.
  std::unique_ptr<RunContext> take_out(const RunContext& context) {
    const auto found = std::ranges::find(contexts_, &context, &std::unique_ptr<RunContext>::get);
    std::unique_ptr<RunContext> taken = std::move(*found);
    contexts_.erase(found);
    return taken;
  }
  std::unique_ptr<RunContext> make_context() const {
    auto context = std::make_unique<RunContext>(*plan_, runtime_);
    context->set_commit(gate_, written_);
    if (ahead_ > 1) {
      const std::lock_guard<std::mutex> lock(deciding_);
      context->run_ahead(decision_);
    }
    return context;
  }
  // What may be in flight.
  std::vector<std::shared_ptr<WorkInFlight>> work_ahead() const {
    std::vector<std::shared_ptr<WorkInFlight>> found;
    for (const std::unique_ptr<RunContext>& context : contexts_) {
      if (context->runs_ahead()) found.push_back(context->work());
    }
    return found;
  }
  std::shared_ptr<internal::StreamRun::Decision> decision() const {
    const std::lock_guard<std::mutex> lock(deciding_);
    return decision_;
  }

  // The name of the variable that lock i guards; empty: the random step.
  std::string_view name_of(std::size_t i) const {
    return i < variables_.size() ? std::string_view(variables_[i]->name()) : std::string_view();
  }

 private:
  // A device that is lost counts as over here: the next run says so.
  static bool is_over(const RunContext& context) {
    try {
      return context.is_over();
    } catch (const std::exception&) {
      return true;
    }
  }

  const Runtime& runtime_;
  CommitGate& gate_;
  std::unique_ptr<const Plan> plan_;
  const std::size_t ahead_;
  mutable std::mutex deciding_;
  mutable std::shared_ptr<internal::StreamRun::Decision> decision_;  // of contexts that run ahead
  std::vector<StoredVariable*> variables_;
  std::vector<StoredVariable*> written_;  // the ones it writes
  RunLockSet locks_;
  bool uses_devices_ = false;
  std::vector<RunContext*> free_;
  std::vector<std::unique_ptr<RunContext>> contexts_;
};

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
  // The graph's variables are in options.variables, the store.
  Impl(Graph graph, const Runtime& runtime, const CompileOptions& options)
      : graph_(std::move(graph)), runtime_(runtime), options_(options), store_(options_.variables) {
    std::vector<TensorSpec> specs;
    for (const NodeId id : graph_.parameters()) specs.push_back(graph_.node(id).outputs()[0]);
    if (std::ranges::all_of(specs, [](const TensorSpec& spec) { return spec.shape.is_known(); }))
      find_plan(on_host(specs), {});
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const Graph& graph() const { return graph_; }
  const Runtime& runtime() const { return runtime_; }
  VariableStore& store() const { return *store_; }

  // A plan and a context of it, for one call.
  class Lease {
   public:
    // `results`, unless there are none, are for a plan that writes where they are.
    Lease(Impl& program, std::span<const Tensor> feeds, std::span<const Tensor> results = {})
        : program_(program) {
      if (feeds.size() != program.graph_.parameters().size()) program.wrong_count(feeds.size());
      if (results.size() != program.graph_.results().size()) results = {};
      {
        const std::lock_guard<std::mutex> lock(program.mutex_);
        if (!program.plans_.empty() && matches(program.plans_.front()->plan(), feeds, results)) {
          planned_ = program.plans_.front().get();
          ++planned_->leases;
          context_ = planned_->take_free();
        }
      }
      if (planned_ == nullptr) find_plan(feeds, results);
      if (context_ == nullptr) make_context();
    }
    ~Lease() { end(); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    PlannedProgram& planned() const { return *planned_; }
    RunContext& context() const { return *context_; }

    // The run has ended for its caller, and calls of it are in flight: everything stays as it is until they are
    // over. Calls on streams also use feeds and results: those are kept, or, if the caller has them, waited for.
    void leave_behind(std::span<const Tensor> feeds, std::span<const Tensor> results, bool given) noexcept {
      RunContext& context = *std::exchange(context_, nullptr);
      Impl& program = program_;
      // The lambda keeps the plan, the variables and the runtime.
      const auto end = [self = program.shared_from_this(), planned = planned_->shared_from_this(), &context] {
        planned->locks().unlock();
        std::unique_ptr<RunContext> over;
        const std::lock_guard<std::mutex> lock(self->mutex_);
        over = planned->take_out(context);
      };
      const bool on_streams = !planned_->plan().streams.empty();
      try {
        std::vector<Tensor> kept(feeds.begin(), on_streams ? feeds.end() : feeds.begin());
        if (on_streams) kept.insert(kept.end(), results.begin(), results.end());
        const bool waits = given && on_streams;
        if (!waits && internal::drain(context.flights(), [end, kept] { end(); })) return;
      } catch (const std::bad_alloc&) {  // wait here, as without a thread
      }
      while (context.flights().any()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      end();
    }

   private:
    void find_plan(std::span<const Tensor> feeds, std::span<const Tensor> results) {
      std::vector<internal::PlacedSpec> placed;
      for (std::size_t i = 0; i < feeds.size(); ++i) {
        program_.check_feed(i, feeds[i]);
        placed.push_back({feeds[i].spec(), feeds[i].memory()});
      }
      std::vector<MemoryId> wanted;
      for (const Tensor& result : results) wanted.push_back(result.memory());
      const std::shared_ptr<PlannedProgram> found = program_.find_plan(placed, wanted);
      const std::lock_guard<std::mutex> lock(program_.mutex_);
      if (found->dropped && found->leases == 0) program_.dropped_.push_back(found);
      planned_ = found.get();
      ++planned_->leases;
      context_ = planned_->take_free();
    }
    void make_context() {
      try {
        std::unique_ptr<RunContext> fresh = planned_->make_context();
        const std::lock_guard<std::mutex> lock(program_.mutex_);
        context_ = planned_->adopt(std::move(fresh));
      } catch (...) {
        end();
        throw;
      }
    }
    void end() noexcept {
      std::shared_ptr<PlannedProgram> unused;  // destroyed without the mutex
      const std::lock_guard<std::mutex> lock(program_.mutex_);
      if (context_ != nullptr) planned_->give_back(*context_);
      if (--planned_->leases == 0 && planned_->dropped) unused = program_.take_dropped(*planned_);
    }

    Impl& program_;
    PlannedProgram* planned_ = nullptr;  // the cache has it, or the list of those that it dropped
    RunContext* context_ = nullptr;
  };

  void check_feeds(std::span<const Tensor> feeds) const {
    if (feeds.size() != graph_.parameters().size()) wrong_count(feeds.size());
    for (std::size_t i = 0; i < feeds.size(); ++i) check_feed(i, feeds[i]);
  }

  std::shared_ptr<PlannedProgram> plan_for(std::span<const internal::PlacedSpec> feeds) {
    if (feeds.size() != graph_.parameters().size()) wrong_count(feeds.size());
    for (std::size_t i = 0; i < feeds.size(); ++i) check_spec(i, feeds[i].spec);
    return find_plan(feeds, {});
  }

  std::size_t cached_plans() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return plans_.size();
  }

  std::vector<Tensor> order_feeds(std::span<const Feed> feeds) const {
    std::vector<Tensor> ordered(graph_.parameters().size());
    for (const Feed& feed : feeds) {
      const auto place = std::ranges::find_if(graph_.parameters(),
                                              [&](NodeId id) { return graph_.node(id).name() == feed.name; });
      if (place == graph_.parameters().end()) {
        throw InvalidArgument(
            str("there is no placeholder named '", feed.name, "'; the graph has ", placeholders()));
      }
      Tensor& slot = ordered[static_cast<std::size_t>(place - graph_.parameters().begin())];
      if (slot.defined()) throw InvalidArgument(str("placeholder '", feed.name, "' is fed twice"));
      slot = feed.value;
    }
    return ordered;
  }

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

  std::vector<Tensor> run_n(std::uint64_t steps, std::span<const Tensor> feeds, const RunOptions& options,
                            bool awaited, const PrepareResults& prepare) {
    if (steps == 0) throw InvalidArgument("run_n: at least one step is needed for results");
    std::vector<Tensor> kept;
    if (!all_on_host(feeds)) feeds = within_reach(feeds, runtime_, kept);
    std::optional<Lease> lease(std::in_place, *this, feeds);
    std::vector<Tensor> results = make_results(lease->planned().plan());
    if (prepare) prepare(results);
    for (std::uint64_t step = 0; step < steps; ++step) {
      try {
        if (step > 0 && lease->context().runs_ahead()) lease.emplace(*this, feeds);  // the last is under way
        run_step(*lease, feeds, results, options, step, awaited);
      } catch (const std::bad_alloc&) {
        if (step == 0) throw;
        throw RunError(ErrorCode::kOutOfMemory, "there is not enough memory" + after_steps(step), {}, step);
      }
    }
    return results;
  }

  void run_into(std::span<const Tensor> feeds, std::span<Tensor> results, const RunOptions& options) {
    Lease lease(*this, feeds, results);
    check_results(lease.planned().plan(), feeds, results);
    run_step(lease, feeds, results, options, 0, RunContext::is_awaited(), true);
  }

  // One step. Throws RunError; `committed` is the number of earlier steps of the same call. `awaited`: may a
  // run that holds locks be waiting for this one? `given`: are the results the caller's tensors?
  void run_step(Lease& lease, std::span<const Tensor> feeds, std::span<Tensor> results,
                const RunOptions& options, std::uint64_t committed, bool awaited, bool given = false) {
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
        follow_runs_in_flight(planned, context, feeds, results);
      } catch (...) {
        planned.locks().unlock();
        throw;
      }
    }
    RunInfo info{runtime_.seed(), store_->step()};
    info.cancel = options.cancel.stop_possible() ? &options.cancel : nullptr;
    info.deadline = options.deadline ? &*options.deadline : nullptr;
    info.observer = options.observer;
    const RunContext::Outcome outcome =
        context.run(planned.locks().all(), info, event ? &*event : nullptr, awaited);
    if (outcome.committed && !outcome.error && planned.plan().commits) store_->advance_step();
    if (outcome.left) {
      lease.leave_behind(feeds, results, given);
    } else {
      planned.locks().unlock();
    }
    if (!outcome.error && outcome.committed) {
      if (context.runs_ahead()) context.keep(feeds, results);
      return;
    }
    throw_error(planned.plan(), outcome, committed);
  }

  // Until nothing is in flight.
  void wait() {
    std::vector<std::shared_ptr<PlannedProgram>> all;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      all.assign(plans_.begin(), plans_.end());
      all.insert(all.end(), dropped_.begin(), dropped_.end());
    }
    for (const std::shared_ptr<PlannedProgram>& planned : all) {
      for (const std::shared_ptr<WorkInFlight>& work : work_ahead(*planned)) {
        try {
          work->wait(work->last());
        } catch (...) {
          earlier_run_failed(0);
        }
        if (planned->plan().refuses)
          deal_with_refusals(*planned, work, {}, nullptr, 0, RunContext::is_awaited());
      }
    }
  }

 private:
  std::vector<std::shared_ptr<WorkInFlight>> work_ahead(const PlannedProgram& planned) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return planned.work_ahead();
  }

  // The last run of the work is over. If data of it, or of another run of the plan, was refused, those runs and the
  // ones after them did not happen: throws that, unless someone was told when reading a result, and lets runs
  // commit again.
  void deal_with_refusals(PlannedProgram& planned, const std::shared_ptr<WorkInFlight>& work,
                          const RunOptions& options, const RunEvent* event, std::uint64_t committed,
                          bool awaited) {
    const std::shared_ptr<internal::StreamRun::Decision> decision = planned.decision();
    if (decision == nullptr) {  // such runs commit nothing
      if (const Refusals found = take_refusals({&work, 1}); found.why != nullptr)
        did_not_happen(found, committed);
      return;
    }
    work->refusal(work->last(), false);
    if (!decision->is_refused()) return;
    lock_variables(planned, options, event, committed, awaited);  // so that no run begins meanwhile
    Refusals found;
    try {
      if (decision->is_refused()) {
        const std::vector<std::shared_ptr<WorkInFlight>> all = work_ahead(planned);
        for (const std::shared_ptr<WorkInFlight>& other : all) other->wait(other->last());
        found = take_refusals(all);
        decision->clear();
        if (planned.plan().commits) store_->take_back_steps(found.runs);
      }
    } catch (...) {
      planned.locks().unlock();
      earlier_run_failed(committed);
    }
    planned.locks().unlock();
    if (found.why != nullptr) did_not_happen(found, committed);
  }

  struct Refusals {
    std::exception_ptr why;  // null: there are none, or someone was told already
    std::uint64_t runs = 0;
  };
  static Refusals take_refusals(std::span<const std::shared_ptr<WorkInFlight>> all) {
    Refusals found;
    bool told = false;
    for (const std::shared_ptr<WorkInFlight>& work : all) {
      const std::exception_ptr why = work->take_refusal();
      if (why == nullptr) continue;
      told = told || work->is_seen();
      found.why = why;
      ++found.runs;
    }
    if (told) found.why = nullptr;
    return found;
  }
  [[noreturn]] static void did_not_happen(const Refusals& found, std::uint64_t committed) {
    try {
      std::rethrow_exception(found.why);
    } catch (const Error& error) {
      std::throw_with_nested(
          RunError(error.code(),
                   str("a run that had returned did not happen",
                       found.runs > 1 ? str(", nor ", counted(found.runs - 1, "run"), " after it") : "", ": ",
                       error.message(), after_steps(committed)),
                   error.place(), committed));
    }
  }

  // Until the context's last run is over on its devices.
  void wait_for_devices(RunContext& context, const RunOptions& options, std::uint64_t committed) const {
    try {
      while (!context.wait(next_look(options))) check_stop(options, committed);
    } catch (const RunError&) {
      throw;
    } catch (...) {
      earlier_run_failed(committed);
    }
  }

  // What an earlier run left on streams has failed, and is being caught.
  [[noreturn]] static void earlier_run_failed(std::uint64_t committed) {
    ErrorCode code = ErrorCode::kInternal;
    std::string message = "an exception that is not a std::exception";
    ErrorPlace place;
    try {
      throw;
    } catch (const Error& error) {
      code = error.code();
      message = error.message();
      place = error.place();
    } catch (const std::exception& error) {
      message = message_of(error);
    } catch (...) {
    }
    std::throw_with_nested(
        RunError(code,
                 str("a run that had returned failed on its device: ", message,
                     "; its variables may be changed: restore them", after_steps(committed)),
                 std::move(place), committed));
  }

  // Memory of devices that is still used by other runs: streams go on after those, the host waits for them.
  static void follow_runs_in_flight(const PlannedProgram& planned, RunContext& context,
                                    std::span<const Tensor> feeds, std::span<const Tensor> results) {
    if (context.has_streams()) {
      for (std::size_t i = 0; i < feeds.size(); ++i) context.feed_uses()[i] = feeds[i].uses();
      for (std::size_t i = 0; i < results.size(); ++i) context.result_uses()[i] = results[i].uses();
      for (std::size_t i = 0; i < planned.variables().size(); ++i)
        context.variable_uses()[i] = planned.variables()[i]->storage().uses();
      const void* const group = context.work()->group();
      for (const MemoryUses* uses : context.feed_uses())
        if (uses != nullptr) uses->wait_for_others(group, false);
      for (std::size_t i = 0; i < planned.variables().size(); ++i) {
        if (const MemoryUses* uses = context.variable_uses()[i]; uses != nullptr)
          uses->wait_for_others(group, planned.plan().variables[i].written);
      }
      if (!planned.plan().regions_on_streams) return;
    }
    const auto wait = [](const Tensor& tensor, bool writes) {
      if (const MemoryUses* uses = tensor.uses(); uses != nullptr) uses->wait(writes);
    };
    for (const Tensor& feed : feeds) wait(feed, false);
    for (const Tensor& result : results) wait(result, true);
    for (std::size_t i = 0; i < planned.variables().size(); ++i)
      wait(planned.variables()[i]->storage(), planned.plan().variables[i].written);
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

  [[noreturn]] void wrong_count(std::size_t got) const {
    throw InvalidArgument(str("got ", counted(got, "feed"), ", but the graph has ", placeholders()));
  }

  std::string placeholders() const {
    if (graph_.parameters().empty()) return "no placeholders";
    std::string text;
    for (const NodeId id : graph_.parameters()) {
      const Node& node = graph_.node(id);
      text += str(text.empty() ? "'" : ", '", node.name(), "' ", node.outputs()[0]);
    }
    const std::size_t count = graph_.parameters().size();
    return str(count, count == 1 ? " placeholder: " : " placeholders: ", text);
  }

  void check_feed(std::size_t i, const Tensor& feed) const {
    if (feed.defined()) {
      check_spec(i, feed.spec());
      return;
    }
    const Node& node = graph_.node(graph_.parameters()[i]);
    throw InvalidArgument(
        str("placeholder '", node.name(), "' expects ", node.outputs()[0], " and was not fed", made_at(node)),
        place_of_feed(node));
  }

  // The line to look at is that of the call, which whoever names the call adds.
  static ErrorPlace place_of_feed(const Node& node) {
    ErrorPlace place = place_of(node);
    place.file.clear();
    place.line = 0;
    return place;
  }
  static std::string made_at(const Node& node) {
    const ErrorPlace place = place_of(node);
    return place.file.empty() ? "" : str("; it was made at ", place.file, ":", place.line);
  }

  void check_spec(std::size_t i, const TensorSpec& spec) const {
    const Node& node = graph_.node(graph_.parameters()[i]);
    const TensorSpec& expected = node.outputs()[0];
    if (spec.dtype == expected.dtype && spec.shape.is_known() && expected.shape.admits(spec.shape)) return;
    throw InvalidArgument(
        str("placeholder '", node.name(), "' expects ", expected, ", got ", spec, made_at(node)),
        place_of_feed(node));
  }

  // Is the plan for these feeds, and for results in these places, if there are any?
  static bool matches(const Plan& plan, std::span<const Tensor> feeds, std::span<const Tensor> results) {
    for (std::size_t i = 0; i < feeds.size(); ++i) {
      const internal::PlacedSpec& expected = plan.feeds[i];
      if (!feeds[i].defined() || feeds[i].spec() != expected.spec || feeds[i].memory() != expected.memory)
        return false;
    }
    if (results.empty()) return plan.results_where_made;
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (results[i].memory() != plan.results[i].memory) return false;
    }
    return true;
  }

  // The plan for these feeds, and for results in these memories (none: where they are made), moved to the front
  // of the cache. Two threads may both make one; the first to finish is kept.
  std::shared_ptr<PlannedProgram> find_plan(std::span<const internal::PlacedSpec> feeds,
                                            std::span<const MemoryId> results) {
    const auto fits = [&](const Plan& plan) {
      if (!std::ranges::equal(plan.feeds, feeds)) return false;
      if (results.empty()) return plan.results_where_made;
      return std::ranges::equal(plan.results, results, {}, &internal::PlacedSpec::memory);
    };
    const auto find = [&]() -> std::shared_ptr<PlannedProgram> {
      for (auto entry = plans_.begin(); entry != plans_.end(); ++entry) {
        if (!fits((*entry)->plan())) continue;
        plans_.splice(plans_.begin(), plans_, entry);
        return plans_.front();
      }
      return nullptr;
    };
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (auto found = find()) return found;
    }
    internal::PlanRequest request;
    request.feeds = feeds;
    request.results = results;
    request.variable_specs = lockstep::variable_specs(graph_);
    request.variable_memory = [&](const std::string& name) { return store_->find(name)->memory(); };
    auto fresh = std::make_shared<PlannedProgram>(
        runtime_, *store_, internal::make_plan(graph_, runtime_, request, options_), options_.runs_ahead);
    std::shared_ptr<PlannedProgram> dropped;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (auto found = find()) return found;
      plans_.push_front(fresh);
      if (plans_.size() > options_.max_plans) {
        if (plans_.back()->leases > 0) dropped_.push_back(plans_.back());
        dropped = std::move(plans_.back());
        dropped->dropped = true;
        plans_.pop_back();
      }
    }
    return fresh;
  }

  // Under the mutex: takes a plan out that the cache dropped while it was leased.
  std::shared_ptr<PlannedProgram> take_dropped(const PlannedProgram& plan) {
    const auto found = std::ranges::find(dropped_, &plan, &std::shared_ptr<PlannedProgram>::get);
    std::shared_ptr<PlannedProgram> taken = std::move(*found);
    dropped_.erase(found);
    return taken;
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

  static std::string after_steps(std::uint64_t committed) {
    return committed == 0 ? std::string() : str(" (after ", committed, " committed steps)");
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
  mutable std::mutex mutex_;
  std::list<std::shared_ptr<PlannedProgram>> plans_;      // most recently used first
  std::vector<std::shared_ptr<PlannedProgram>> dropped_;  // from the cache, and still leased
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
void Program::wait(SourceSite site) const {
  named_call("Program::wait()", site, [&] { impl().wait(); });
}

std::vector<Tensor> Program::run(std::span<const Tensor> feeds, const RunOptions& options,
                                 SourceSite site) const {
  return run_n(1, feeds, options, site);
}

std::vector<Tensor> Program::run(std::initializer_list<Feed> feeds, const RunOptions& options,
                                 SourceSite site) const {
  return run_n(1, order_feeds(feeds, site), options, site);
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
      self.run_into(feeds, results, options);
      return;
    }
    std::vector<Tensor> kept, kept_results;
    feeds = within_reach(feeds, self.runtime(), kept);
    if (within_reach(results, self.runtime(), kept_results).data() == results.data()) {
      self.run_into(feeds, results, options);
      return;
    }
    // In a memory that the runtime does not know: computed here, and copied there.
    self.run_into(feeds, kept_results, options);
    for (std::size_t i = 0; i < results.size(); ++i) {
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
  named_call("Program::run_async()", site, [&] { impl().check_feeds(feeds); });
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
