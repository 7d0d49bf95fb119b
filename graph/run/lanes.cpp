// graph/run/lanes.cpp - runs clusters on the calling thread and on helpers.
//
// Why no push is missed: a lane that pushes writes the entry and then reads `away_`; a helper that leaves
// adds itself to `away_` and then looks for entries. All four operations are sequentially consistent, so at
// least one of the two sees the other: the pusher calls the helper, or the helper comes back by itself. In the
// same way a caller that goes to sleep sets `asleep_` and then looks for entries, and whoever pushes one, or
// ends the run, does so first and then reads `asleep_`.
#include "lockstep/graph/run/internal/lanes.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "lockstep/core/base/pause.h"

namespace lockstep::internal {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kNone = 0xFFFFFFFFU;
constexpr float kAsUrgent = 0.95F;                          // this share of another's urgency counts as equal
constexpr int kSpinsBeforeStealing = 8;                     // a lane's own cluster may be about to arrive
constexpr std::size_t kMaxEntries = std::size_t{1} << 22U;  // all queues together
constexpr int kSpins = 256;                                 // before giving up the core for a moment
constexpr auto kPatience = std::chrono::microseconds(200);  // of a helper with nothing to do during a run ...
constexpr auto kLinger = std::chrono::microseconds(50);     // ... and between runs

constexpr std::uint64_t tagged(std::uint32_t number, std::uint32_t low) {
  return (std::uint64_t{number} << 32U) | low;
}
constexpr std::uint32_t number_of(std::uint64_t word) { return static_cast<std::uint32_t>(word >> 32U); }
constexpr std::uint32_t low_of(std::uint64_t word) { return static_cast<std::uint32_t>(word); }

// Do both clusters begin with calls of one phase?
bool are_shards_of_one(const Clusters& clusters, std::uint32_t a, std::uint32_t b) {
  const Cluster &one = clusters.clusters[a], &other = clusters.clusters[b];
  return one.begin < one.end && other.begin < other.end &&
         clusters.calls[one.begin].phase == clusters.calls[other.begin].phase;
}

}  // namespace

Lanes::Work::~Work() = default;

Lanes::Lanes(const Clusters& clusters, std::size_t lanes, Scheduler& scheduler, Work& work)
    : clusters_(clusters), scheduler_(scheduler), work_(work), counters_(clusters.clusters.size()) {
  const std::size_t count = clusters.clusters.size();
  const std::size_t helpers = std::min(lanes, count) - 1;
  queues_ = std::vector<Queue>(std::clamp<std::size_t>(kMaxEntries / count, 1, helpers + 1));
  for (Queue& queue : queues_) queue.entries = std::vector<std::atomic<std::uint64_t>>(count);
  if (clusters.awaits) arrived_.entries = std::vector<std::atomic<std::uint64_t>>(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    if (clusters.clusters[i].predecessors == 0) sources_.push_back(i);
  }
  spread_homes();
  is_away_ = std::vector<std::atomic<bool>>(helpers);
  for (std::atomic<bool>& away : is_away_) away.store(true, std::memory_order_relaxed);
  away_.store(static_cast<std::uint32_t>(helpers), std::memory_order_relaxed);
  helpers_ = scheduler.make_task_set([this](std::size_t helper) { work_.run_helper(*this, helper); });
}

Lanes::~Lanes() {
  quit_.store(true, std::memory_order_relaxed);
  helpers_.reset();
}

// Until a run has shown which lane takes what, each lane starts with a contiguous part of a phase's shards.
void Lanes::spread_homes() {
  const auto count = static_cast<std::uint32_t>(clusters_.clusters.size());
  const std::size_t queues = queues_.size();
  for (std::uint32_t begin = 0; begin < count;) {
    std::uint32_t end = begin + 1;
    while (end < count && are_shards_of_one(clusters_, begin, end)) ++end;
    for (std::uint32_t i = begin; i < end; ++i) {
      const std::size_t home = end - begin < queues ? i % queues : (i - begin) * queues / (end - begin);
      counters_[i].home.store(static_cast<std::uint32_t>(home), std::memory_order_relaxed);
    }
    begin = end;
  }
}

bool Lanes::run() noexcept {
  ++number_;
  const auto begin_queue = [&](Queue& queue) {
    queue.tail.store(0, std::memory_order_relaxed);
    queue.head.store(tagged(number_, 0), std::memory_order_relaxed);
  };
  for (Queue& queue : queues_) begin_queue(queue);
  if (clusters_.awaits) {
    begin_queue(arrived_);
    pending_.store(static_cast<std::int64_t>(sources_.size()), std::memory_order_relaxed);
  }
  // Pushing the entries publishes everything written for this run.
  for (const std::uint32_t source : sources_) push_home(source);
  // One helper is needed soon in any case: the clusters are enough work for it.
  call_helpers(std::max<std::size_t>(sources_.size(), 2) - 1);
  int idle = 0;
  while (ended_.load(std::memory_order_acquire) != number_) {
    const std::uint32_t cluster = pop(0, idle >= kSpinsBeforeStealing);
    if (cluster != kNone) {
      run_chain(cluster, 0);
      idle = 0;
    } else if (++idle <= kSpins) {
      pause_briefly();
    } else if (clusters_.awaits && pending_.load(std::memory_order_relaxed) == 0) {
      if (!sleep()) return false;
    } else {
      std::this_thread::yield();
    }
  }
  return true;
}

// --- arrivals

void Lanes::arrive(std::uint32_t cluster) noexcept {
  std::atomic<std::uint32_t>& ended = counters_[cluster].ended;
  if (ended.fetch_add(1, std::memory_order_acq_rel) + 1 != clusters_.clusters[cluster].predecessors) return;
  ended.store(0, std::memory_order_relaxed);
  pending_.fetch_add(1, std::memory_order_relaxed);
  push(arrived_, cluster);
  if (asleep_.load(std::memory_order_seq_cst)) {
    wake();
  } else {
    call_helpers(1);
  }
}

// The caller's thread, until there is something to do. False: the work wants to leave.
bool Lanes::sleep() noexcept {
  std::unique_lock<std::mutex> lock(mutex_);
  woken_ = false;
  asleep_.store(true, std::memory_order_seq_cst);
  bool leaves = false;
  // Nothing is pushed without `asleep_` being seen once the queues were empty here.
  if (ended_.load(std::memory_order_seq_cst) != number_ && !has_entry() &&
      pending_.load(std::memory_order_seq_cst) == 0) {
    std::optional<SteadyTime> ask_again;
    leaves = work_.wants_to_leave(ask_again);
    const auto is_woken = [this] { return woken_; };
    if (!leaves && ask_again) woken_up_.wait_until(lock, *ask_again, is_woken);
    if (!leaves && !ask_again) woken_up_.wait(lock, is_woken);
  }
  asleep_.store(false, std::memory_order_relaxed);
  return !leaves;
}

void Lanes::wake() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  woken_ = true;
  woken_up_.notify_one();
}

// --- clusters

void Lanes::run_chain(std::uint32_t cluster, std::size_t lane) noexcept {
  bool follows = false;
  while (cluster != kNone) {
    cluster = run_one(cluster, lane, follows);
    if (!clusters_.awaits || cluster == kNone) continue;
    const std::uint32_t arrived = pop_from(arrived_);
    if (arrived == kNone) continue;
    push_home(cluster);
    call_helpers(1);
    cluster = arrived;
    follows = false;
  }
}

// Runs a cluster and counts it as ended for its successors; returns one that became ready, for this lane to
// run next.
std::uint32_t Lanes::run_one(std::uint32_t index, std::size_t lane, bool& follows) noexcept {
  const std::vector<Cluster>& clusters = clusters_.clusters;
  const Cluster& cluster = clusters[index];
  const std::uint32_t number = number_;
  work_.run_cluster(index, follows);
  // Counted off before its successors are counted: afterwards the run may end at any time. For a moment
  // nothing seems to be pending, and the caller may fall asleep: pushing an entry wakes it. A caller that leaves
  // because nothing is pending must have seen what the clusters wrote.
  if (clusters_.awaits) pending_.fetch_sub(1, std::memory_order_release);
  const auto home = static_cast<std::uint32_t>(lane % queues_.size());
  if (counters_[index].home.load(std::memory_order_relaxed) != home)
    counters_[index].home.store(home, std::memory_order_relaxed);
  if (cluster.last) {
    ended_.store(number, std::memory_order_seq_cst);
    if (clusters_.awaits && asleep_.load(std::memory_order_seq_cst)) wake();
    return kNone;
  }
  std::uint32_t next = kNone;
  std::uint32_t pushed = 0;
  for (std::uint32_t at = cluster.first_successor; at < cluster.end_successor; ++at) {
    const std::uint32_t successor = clusters_.successors[at];
    std::atomic<std::uint32_t>& ended = counters_[successor].ended;
    if (ended.fetch_add(1, std::memory_order_acq_rel) + 1 != clusters[successor].predecessors) continue;
    ended.store(0, std::memory_order_relaxed);  // for the next run: this run's count is complete
    if (clusters_.awaits) pending_.fetch_add(1, std::memory_order_relaxed);
    // This lane continues with the most urgent successor, which comes first; among equals, with one that it
    // ran last time.
    std::uint32_t other = successor;
    if (next == kNone || (clusters[successor].urgency > kAsUrgent * clusters[next].urgency &&
                          counters_[successor].home.load(std::memory_order_relaxed) == home &&
                          counters_[next].home.load(std::memory_order_relaxed) != home)) {
      std::swap(next, other);
    }
    if (other == kNone) continue;
    push_home(other);
    ++pushed;
  }
  if (pushed > 0) {
    call_helpers(pushed);
    if (clusters_.awaits && asleep_.load(std::memory_order_seq_cst)) wake();
  }
  // Not if time may have passed: calling helpers may take a while, and before a join other lanes may have
  // ended later than this one.
  follows = pushed == 0 && next != kNone && clusters[next].predecessors == 1 &&
            (follows || cluster.begin < cluster.end);
  return next;
}

// --- queues

void Lanes::push_home(std::uint32_t cluster) noexcept {
  push(queues_[counters_[cluster].home.load(std::memory_order_relaxed)], cluster);
}

void Lanes::push(Queue& queue, std::uint32_t cluster) noexcept {
  const std::uint32_t at = queue.tail.fetch_add(1, std::memory_order_relaxed);
  queue.entries[at].store(tagged(number_, cluster), std::memory_order_seq_cst);
}

std::uint32_t Lanes::pop_from(Queue& queue) noexcept {
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

std::uint32_t Lanes::pop(std::size_t lane, bool steal) noexcept {
  const std::size_t own = lane % queues_.size();
  std::uint32_t cluster = clusters_.awaits ? pop_from(arrived_) : kNone;
  if (cluster == kNone) cluster = pop_from(queues_[own]);
  for (std::size_t i = 1; steal && cluster == kNone && i < queues_.size(); ++i) {
    cluster = pop_from(queues_[(own + i) % queues_.size()]);
  }
  return cluster;
}

bool Lanes::has_entry() const noexcept {
  const auto has_one = [](const Queue& queue) {
    const std::uint64_t head = queue.head.load(std::memory_order_seq_cst);
    if (low_of(head) >= queue.entries.size()) return false;
    return number_of(queue.entries[low_of(head)].load(std::memory_order_seq_cst)) == number_of(head);
  };
  return std::ranges::any_of(queues_, has_one) || has_one(arrived_);
}

// --- helpers

// Calls up to `wanted` of the helpers that are away.
void Lanes::call_helpers(std::size_t wanted) noexcept {
  if (away_.load(std::memory_order_seq_cst) == 0) return;
  for (std::size_t helper = 0; helper < is_away_.size() && wanted > 0; ++helper) {
    if (!come_back(helper)) continue;
    --wanted;
    try {
      helpers_->start(helper);
    } catch (const std::bad_alloc&) {  // the lanes that are running go on alone
      go_away(helper);
    }
  }
}

void Lanes::go_away(std::size_t helper) noexcept {
  is_away_[helper].store(true, std::memory_order_release);
  away_.fetch_add(1, std::memory_order_seq_cst);
}

// False if the helper was not away.
bool Lanes::come_back(std::size_t helper) noexcept {
  if (!is_away_[helper].exchange(false, std::memory_order_acq_rel)) return false;
  away_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

void Lanes::help(std::size_t helper) noexcept {
  int idle = 0;
  bool tired = false;
  Clock::time_point since;
  while (!quit_.load(std::memory_order_relaxed)) {
    const std::uint32_t cluster = pop(helper + 1, idle >= kSpinsBeforeStealing);
    if (cluster != kNone) {
      run_chain(cluster, helper + 1);
      idle = 0;
      tired = false;
      continue;
    }
    if (!tired && ++idle <= kSpins) {
      pause_briefly();
      continue;
    }
    if (idle == kSpins + 1) since = Clock::now();
    const bool between_runs =
        ended_.load(std::memory_order_relaxed) == number_of(queues_[0].head.load(std::memory_order_relaxed));
    // Idle for too long, or another task needs the worker.
    if (tired || (between_runs && scheduler_.waiting_starts() != 0)) {
      go_away(helper);
      if (!has_entry() || !come_back(helper)) return;
      idle = 0;
      tired = false;
      continue;
    }
    std::this_thread::yield();
    // Other threads may have had the processor for long, and lanes that waited may have left work here. So
    // being tired takes effect only after another look into the queues.
    tired = idle % 8 == 0 && Clock::now() - since > (between_runs ? kLinger : kPatience);
  }
  go_away(helper);
}

}  // namespace lockstep::internal
