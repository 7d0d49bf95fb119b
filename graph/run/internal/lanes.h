// graph/run/internal/lanes.h - runs clusters on the calling thread and on helpers, again and again.
//
// A lane is a thread that takes ready clusters from queues until none is left: the caller's thread, and one
// helper, a task of a Scheduler, for each further lane. A lane looks into its own queue first, which holds
// the clusters that it ran last time, whose data may still be in its cache. Then it looks into the other
// queues. Any one lane can finish a run alone. A helper does not know about runs: it looks for clusters until
// it has found none for a while, or until another task needs its worker. So the next run often finds it still
// there.
//
// A cluster that awaits something becomes ready by arrive(), which any thread may call. Lanes take such
// clusters first, so that what they make possible starts early. While all that is left waits for arrivals,
// the caller's thread sleeps; if the work then wants to end, run() returns although clusters are left.
//
// Thread safety: run() from one thread at a time; arrive() from any.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "lockstep/core/base/steady_time.h"
#include "lockstep/core/scheduler.h"
#include "lockstep/graph/run/internal/clusters.h"

namespace lockstep::internal {

class LOCKSTEP_API Lanes {
 public:
  // What the clusters do. It must outlive the lanes.
  class Work {
   public:
    virtual ~Work();
    // Called on some lane, once the predecessors have run. `follows`: another cluster ended on this lane just
    // before.
    virtual void run_cluster(std::uint32_t cluster, bool follows) noexcept = 0;
    // Called on a helper's thread when the helper starts: calls lanes.help(helper), which returns when the
    // helper leaves.
    virtual void run_helper(Lanes& lanes, std::size_t helper) noexcept { lanes.help(helper); }
    // Called on the caller's thread, when all that is left waits for arrivals: shall run() return at once? If
    // not, the thread sleeps until one comes, or until the time that is set here, and then asks again.
    virtual bool wants_to_leave(std::optional<SteadyTime>& /*ask_again*/) noexcept { return false; }
  };

  // Exactly one cluster is `last`. The clusters and the scheduler must outlive the lanes.
  Lanes(const Clusters& clusters, std::size_t lanes, Scheduler& scheduler, Work& work);
  ~Lanes();  // waits for helpers that have not left
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  // Runs all clusters once, each after its predecessors. Every cluster sees what was written before the call,
  // and the caller sees what the clusters wrote. False: the work wanted to leave; then there can be no other
  // run, and arrive() may still be called.
  bool run() noexcept;
  // What the cluster awaits has come: once in each run.
  void arrive(std::uint32_t cluster) noexcept;
  void help(std::size_t helper) noexcept;

 private:
  // An array that each run fills from the start. Entries and the head carry the run's number, so that a
  // helper that looks while one run ends and the next begins cannot take an old entry for a new one.
  struct alignas(64) Queue {
    std::atomic<std::uint64_t> head{0};  // number << 32 | place of the next entry
    alignas(64) std::atomic<std::uint32_t> tail{0};
    std::vector<std::atomic<std::uint64_t>> entries;  // number << 32 | cluster
  };
  // By cluster, each on its own cache line.
  struct alignas(64) Counter {
    std::atomic<std::uint32_t> ended{0};  // predecessors that have ended in this run
    std::atomic<std::uint32_t> home{0};   // the queue of the lane that ran it last, or that starts with it
  };

  void spread_homes();
  void run_chain(std::uint32_t cluster, std::size_t lane) noexcept;
  std::uint32_t run_one(std::uint32_t cluster, std::size_t lane, bool& follows) noexcept;
  void push(Queue& queue, std::uint32_t cluster) noexcept;
  void push_home(std::uint32_t cluster) noexcept;
  std::uint32_t pop(std::size_t lane, bool steal) noexcept;
  static std::uint32_t pop_from(Queue& queue) noexcept;
  bool has_entry() const noexcept;
  void call_helpers(std::size_t wanted) noexcept;
  void go_away(std::size_t helper) noexcept;
  bool come_back(std::size_t helper) noexcept;
  bool sleep() noexcept;
  void wake() noexcept;

  const Clusters& clusters_;
  Scheduler& scheduler_;
  Work& work_;
  std::uint32_t number_ = 0;  // of this run
  std::vector<Counter> counters_;
  std::vector<std::uint32_t> sources_;  // clusters without predecessors
  std::vector<Queue> queues_;           // the caller's first; as many as lanes, or fewer in very large plans
  alignas(64) std::atomic<std::uint32_t> ended_{0};  // the number of the last run that has ended
  alignas(64) std::atomic<std::uint32_t> away_{0};   // helpers that have left and were not called back
  std::atomic<bool> quit_{false};
  std::vector<std::atomic<bool>> is_away_;  // by helper
  // Only if there are clusters that await something:
  Queue arrived_;                                     // they lie here when they are ready
  alignas(64) std::atomic<std::int64_t> pending_{0};  // clusters that are ready or running
  std::atomic<bool> asleep_{false};                   // the caller's thread
  std::mutex mutex_;
  std::condition_variable woken_up_;
  bool woken_ = false;
  std::unique_ptr<Scheduler::TaskSet> helpers_;  // one task each
};

}  // namespace lockstep::internal
