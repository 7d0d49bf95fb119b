#include "lockstep/graph/internal/run_context.h"

#include <algorithm>
#include <thread>

namespace lockstep {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kNone = 0xFFFFFFFFU;
constexpr int kSpins = 256;                                      // before giving up the core for a moment
constexpr auto kPatience = std::chrono::microseconds(200);       // of a helper with nothing to do

void relax() {
#if defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#elif defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

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

bool RunContext::held_by_this_thread(const RunLock* lock) {
  for (const Active* active = Active::top; active != nullptr; active = active->outer_) {
    if (std::ranges::find(active->context_.locks_, lock) != active->context_.locks_.end()) return true;
  }
  return false;
}

RunContext::RunContext(const Graph& graph, const Plan& plan, const Runtime& runtime,
                       std::function<void(RunContext&)> release)
    : graph_(graph), plan_(plan), runtime_(runtime), release_(std::move(release)) {
  for (std::size_t i = 0; i < plan.arenas.size(); ++i) {
    const auto bytes = static_cast<std::size_t>(plan.memory.arena_bytes[i]);
    arenas_.push_back(bytes == 0 ? nullptr : runtime.pool(plan.arenas[i])->allocate(bytes));
  }
  args_.resize(plan.args.size());
  for (std::uint32_t i = 0; i < plan.args.size(); ++i) {
    const Location& from = plan.args[i].location;
    args_[i].spec = plan.args[i].spec;
    switch (from.kind) {
      case Location::Kind::kArena: args_[i].data = static_cast<char*>(arenas_[from.index]) + from.offset; break;
      case Location::Kind::kConstant: args_[i].data = const_cast<void*>(plan.constants[from.index].raw()); break;
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
    KernelContext& context = contexts_.emplace_back(std::span<const TensorArg>(first, phase.inputs),
                                                    std::span<const TensorArg>(first + phase.inputs, phase.outputs),
                                                    &info_);
    void* scratch = plan.scratch_offsets[call.phase] < 0
                        ? nullptr
                        : static_cast<char*>(arenas_[phase.arena]) + plan.scratch_offsets[call.phase];
    context.set_shard(phase.finish ? phase.shards : call.shard, phase.shards, scratch);
    context.set_replica(phase.replica);
    instructions_.push_back({&plan.kernels[phase.kernel], &context});
  }
  if (plan.lanes > 1) {
    num_helpers_ = std::min(plan.lanes, plan.clusters.clusters.size()) - 1;
    waits_ = std::vector<std::atomic<std::uint32_t>>(plan.clusters.clusters.size());
    queue_ = std::vector<std::atomic<std::uint32_t>>(plan.clusters.clusters.size());
    helpers_ = runtime_.scheduler().make_task_set(num_helpers_, [this](std::size_t) { lane(true); });
    recall_ = runtime_.scheduler().make_task_set(1, [this](std::size_t) { lane(true); });
  }
}

RunContext::~RunContext() {
  helpers_.reset();  // these wait for whoever may still look in here
  recall_.reset();
  for (std::size_t i = 0; i < arenas_.size(); ++i) {
    if (arenas_[i] != nullptr) {
      runtime_.pool(plan_.arenas[i])->deallocate(arenas_[i], static_cast<std::size_t>(plan_.memory.arena_bytes[i]));
    }
  }
}

void RunContext::bind(std::span<const Tensor> feeds, std::span<Tensor> results,
                      std::span<StoredVariable* const> variables) {
  // Kernels only read what is fed.
  for (const Patch& patch : feed_patches_) args_[patch.arg].data = const_cast<void*>(feeds[patch.source].raw());
  for (const Patch& patch : result_patches_) args_[patch.arg].data = results[patch.source].raw();
  for (const Patch& patch : variable_patches_) args_[patch.arg].data = variables[patch.source]->storage().raw();
}

RunContext::Outcome RunContext::run(std::span<const Tensor> feeds, std::span<Tensor> results,
                                    std::span<StoredVariable* const> variables, std::span<RunLock* const> locks,
                                    RunInfo info, const RunOptions& options) {
  bind(feeds, results, variables);
  info_ = info;
  options_ = &options;
  locks_ = locks;
  watched_ = options.observer != nullptr || options.deadline.has_value() || options.cancel.stop_possible();
  state_.store(State::kRunning, std::memory_order_relaxed);
  failing_.clear(std::memory_order_relaxed);
  outcome_ = Outcome();
  if (options.observer != nullptr) options.observer->on_run_begin();
  if (plan_.lanes > 1) {
    run_lanes();
  } else {
    references_.store(1, std::memory_order_relaxed);
    const Active active(*this);
    run_inline();
  }
  if (options.observer != nullptr) options.observer->on_run_end();
  options_ = nullptr;
  return std::move(outcome_);
}

void RunContext::done() {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) release_(*this);
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
  if (state_.load(std::memory_order_acquire) == State::kFailed) return true;
  if (!watched_) return false;
  if (options_->cancel.stop_requested()) {
    stop(ErrorCode::kCancelled);
    return true;
  }
  if (options_->deadline && Clock::now() >= *options_->deadline) {
    stop(ErrorCode::kDeadlineExceeded);
    return true;
  }
  return false;
}

bool RunContext::pass_gate() {
  if (should_stop()) return false;
  state_.store(State::kCommitting, std::memory_order_release);
  outcome_.committed = true;
  return true;
}

// --- calls

template <bool kWatched>
void RunContext::run_calls(std::uint32_t begin, std::uint32_t end) {
  std::uint32_t at = begin;
  const bool committing = state_.load(std::memory_order_relaxed) == State::kCommitting;
  Observer* const observer = kWatched ? options_->observer : nullptr;
  const auto event = [&] {
    const Call& call = plan_.clusters.calls[at];
    const PhaseCall& phase = plan_.phases[call.phase];
    return NodeEvent{graph_.node(phase.node), phase.finish ? phase.shards : call.shard, phase.shards,
                     runtime_.scheduler().this_worker()};
  };
  try {
    for (; at < end; ++at) {
      if constexpr (kWatched) {
        if (!committing && should_stop()) return;
        if (observer != nullptr) observer->on_node_begin(event());
      }
      const Instruction& instruction = instructions_[at];
      if (instruction.context == nullptr) {
        (*static_cast<const std::function<void()>*>(instruction.target))();
      } else {
        (*static_cast<const KernelFn*>(instruction.target))(*instruction.context);
      }
      if constexpr (kWatched) {
        if (observer != nullptr) observer->on_node_end(event());
      }
    }
  } catch (...) {
    fail(at);
    if constexpr (kWatched) {
      if (observer != nullptr) observer->on_node_end(event());
    }
  }
}

void RunContext::run_range(std::uint32_t begin, std::uint32_t end) {
  if (watched_) {
    run_calls<true>(begin, end);
  } else {
    run_calls<false>(begin, end);
  }
}

void RunContext::run_inline() {
  const auto end = static_cast<std::uint32_t>(instructions_.size());
  run_range(0, plan_.clusters.commit_begin);
  if (pass_gate() && plan_.clusters.commit_begin < end) run_range(plan_.clusters.commit_begin, end);
}

// --- lanes

void RunContext::run_lanes() {
  const std::vector<Cluster>& clusters = plan_.clusters.clusters;
  head_.store(0, std::memory_order_relaxed);
  std::uint32_t ready = 0;
  for (std::uint32_t i = 0; i < clusters.size(); ++i) {
    waits_[i].store(clusters[i].predecessors, std::memory_order_relaxed);
    queue_[i].store(0, std::memory_order_relaxed);
  }
  for (std::uint32_t i = 0; i < clusters.size(); ++i) {
    if (clusters[i].predecessors == 0) queue_[ready++].store(i + 1, std::memory_order_relaxed);
  }
  tail_.store(ready, std::memory_order_relaxed);
  away_.store(0, std::memory_order_relaxed);
  remaining_.store(static_cast<std::uint32_t>(clusters.size()), std::memory_order_relaxed);
  references_.store(static_cast<std::uint32_t>(1 + num_helpers_), std::memory_order_release);
  helpers_->start();
  lane(false);
  // Without a gate nothing but the end decides.
  if (outcome_.committed || state_.load(std::memory_order_acquire) == State::kFailed) return;
  pass_gate();
}

void RunContext::push(std::uint32_t cluster) {
  const std::uint32_t at = tail_.fetch_add(1, std::memory_order_acq_rel);
  queue_[at].store(cluster + 1, std::memory_order_release);
}

std::uint32_t RunContext::pop() {
  std::uint32_t at = head_.load(std::memory_order_acquire);
  while (at < tail_.load(std::memory_order_acquire)) {
    const std::uint32_t entry = queue_[at].load(std::memory_order_acquire);
    if (entry == 0) return kNone;  // its pusher is about to write it
    if (head_.compare_exchange_weak(at, at + 1, std::memory_order_acq_rel, std::memory_order_acquire)) return entry - 1;
  }
  return kNone;
}

// Runs a cluster and counts it off its successors; returns one that became ready, for this lane to go on with.
std::uint32_t RunContext::run_cluster(std::uint32_t index) {
  const Cluster& cluster = plan_.clusters.clusters[index];
  if (cluster.gate) {
    pass_gate();
  } else if (cluster.commit ? state_.load(std::memory_order_acquire) == State::kCommitting : !should_stop()) {
    run_range(cluster.begin, cluster.end);
  }
  std::uint32_t next = kNone;
  std::uint32_t pushed = 0;
  for (std::uint32_t at = cluster.first_successor; at < cluster.end_successor; ++at) {
    const std::uint32_t successor = plan_.clusters.successors[at];
    if (waits_[successor].fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
    if (next == kNone) {
      next = successor;
    } else {
      push(successor);
      ++pushed;
    }
  }
  // More than this lane can do, and a helper went home: call it back.
  std::uint32_t away = away_.load(std::memory_order_relaxed);
  if (pushed > 0 && away > 0 &&
      away_.compare_exchange_strong(away, away - 1, std::memory_order_acq_rel, std::memory_order_relaxed)) {
    references_.fetch_add(1, std::memory_order_relaxed);  // this lane's own reference keeps it above 0
    recall_->start();
  }
  return next;
}

void RunContext::lane(bool helper) {
  {
    const Active active(*this);
    std::uint32_t next = kNone;
    int idle = 0;
    Clock::time_point since;
    while (remaining_.load(std::memory_order_acquire) != 0) {
      if (next == kNone) next = pop();
      if (next == kNone) {
        if (++idle <= kSpins) {
          relax();
          continue;
        }
        if (idle == kSpins + 1) since = Clock::now();
        std::this_thread::yield();
        if (helper && idle % 16 == 0 && Clock::now() - since > kPatience) {
          away_.fetch_add(1, std::memory_order_acq_rel);
          break;
        }
        continue;
      }
      idle = 0;
      next = run_cluster(next);
      remaining_.fetch_sub(1, std::memory_order_acq_rel);
    }
  }
  if (helper) done();
}

}  // namespace lockstep
