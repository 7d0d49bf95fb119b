#include "lockstep/graph/run/internal/run_context.h"

#include <algorithm>
#include <new>
#include <thread>

#include "lockstep/core/pause.h"

namespace lockstep::internal {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kNone = 0xFFFFFFFFU;
constexpr float kAsUrgent = 0.95F;                          // of another's urgency counts as the same
constexpr int kSpinsBeforeStealing = 8;                     // a lane's own cluster may be just about to come
constexpr std::size_t kMaxEntries = std::size_t{1} << 22U;  // of all queues together
constexpr int kSpins = 256;                                 // before giving up the core for a moment
constexpr auto kPatience = std::chrono::microseconds(200);  // of a helper with nothing to do during a run ...
constexpr auto kLinger = std::chrono::microseconds(50);     // ... and between runs

constexpr std::uint64_t tagged(std::uint32_t number, std::uint32_t low) {
  return (std::uint64_t{number} << 32U) | low;
}
constexpr std::uint32_t number_of(std::uint64_t word) { return static_cast<std::uint32_t>(word >> 32U); }
constexpr std::uint32_t low_of(std::uint64_t word) { return static_cast<std::uint32_t>(word); }

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

bool RunContext::is_held(const RunLock* lock, const Active* active) {
  for (; active != nullptr; active = active->outer_) {
    const RunContext& context = active->context_;
    if (std::ranges::find(context.locks_, lock) != context.locks_.end()) return true;
    // A helper works for a thread that may itself be inside runs, and waits for this one.
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

// Names the largest value that was to lie there.
[[noreturn]] void explain_shortage(const Plan& plan, std::uint32_t arena, const Error& error) {
  const PhaseCall* maker = nullptr;
  const TensorSpec* largest = nullptr;
  for (const PhaseCall& phase : plan.phases) {
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

// Do both clusters begin with calls of one phase?
bool are_shards_of_one(const Clusters& clusters, std::uint32_t a, std::uint32_t b) {
  const Cluster &one = clusters.clusters[a], &other = clusters.clusters[b];
  return one.begin < one.end && other.begin < other.end &&
         clusters.calls[one.begin].phase == clusters.calls[other.begin].phase;
}

}  // namespace

RunContext::RunContext(const Plan& plan, const Runtime& runtime)
    : plan_(plan),
      runtime_(runtime),
      feeds_(plan.feeds.size()),
      results_(plan.results.size()),
      variables_(plan.variables.size()) {
  for (std::size_t i = 0; i < plan.arenas.size(); ++i) {
    try {
      arenas_.push_back(
          Tensor::empty(DType::kU8, {plan.memory.arena_bytes[i]}, runtime.pool(plan.arenas[i])));
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
  for (const Call& call : calls) {
    const PhaseCall& phase = plan.phases[call.phase];
    if (const std::int32_t plain = plan.plain_of[phase.kernel]; plain >= 0) {
      instructions_.push_back({&plan.plain_calls[static_cast<std::size_t>(plain)], nullptr});
      continue;
    }
    const TensorArg* first = args_.data() + phase.first_arg;
    KernelContext& context =
        contexts_.emplace_back(std::span<const TensorArg>(first, phase.inputs),
                               std::span<const TensorArg>(first + phase.inputs, phase.outputs), &info_);
    void* scratch = plan.scratch_offsets[call.phase] < 0
                        ? nullptr
                        : static_cast<char*>(arenas_[phase.arena].raw()) + plan.scratch_offsets[call.phase];
    context.set_shard(phase.finish ? phase.shards : call.shard, phase.shards, scratch);
    context.set_replica(std::max(phase.replica, 0));
    instructions_.push_back({&plan.kernels[phase.kernel], &context});
  }
  if (plan.lanes < 2) return;
  const std::size_t clusters = plan.clusters.clusters.size();
  const std::size_t helpers = std::min(plan.lanes, clusters) - 1;
  counters_ = std::vector<Counter>(clusters);
  const std::size_t queues = std::clamp<std::size_t>(kMaxEntries / clusters, 1, helpers + 1);
  queues_ = std::vector<Queue>(queues);
  for (Queue& queue : queues_) queue.entries = std::vector<std::atomic<std::uint64_t>>(clusters);
  for (std::uint32_t i = 0; i < clusters; ++i) {
    if (plan.clusters.clusters[i].predecessors == 0) sources_.push_back(i);
  }
  // Until a run has shown who takes what, each lane begins with a stretch of a phase's shards.
  for (std::uint32_t begin = 0; begin < clusters;) {
    std::uint32_t end = begin + 1;
    while (end < clusters && are_shards_of_one(plan.clusters, begin, end)) ++end;
    for (std::uint32_t i = begin; i < end; ++i) {
      const std::size_t home = end - begin < queues ? i % queues : (i - begin) * queues / (end - begin);
      counters_[i].home.store(static_cast<std::uint32_t>(home), std::memory_order_relaxed);
    }
    begin = end;
  }
  is_away_ = std::vector<std::atomic<bool>>(helpers);
  for (std::atomic<bool>& away : is_away_) away.store(true, std::memory_order_relaxed);
  away_.store(static_cast<std::uint32_t>(helpers), std::memory_order_relaxed);
  helpers_ = runtime_.scheduler().make_task_set([this](std::size_t slot) { help(slot); });
}

RunContext::~RunContext() {
  quit_.store(true, std::memory_order_relaxed);
  helpers_.reset();  // waits for those who are still here
}

void RunContext::bind() {
  for (const Patch& patch : feed_patches_) args_[patch.arg].data = feeds_[patch.source];
  for (const Patch& patch : result_patches_) args_[patch.arg].data = results_[patch.source];
  for (const Patch& patch : variable_patches_) args_[patch.arg].data = variables_[patch.source];
}

RunContext::Outcome RunContext::run(std::span<RunLock* const> locks, const RunInfo& info,
                                    const RunEvent* event, bool awaited) noexcept {
  bind();
  info_ = info;
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
  if (told != nullptr) told->on_run_begin(*event);
  {
    const Active active(*this);
    if (plan_.lanes > 1) {
      run_lanes();
    } else {
      run_inline();
    }
  }
  if (gate_ != nullptr && outcome_.committed) gate_->end(written_);
  if (told != nullptr) told->on_run_end(*event);
  return std::move(outcome_);
}

// --- stopping

void RunContext::fail(std::uint32_t call) {
  if (!failing_.test_and_set(std::memory_order_acq_rel)) {  // the first failure is the one that counts
    outcome_.error = std::current_exception();
    outcome_.failed_call = call;
  }
  state_.store(State::kFailed, std::memory_order_release);
}

void RunContext::stop(ErrorCode why) {
  if (!failing_.test_and_set(std::memory_order_acq_rel)) outcome_.stopped = why;
  state_.store(State::kFailed, std::memory_order_release);
}

bool RunContext::should_stop() {
  // What a lane that failed left behind is read when the run has ended, not here.
  const State state = state_.load(std::memory_order_relaxed);
  if (state == State::kFailed) return true;
  if (!watched_ || state == State::kCommitting) return false;  // nothing interrupts the commit
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
  if (gate_ != nullptr) gate_->begin(written_);
  state_.store(State::kCommitting, std::memory_order_release);
  outcome_.committed = true;
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
  const PhaseCall& phase = plan_.phases[call.phase];
  const NodeEvent event{.run = *event_,
                        .node = *phase.source,
                        .shard = phase.finish ? phase.shards : call.shard,
                        .shards = phase.shards,
                        .worker = worker,
                        .replica = phase.replica,
                        .bytes_read = phase.bytes_read,
                        .bytes_written = phase.bytes_written,
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

template <bool kWatched>
void RunContext::run_calls(std::uint32_t begin, std::uint32_t end, bool follows) {
  std::uint32_t at = begin;
  const bool committing = state_.load(std::memory_order_relaxed) == State::kCommitting;
  const bool observed = kWatched && info_.observer != nullptr;
  const int worker = observed ? runtime_.scheduler().this_worker() : -1;
  try {
    for (; at < end; ++at) {
      if (kWatched && !committing && should_stop()) return;
      if (observed) {
        run_observed_call(at, worker, follows || at > begin);
      } else {
        run_call(at);
      }
    }
  } catch (...) {
    fail(at);
  }
}

void RunContext::run_range(std::uint32_t begin, std::uint32_t end, bool follows) {
  if (watched_) {
    run_calls<true>(begin, end, follows);
  } else {
    run_calls<false>(begin, end, follows);
  }
}

void RunContext::run_inline() {
  const auto end = static_cast<std::uint32_t>(instructions_.size());
  run_range(0, plan_.clusters.commit_begin);
  if (pass_gate() && plan_.clusters.commit_begin < end) run_range(plan_.clusters.commit_begin, end);
}

// --- lanes

void RunContext::run_lanes() {
  ++number_;
  for (Queue& queue : queues_) {
    queue.tail.store(0, std::memory_order_relaxed);
    queue.head.store(tagged(number_, 0), std::memory_order_relaxed);
  }
  // All that was written for this run comes with the entries.
  for (const std::uint32_t source : sources_) push(source);
  // One helper is needed soon in any case: the plan is worth it.
  call_helpers(std::max<std::size_t>(sources_.size(), 2) - 1);
  int idle = 0;
  while (ended_.load(std::memory_order_acquire) != number_) {
    const std::uint32_t cluster = pop(0, idle >= kSpinsBeforeStealing);
    if (cluster != kNone) {
      run_cluster_and_followers(cluster, 0);
      idle = 0;
    } else if (++idle <= kSpins) {
      internal::pause_briefly();
    } else {
      std::this_thread::yield();
    }
  }
  // Without a gate nothing but the end decides.
  if (!outcome_.committed && state_.load(std::memory_order_acquire) != State::kFailed) pass_gate();
}

// Up to `wanted` of those that are away.
void RunContext::call_helpers(std::size_t wanted) {
  if (away_.load(std::memory_order_acquire) == 0) return;
  for (std::size_t slot = 0; slot < is_away_.size() && wanted > 0; ++slot) {
    if (!is_away_[slot].exchange(false, std::memory_order_acq_rel)) continue;
    away_.fetch_sub(1, std::memory_order_relaxed);
    --wanted;
    try {
      helpers_->start(slot);
    } catch (const std::bad_alloc&) {  // the lanes that are here go on alone
      leave(slot);
    }
  }
}

void RunContext::leave(std::size_t slot) {
  is_away_[slot].store(true, std::memory_order_release);
  away_.fetch_add(1, std::memory_order_release);
}

void RunContext::push(std::uint32_t cluster) {
  Queue& queue = queues_[counters_[cluster].home.load(std::memory_order_relaxed)];
  const std::uint32_t at = queue.tail.fetch_add(1, std::memory_order_relaxed);
  queue.entries[at].store(tagged(number_, cluster), std::memory_order_release);
}

std::uint32_t RunContext::pop_from(Queue& queue) {
  std::uint64_t head = queue.head.load(std::memory_order_acquire);
  while (low_of(head) < queue.entries.size()) {
    const std::uint64_t entry = queue.entries[low_of(head)].load(std::memory_order_acquire);
    if (number_of(entry) != number_of(head)) return kNone;  // not there yet
    if (queue.head.compare_exchange_weak(head, head + 1, std::memory_order_acq_rel,
                                         std::memory_order_acquire)) {
      return low_of(entry);
    }
  }
  return kNone;
}

std::uint32_t RunContext::pop(std::size_t lane, bool steal) {
  const std::size_t own = lane % queues_.size();
  std::uint32_t cluster = pop_from(queues_[own]);
  for (std::size_t i = 1; steal && cluster == kNone && i < queues_.size(); ++i) {
    cluster = pop_from(queues_[(own + i) % queues_.size()]);
  }
  return cluster;
}

// Runs a cluster and counts it off its successors; returns one that became ready, for this lane to go on
// with. `follows`: whether another ended just before.
std::uint32_t RunContext::run_cluster(std::uint32_t index, std::size_t lane, bool& follows) {
  const std::vector<Cluster>& clusters = plan_.clusters.clusters;
  const Cluster& cluster = clusters[index];
  const std::uint32_t number = number_;
  if (cluster.gate) {
    pass_gate();
  } else if (cluster.commit ? state_.load(std::memory_order_acquire) == State::kCommitting : !should_stop()) {
    run_range(cluster.begin, cluster.end, follows);
  }
  const auto home = static_cast<std::uint32_t>(lane % queues_.size());
  if (counters_[index].home.load(std::memory_order_relaxed) != home) {
    counters_[index].home.store(home, std::memory_order_relaxed);
  }
  if (cluster.last) {
    ended_.store(number, std::memory_order_release);
    return kNone;
  }
  const bool up = number % 2 == 1;
  std::uint32_t next = kNone;
  std::uint32_t pushed = 0;
  for (std::uint32_t at = cluster.first_successor; at < cluster.end_successor; ++at) {
    const std::uint32_t successor = plan_.clusters.successors[at];
    std::atomic<std::uint32_t>& ended = counters_[successor].ended;
    const bool ready =
        up ? ended.fetch_add(1, std::memory_order_acq_rel) + 1 == clusters[successor].predecessors
           : ended.fetch_sub(1, std::memory_order_acq_rel) == 1;
    if (!ready) continue;
    // This lane goes on with the most urgent, which comes first; of equals, with one that it ran last time.
    std::uint32_t other = successor;
    if (next == kNone || (clusters[successor].urgency > kAsUrgent * clusters[next].urgency &&
                          counters_[successor].home.load(std::memory_order_relaxed) == home &&
                          counters_[next].home.load(std::memory_order_relaxed) != home)) {
      std::swap(next, other);
    }
    if (other == kNone) continue;
    push(other);
    ++pushed;
  }
  if (pushed > 0) call_helpers(pushed);
  // Calling helpers may take its time, and what others ran before a join may have ended since.
  follows = pushed == 0 && next != kNone && clusters[next].predecessors == 1 &&
            (follows || cluster.begin < cluster.end);
  return next;
}

void RunContext::run_cluster_and_followers(std::uint32_t cluster, std::size_t lane) {
  bool follows = false;
  while (cluster != kNone) cluster = run_cluster(cluster, lane, follows);
}

void RunContext::help(std::size_t slot) {
  const Active active(*this);
  int idle = 0;
  bool tired = false;
  Clock::time_point since;
  while (!quit_.load(std::memory_order_relaxed)) {
    const std::uint32_t cluster = pop(slot + 1, idle >= kSpinsBeforeStealing);
    if (cluster != kNone) {
      run_cluster_and_followers(cluster, slot + 1);
      idle = 0;
      tired = false;
      continue;
    }
    if (tired) break;
    if (++idle <= kSpins) {
      internal::pause_briefly();
      continue;
    }
    if (idle == kSpins + 1) since = Clock::now();
    const bool between_runs =
        ended_.load(std::memory_order_relaxed) == number_of(queues_[0].head.load(std::memory_order_relaxed));
    if (between_runs && runtime_.scheduler().waiting_starts() != 0) break;  // somebody else needs the worker
    std::this_thread::yield();
    // Others may have had the processor for long: whoever waited for this lane then has left something for
    // it.
    tired = idle % 8 == 0 && Clock::now() - since > (between_runs ? kLinger : kPatience);
  }
  leave(slot);
}

}  // namespace lockstep::internal
