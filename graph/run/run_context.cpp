// graph/run/run_context.cpp - what changes during one run of a plan.
#include "lockstep/graph/run/internal/run_context.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "lockstep/graph/ir/internal/deferral.h"
#include "lockstep/graph/ir/internal/group_rounds.h"

namespace lockstep::internal {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPollForStop = std::chrono::milliseconds(5);  // a stop request wakes nobody
constexpr auto kLeaveAfter = std::chrono::microseconds(50);  // before a failed run leaves its flights behind

}  // namespace

// The runs that the calling thread is working on, innermost first.
struct RunContext::Active {
  explicit Active(const RunContext& context) : context_(context), outer_(top) { top = this; }
  ~Active() { top = outer_; }
  Active(const Active&) = delete;
  Active& operator=(const Active&) = delete;

  const RunContext& context_;
  Active* outer_;
  static thread_local Active* top;
};
thread_local RunContext::Active* RunContext::Active::top = nullptr;

// One call of a plan that may go on after it has returned.
class RunContext::DeferredCall final : public Deferral {
 public:
  // `call` starts it, `await` is the cluster that awaits it, and a failure is that of `phase`, which awaits
  // it.
  void bind(RunContext& run, std::uint32_t call, std::uint32_t await, std::uint32_t phase) {
    run_ = &run;
    call_ = call;
    await_ = await;
    phase_ = phase;
  }
  std::uint32_t phase() const { return phase_; }
  std::uint32_t call() const { return call_; }
  std::int32_t event() const { return run_->plan_.phases[phase_].event; }

  // Before the kernel is called; after it has returned; after it has thrown, or in place of calling it.
  void prepare() { state_.store(State::kIdle, std::memory_order_relaxed); }
  void settle() noexcept {
    if (state_.load(std::memory_order_relaxed) == State::kIdle) run_->lanes_->arrive(await_);
  }
  void give_up() noexcept {
    const State state = state_.load(std::memory_order_relaxed);
    if (state != State::kEnded) run_->lanes_->arrive(await_);
    if (state == State::kDeferred) run_->flights_.drop();
  }

  // Of a run that is observed and has ended: from when to when the call went on. Null: it did not.
  std::optional<std::pair<SteadyTime, SteadyTime>> span() const {
    if (state_.load(std::memory_order_relaxed) != State::kEnded) return std::nullopt;
    return std::pair(began_, ended_);
  }

  void begin() override {
    if (state_.load(std::memory_order_relaxed) != State::kIdle) begun_twice();
    if (run_->info_.observer != nullptr) began_ = Clock::now();
    state_.store(State::kDeferred, std::memory_order_relaxed);
    run_->flights_.add();
  }

 private:
  enum class State : std::uint8_t { kIdle, kDeferred, kEnded };

  void end(std::exception_ptr why) noexcept override {
    if (run_->info_.observer != nullptr) ended_ = Clock::now();
    LOCKSTEP_CHECK(state_.exchange(State::kEnded, std::memory_order_relaxed) == State::kDeferred,
                   "a deferred call was completed twice");
    if (why != nullptr) run_->fail(phase_, std::move(why));
    run_->lanes_->arrive(await_);
    run_->flights_.drop();
  }

  RunContext* run_ = nullptr;
  std::uint32_t call_ = 0;
  std::uint32_t await_ = 0;  // the cluster
  std::uint32_t phase_ = 0;
  std::atomic<State> state_{State::kIdle};
  SteadyTime began_, ended_;  // of a run that is observed
};

bool RunContext::is_held(const RunLock* lock, const Active* active) {
  for (; active != nullptr; active = active->outer_) {
    const RunContext& context = active->context_;
    if (std::ranges::find(context.locks_, lock) != context.locks_.end()) return true;
    // A helper works for a calling thread, which waits for this run and may itself be inside other runs.
    if (context.caller_ != active->outer_ && is_held(lock, context.caller_)) return true;
  }
  return false;
}

bool RunContext::is_awaited() {
  if (Active::top == nullptr) return false;
  const RunContext& context = Active::top->context_;
  return context.awaited_ || !context.locks_.empty();
}

bool RunContext::held_by_this_thread(const RunLock* lock) { return is_held(lock, Active::top); }

namespace {

// Names the largest value that was planned for the arena.
[[noreturn]] void explain_shortage(const Plan& plan, std::uint32_t arena, const Error& error) {
  const PlannedPhase* maker = nullptr;
  const TensorSpec* largest = nullptr;
  for (const PlannedPhase& phase : plan.phases) {
    for (std::uint32_t at = 0; at < phase.outputs; ++at) {
      const PlannedArg& arg = plan.args[phase.first_arg + phase.inputs + at];
      const bool here = arg.location.kind == Location::Kind::kArena && arg.location.index == arena;
      if (!here || phase.source == nullptr) continue;
      if (largest != nullptr && num_bytes(*arg.spec) <= num_bytes(*largest)) continue;
      maker = &phase;
      largest = arg.spec;
    }
  }
  if (maker == nullptr) throw Error(error);
  throw Error(error.code(),
              str(error.message(), "; the largest value of the step is ", *largest, ", ", num_bytes(*largest),
                  " bytes, of '", maker->source->name(),
                  "': make it smaller (a loop that gradients are taken of keeps every one of its max_trips)"),
              place_of(*maker->source));
}

}  // namespace

RunContext::RunContext(const Plan& plan, const Runtime& runtime, std::vector<Tensor>* shared)
    : plan_(plan),
      runtime_(runtime),
      feeds_(plan.feeds.size()),
      results_(plan.results.size()),
      variables_(plan.variables.size()) {
  for (std::size_t i = 0; i < plan.arenas.size(); ++i) {
    const bool shares = shared != nullptr && i >= plan.first_shared_arena;
    const std::size_t number = i - plan.first_shared_arena;
    if (shares && number < shared->size()) {
      arenas_.push_back((*shared)[number]);
      continue;
    }
    try {
      arenas_.push_back(
          Tensor::empty(DType::kU8, {plan.memory.arena_bytes[i]}, runtime.pool(plan.arenas[i])));
      if (shares) shared->push_back(arenas_.back());
    } catch (const Error& error) {
      explain_shortage(plan, static_cast<std::uint32_t>(i), error);
    }
  }
  args_.resize(plan.args.size());
  for (std::uint32_t i = 0; i < plan.args.size(); ++i) {
    const Location& from = plan.args[i].location;
    args_[i].spec = plan.args[i].spec;
    switch (from.kind) {
      case Location::Kind::kArena:
        args_[i].data = static_cast<char*>(arenas_[from.index].raw()) + from.offset;
        break;
      case Location::Kind::kConstant:
        args_[i].data = const_cast<void*>(plan.constants[from.index].raw());
        break;
      case Location::Kind::kFeed: feed_patches_.push_back({i, from.index}); break;
      case Location::Kind::kResult: result_patches_.push_back({i, from.index}); break;
      case Location::Kind::kVariable: variable_patches_.push_back({i, from.index}); break;
    }
  }
  const std::vector<Call>& calls = plan.clusters.calls;
  contexts_.reserve(calls.size());  // instructions point into it
  instructions_.reserve(calls.size());
  if (!plan.segments.empty()) bind_streams();
  for (const Call& call : calls) {
    const PlannedPhase& phase = plan.phases[call.phase];
    if (phase.segment >= 0) {
      instructions_.push_back({&segments_[static_cast<std::size_t>(phase.segment)], nullptr});
      continue;
    }
    if (const std::int32_t plain = plan.plain_of[phase.kernel]; plain >= 0) {
      instructions_.push_back({&plan.plain_calls[static_cast<std::size_t>(plain)], nullptr});
      continue;
    }
    contexts_.push_back(make_context(phase, call.phase, call.shard));
    instructions_.push_back({&plan.kernels[phase.kernel], &contexts_.back()});
  }
  if (plan.clusters.sequential) return;
  if (plan.clusters.awaits) bind_deferred();
  Lanes::Work& work = *this;
  lanes_ = std::make_unique<Lanes>(plan.clusters, plan.lanes, runtime_.scheduler(), work);
}

void RunContext::bind_streams() {
  streams_ = std::make_unique<StreamRun>(plan_, runtime_, args_);
  std::erase_if(feed_patches_, [this](const Patch& patch) { return streams_->is_staged(patch.arg); });
  streams_->bind([this](std::uint32_t phase, std::uint32_t shard) {
    return make_context(plan_.phases[phase], phase, shard);
  });
  for (std::uint32_t i = 0; i < plan_.segments.size(); ++i)
    segments_.push_back([this, i] { run_segment(i); });
  segment_awaits_.resize(plan_.segments.size());
  commits_on_streams_ = std::ranges::any_of(plan_.segments, &Segment::commit);
  feed_uses_.resize(feeds_.size());
  result_uses_.resize(results_.size());
  variable_uses_.resize(variables_.size());
  kept_.reserve(feeds_.size() + results_.size());
}

KernelContext RunContext::make_context(const PlannedPhase& phase, std::uint32_t number, std::uint32_t shard) {
  const TensorArg* first = args_.data() + phase.first_arg;
  KernelContext context(std::span<const TensorArg>(first, phase.inputs),
                        std::span<const TensorArg>(first + phase.inputs, phase.outputs), &info_);
  const Plan::Scratch& room = plan_.scratch[number];
  void* scratch = room.offset < 0 ? nullptr : static_cast<char*>(arenas_[room.arena].raw()) + room.offset;
  context.set_shard(phase.finish ? phase.shards : shard, phase.shards, scratch);
  context.set_replica(std::max(phase.replica, 0));
  return context;
}

void RunContext::bind_deferred() {
  const Clusters& clusters = plan_.clusters;
  // By phase that starts something: the clusters that await it.
  std::vector<SmallVector<std::uint32_t, 1>> awaits_of(plan_.phases.size());
  std::size_t count = 0;
  for (std::uint32_t i = 0; i < clusters.clusters.size(); ++i) {
    if (!clusters.clusters[i].awaits) continue;
    awaits_of[plan_.phases[clusters.calls[clusters.clusters[i].begin].phase].started_by].push_back(i);
    ++count;
  }
  deferred_ = std::make_unique<DeferredCall[]>(count);
  num_deferred_ = count;
  std::uint32_t next = 0;
  for (const Cluster& cluster : clusters.clusters) {
    first_deferred_.push_back(next);
    for (std::uint32_t at = cluster.begin; at < cluster.end; ++at) {
      for (const std::uint32_t await : awaits_of[clusters.calls[at].phase]) {
        deferred_[next].bind(*this, at, await, clusters.calls[clusters.clusters[await].begin].phase);
        const std::int32_t segment = plan_.phases[clusters.calls[at].phase].segment;
        if (segment >= 0) {
          segment_awaits_[static_cast<std::size_t>(segment)].push_back(next);
        } else {
          instructions_[at].context->set_deferral(&deferred_[next]);
        }
        ++next;
      }
    }
  }
}

RunContext::~RunContext() = default;

void RunContext::bind() {
  for (const Patch& patch : feed_patches_) args_[patch.arg].data = feeds_[patch.source];
  for (const Patch& patch : result_patches_) args_[patch.arg].data = results_[patch.source];
  for (const Patch& patch : variable_patches_) args_[patch.arg].data = variables_[patch.source];
}

RunContext::Outcome RunContext::run(std::span<RunLock* const> locks, const RunInfo& info,
                                    const RunEvent* event, bool awaited) noexcept {
  bind();
  info_ = info;
  votes_ = std::exchange(info_.votes, false);  // runs inside its nodes do not
  if (streams_ != nullptr) streams_->begin(feeds_, variables_, info_);
  caller_ = Active::top;
  awaited_ = awaited || is_awaited();
  event_ = event;
  Observer* const told = event != nullptr ? info.observer : nullptr;
  if (event == nullptr && info.observer != nullptr) event_ = caller_->context_.event_;
  locks_ = locks;
  watched_ = info.observer != nullptr || info.deadline != nullptr || info.cancel != nullptr;
  state_.store(State::kRunning, std::memory_order_relaxed);
  failing_.clear(std::memory_order_relaxed);
  outcome_ = Outcome();
  if (plan_.defers) {
    outcome_known_.store(false, std::memory_order_relaxed);
    flights_.reset(info.flights);
    info_.flights = &flights_;
  }
  if (info.observer != nullptr) {
    for (std::size_t i = 0; i < num_deferred_; ++i) deferred_[i].prepare();
  }
  if (told != nullptr) told->on_run_begin(*event);
  {
    const Active active(*this);
    if (streams_ != nullptr) follow_runs_in_flight();
    if (lanes_ != nullptr) {
      const bool complete = lanes_->run();
      if (plan_.defers) end_run(complete);
      // Without a gate the run commits when all clusters have ended.
      if (!outcome_.committed && state_.load(std::memory_order_acquire) != State::kFailed) pass_gate();
    } else {
      run_inline();
      if (plan_.defers) end_run(true);
    }
    if (streams_ != nullptr) end_streams();
    if (info_.observer != nullptr && outcome_.committed && !outcome_.left) {
      if (streams_ != nullptr) tell_spans();
      tell_exchanges();
    }
  }
  if (gate_ != nullptr && outcome_.committed) gate_->end(written_);
  if (told != nullptr) told->on_run_end(*event);
  return std::move(outcome_);
}

// Of a plan that defers calls. `complete`: all clusters have run, or were counted off.
void RunContext::end_run(bool complete) {
  if (complete && !flights_.any()) return;
  const bool failed = state_.load(std::memory_order_acquire) == State::kFailed;
  // Calls that have ended may be about to say so; of a run that did not fail there are no others.
  const SteadyTime leave_at = Clock::now() + kLeaveAfter;
  while (complete && flights_.any() && (!failed || Clock::now() < leave_at)) std::this_thread::yield();
  outcome_.left = !complete || flights_.any();
  // Whoever failed may be about to write why.
  while (failed && !outcome_known_.load(std::memory_order_acquire)) std::this_thread::yield();
}

// --- stopping

void RunContext::fail(std::optional<std::uint32_t> phase, std::exception_ptr error) {
  if (!failing_.test_and_set(std::memory_order_acq_rel)) {  // the first failure is the one that counts
    outcome_.error = std::move(error);
    outcome_.failed_phase = phase;
    outcome_known_.store(true, std::memory_order_release);
  }
  state_.store(State::kFailed, std::memory_order_release);
}

void RunContext::stop(ErrorCode why) {
  if (!failing_.test_and_set(std::memory_order_acq_rel)) {
    outcome_.stopped = why;
    outcome_known_.store(true, std::memory_order_release);
  }
  state_.store(State::kFailed, std::memory_order_release);
}

bool RunContext::wants_to_leave(std::optional<SteadyTime>& ask_again) noexcept {
  if (should_stop()) return flights_.any();
  ask_again = next_look();
  return false;
}

// When a thread that sleeps has to ask whether the run is to stop; never, if nothing can stop it.
std::optional<SteadyTime> RunContext::next_look() const {
  const State state = state_.load(std::memory_order_relaxed);
  if (state == State::kVoting || state == State::kCommitting) return std::nullopt;
  std::optional<SteadyTime> next;
  if (info_.deadline != nullptr) next = *info_.deadline;
  if (info_.cancel == nullptr) return next;
  const SteadyTime soon = Clock::now() + kPollForStop;
  return next ? std::min(*next, soon) : soon;
}

bool RunContext::should_stop() {
  // Relaxed is enough: what the failed lane wrote is read after the run has ended, not here.
  const State state = state_.load(std::memory_order_relaxed);
  if (state == State::kFailed) return true;
  // Nothing interrupts the vote and the commit.
  if (!watched_ || state == State::kVoting || state == State::kCommitting) return false;
  if (info_.cancel != nullptr && info_.cancel->stop_requested()) {
    stop(ErrorCode::kCancelled);
    return true;
  }
  if (info_.deadline != nullptr && Clock::now() >= *info_.deadline) {
    stop(ErrorCode::kDeadlineExceeded);
    return true;
  }
  return false;
}

bool RunContext::pass_gate() {
  if (should_stop()) return false;
  if (streams_ != nullptr && !ahead_ && !wait_for_streams()) return false;
  if (votes_ && !vote()) return false;
  if (gate_ != nullptr) gate_->begin(written_);
  if (streams_ != nullptr) {
    try {
      streams_->pass_gate();
    } catch (...) {
      if (gate_ != nullptr) gate_->end(written_);
      fail(streams_->reached(), std::current_exception());
      return false;
    }
  }
  state_.store(State::kCommitting, std::memory_order_release);
  outcome_.committed = true;
  return true;
}

bool RunContext::vote() {
  State running = State::kRunning;
  if (!state_.compare_exchange_strong(running, State::kVoting, std::memory_order_acq_rel)) return false;
  try {
    info_.rounds->vote();
  } catch (...) {
    fail(std::nullopt, std::current_exception());
    return false;
  }
  return true;
}

// --- calls

void RunContext::run_call(std::uint32_t at) {
  const Instruction& instruction = instructions_[at];
  if (instruction.context == nullptr) {
    (*static_cast<const std::function<void()>*>(instruction.target))();
  } else {
    (*static_cast<const KernelFn*>(instruction.target))(*instruction.context);
  }
}

void RunContext::run_observed_call(std::uint32_t at, int worker, bool follows) {
  const Call& call = plan_.clusters.calls[at];
  const PlannedPhase& phase = plan_.phases[call.phase];
  if (phase.segment >= 0) {  // its calls run later, on streams
    run_call(at);
    return;
  }
  const NodeEvent event{.run = *event_,
                        .node = *phase.source,
                        .shard = phase.finish ? phase.shards : call.shard,
                        .shards = phase.shards,
                        .worker = worker,
                        .replica = phase.replica,
                        .bytes_read = phase.bytes_read,
                        .bytes_written = phase.bytes_written,
                        .bytes_moved = phase.bytes_moved,
                        .multiply_adds = phase.multiply_adds,
                        .copies = phase.copies,
                        .follows = follows};
  info_.observer->on_node_begin(event);
  try {
    run_call(at);
  } catch (...) {
    info_.observer->on_node_end(event);
    throw;
  }
  info_.observer->on_node_end(event);
}

// False: it failed, or the run is to stop.
template <bool kWatched>
bool RunContext::run_calls(std::uint32_t begin, std::uint32_t end, bool follows) {
  std::uint32_t at = begin;
  const bool committing = state_.load(std::memory_order_relaxed) == State::kCommitting;
  const bool observed = kWatched && info_.observer != nullptr;
  const int worker = observed ? runtime_.scheduler().this_worker() : -1;
  try {
    for (; at < end; ++at) {
      if (kWatched && !committing && should_stop()) return false;
      if (observed) {
        run_observed_call(at, worker, follows || at > begin);
      } else {
        run_call(at);
      }
    }
  } catch (...) {
    const std::uint32_t phase = plan_.clusters.calls[at].phase;
    const std::int32_t segment = plan_.phases[phase].segment;
    fail(segment < 0 ? phase : streams_->reached(), std::current_exception());
    return false;
  }
  return true;
}

bool RunContext::run_range(std::uint32_t begin, std::uint32_t end, bool follows) {
  return watched_ ? run_calls<true>(begin, end, follows) : run_calls<false>(begin, end, follows);
}

void RunContext::run_inline() {
  const auto end = static_cast<std::uint32_t>(instructions_.size());
  run_range(0, plan_.clusters.commit_begin);
  if (pass_gate() && plan_.clusters.commit_begin < end) run_range(plan_.clusters.commit_begin, end);
}

// --- clusters, on some lane

void RunContext::run_cluster(std::uint32_t index, bool follows) noexcept {
  const Cluster& cluster = plan_.clusters.clusters[index];
  if (cluster.gate) {
    pass_gate();
  } else if (cluster.awaits) {  // what it waited for has arrived
  } else if (cluster.starts) {
    run_starting_cluster(index, follows);
  } else if (cluster.commit ? state_.load(std::memory_order_acquire) == State::kCommitting : !should_stop()) {
    run_range(cluster.begin, cluster.end, follows);
  }
}

void RunContext::run_starting_cluster(std::uint32_t index, bool follows) {
  const Cluster& cluster = plan_.clusters.clusters[index];
  std::uint32_t begin = cluster.begin;
  const std::span<DeferredCall> all(deferred_.get() + first_deferred_[index],
                                    deferred_.get() + first_deferred_[index + 1]);
  // Each call that starts something, with the calls in front of it.
  for (std::size_t i = 0; i < all.size();) {
    std::size_t next = i;
    for (; next < all.size() && all[next].call() == all[i].call(); ++next) all[next].prepare();
    const std::span<DeferredCall> started = all.subspan(i, next - i);
    i = next;
    const std::uint32_t end = started[0].call() + 1;
    const bool runs = !should_stop();
    const bool started_all = runs && run_range(begin, end, follows);
    for (DeferredCall& deferred : started) started_all ? deferred.settle() : deferred.give_up();
    if (!runs) continue;
    follows = true;
    begin = end;
  }
  if (begin < cluster.end && !should_stop()) run_range(begin, cluster.end, follows);
}

// --- streams

void RunContext::run_segment(std::uint32_t index) {
  streams_->put(index);
  for (const std::uint32_t i : segment_awaits_[index]) {
    DeferredCall& awaited = deferred_[i];
    awaited.begin();
    try {
      streams_->event_at(static_cast<std::uint32_t>(awaited.event())).when_done(awaited);
    } catch (...) {
      awaited.failed(std::current_exception());
    }
  }
}

// What uses the same memory on devices, and has not come to its end there, comes first.
void RunContext::follow_runs_in_flight() {
  try {
    for (MemoryUses* const uses : feed_uses_) streams_->follow(uses, false);
    for (MemoryUses* const uses : result_uses_) streams_->follow(uses, true);
    for (std::size_t i = 0; i < variable_uses_.size(); ++i)
      streams_->follow(variable_uses_[i], plan_.variables[i].written);
  } catch (...) {
    fail(std::nullopt, std::current_exception());
  }
}

// False: the run failed, or is to stop.
bool RunContext::wait_for_streams() {
  try {
    if (!outcome_.committed) streams_->fetch_refusals();
    const std::uint64_t number = streams_->end();
    while (!streams_->work()->wait(number, next_look())) {
      if (should_stop()) return false;
    }
    if (outcome_.committed) return true;
    if (const std::optional<StreamRun::Refusal> refusal = streams_->find_refusal()) {
      fail(refusal->phase, std::make_exception_ptr(refused(*refusal)));
      return false;
    }
  } catch (...) {
    fail(std::nullopt, std::current_exception());
    return false;
  }
  return true;
}

// The run has ended for the host: what it put on streams goes on, is waited for, or left behind.
void RunContext::end_streams() {
  if (outcome_.committed) {
    if (ahead_ && outcome_.error == nullptr) {
      try {
        streams_->fetch_refusals();
        const std::uint64_t number = streams_->end();
        note_uses(number);
        if (info_.observer != nullptr) streams_->work()->wait(number);
        return;
      } catch (...) {
        fail(std::nullopt, std::current_exception());
      }
    } else if (!commits_on_streams_ || wait_for_streams()) {
      return;
    }
  }
  streams_->leave(flights_);
  end_run(!outcome_.left);
}

void RunContext::tell_spans() {
  try {
    streams_->tell_times([this](std::uint32_t at, SteadyTime begin, SteadyTime end) {
      const DeviceCall& call = plan_.device_calls[at];
      const PlannedPhase& phase = plan_.phases[call.phase];
      const PlannedStream& stream = plan_.streams[static_cast<std::size_t>(phase.stream)];
      info_.observer->on_span({.run = *event_,
                               .node = *phase.source,
                               .shard = phase.finish ? phase.shards : call.shard,
                               .shards = phase.shards,
                               .replica = phase.replica,
                               .bytes_read = phase.bytes_read,
                               .bytes_written = phase.bytes_written,
                               .bytes_moved = phase.bytes_moved,
                               .multiply_adds = phase.multiply_adds,
                               .copies = phase.copies,
                               .device = stream.device,
                               .stream = stream.role,
                               .begin = begin,
                               .end = end});
    });
  } catch (...) {  // the device is lost, and whoever uses it next is told
    return;
  }
}

// Calls of groups, which go on by themselves after their nodes have made them, one after the other.
void RunContext::tell_exchanges() {
  try {
    std::vector<std::pair<std::pair<SteadyTime, SteadyTime>, const PlannedPhase*>> spans;  // by end
    for (std::size_t i = 0; i < num_deferred_; ++i) {
      const PlannedPhase& phase = plan_.phases[deferred_[i].phase()];
      const bool exchanges = phase.event < 0 && has(phase.source->op().effects, Effect::kCollective);
      if (const auto span = deferred_[i].span(); span && exchanges) spans.emplace_back(*span, &phase);
    }
    std::ranges::sort(spans, {}, [](const auto& span) { return span.first.second; });
    SteadyTime free = SteadyTime::min();  // of the ones before
    for (const auto& [span, phase] : spans) {
      const std::string& device = phase->source->device();
      info_.observer->on_span({.run = *event_,
                               .node = *phase->source,
                               .shard = phase->shards,
                               .shards = phase->shards,
                               .replica = phase->replica,
                               .bytes_read = phase->bytes_read,
                               .bytes_written = phase->bytes_written,
                               .bytes_moved = phase->bytes_moved,
                               .multiply_adds = phase->multiply_adds,
                               .device = Device::parse(device.empty() ? "cpu:0" : device),
                               .stream = StreamRole::kCommunication,
                               .begin = std::max(span.first, free),
                               .end = span.second});
      free = span.second;
    }
  } catch (const std::bad_alloc&) {  // then it is not told
    return;
  }
}

void RunContext::note_uses(std::uint64_t number) {
  const auto note = [&](MemoryUses* uses, bool writes, bool judged = false) {
    if (uses != nullptr) uses->add(streams_->work(), number, writes, judged);
  };
  try {
    for (MemoryUses* const uses : feed_uses_) note(uses, false);
    for (MemoryUses* const uses : result_uses_) note(uses, true, plan_.refuses);
    for (std::size_t i = 0; i < variable_uses_.size(); ++i)
      note(variable_uses_[i], plan_.variables[i].written);
  } catch (const std::bad_alloc&) {
    streams_->work()->wait(number);  // then there is nothing to note
  }
}

void RunContext::run_ahead(std::shared_ptr<StreamRun::Decision>& decision) {
  ahead_ = true;
  if (plan_.refuses && commits_on_streams_) {
    if (decision == nullptr) decision = streams_->make_decision();
    streams_->decide_by(decision);
  }
  streams_->join();
  if (!plan_.refuses) return;
  const auto look = [this, decided = commits_on_streams_ ? decision : nullptr]() -> std::exception_ptr {
    const std::optional<StreamRun::Refusal> refusal = streams_->find_refusal();
    if (!refusal) return nullptr;
    if (decided != nullptr) decided->set_refused();
    return std::make_exception_ptr(refused(*refusal));
  };
  const void* const group = commits_on_streams_ ? static_cast<const void*>(decision.get()) : streams_.get();
  streams_->work()->judge_by(look, group);
}

RefusedData RunContext::refused(const StreamRun::Refusal& refusal) const {
  const Node& node = *plan_.phases[refusal.phase].source;
  const char* const why = node.op().traits.refuses_floats ? "a number there is NaN or infinite"
                                                          : "an integer there is out of range";
  return {str("'", node.name(), "' (", node.op().name, ") was refused its data at position ",
              refusal.position, ": ", why),
          refusal.position, place_of(node)};
}

void RunContext::keep(std::span<const Tensor> feeds, std::span<const Tensor> results) {
  kept_.assign(results.begin(), results.end());
  for (const Tensor& feed : feeds) {
    if (feed.memory() != kHostMemory) kept_.push_back(feed);
  }
}

bool RunContext::is_over() const {
  return streams_ == nullptr || streams_->work()->is_over(streams_->work()->last());
}

bool RunContext::wait(std::optional<SteadyTime> deadline) {
  if (streams_ != nullptr && !streams_->work()->wait(streams_->work()->last(), deadline)) return false;
  kept_.clear();
  return true;
}

void RunContext::run_helper(Lanes& lanes, std::size_t helper) noexcept {
  const Active active(*this);
  lanes.help(helper);
}

}  // namespace lockstep::internal
