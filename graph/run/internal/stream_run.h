// graph/run/internal/stream_run.h - the part of a run that is on streams of devices.
//
// A StreamRun belongs to a RunContext, and like it is made once and used for many runs, one at a time. In each
// run the context calls begin(), then put() for each segment in turn (graph/run/internal/segments.h), and
// end(). What was put on streams goes on after that; before the next begin() it must be over.
//
// The body of a segment is put there call by call in the first run, recorded in the second one, and replayed
// from then on. A variable that has moved starts this anew. In runs that return while they are on streams, what the last body in
// front of the gate, the gate and the commit do can be one recording (join()): then nothing of it is on streams before
// pass_gate(), which puts all of it there or nothing.
//
// Feeds on a device are copied to where the recording reads them. A body keeps further recordings, which read feeds where they are,
// for the addresses that come again.
//
// Thread safety: one thread at a time.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/core/runtime.h"
#include "lockstep/core/work_in_flight.h"
#include "lockstep/graph/run/internal/drain.h"
#include "lockstep/graph/run/internal/plan.h"

namespace lockstep::internal {

class StreamRun {
 public:
  // Of a plan that has segments. `args` are the run's, by argument of the plan; what streams read of feeds on
  // the host is given an address of this object's own there: is_staged().
  StreamRun(const Plan& plan, const Runtime& runtime, std::span<TensorArg> args);
  // Waits for what is in flight.
  ~StreamRun();
  StreamRun(const StreamRun&) = delete;
  StreamRun& operator=(const StreamRun&) = delete;

  bool is_staged(std::uint32_t arg) const { return is_staged_[arg]; }
  // How the context makes the kernel context of a phase's shard. Called once.
  using MakeContext = std::function<KernelContext(std::uint32_t phase, std::uint32_t shard)>;
  void bind(const MakeContext& make);

  // Whether runs commit is decided on the devices, by this. The contexts of a program share one: after a refusal
  // no run of it commits until it was cleared.
  class Decision;
  std::shared_ptr<Decision> make_decision() const;
  void decide_by(std::shared_ptr<Decision> decision);
  // Records the commit and what is in front of the gate as one, if the plan allows it. The host decides nothing, and every run goes
  // on after it has returned. Called once, after decide_by().
  void join();

  // --- one run
  void begin(std::span<void* const> feeds, std::span<void* const> variables, const RunInfo& info);
  // The memory that the run uses is used by runs in flight, too: its streams go on after those. Null: it is
  // the host's, or nobody else's.
  void follow(MemoryUses* uses, bool writes);
  // Throws what a device refuses; reached() is the phase whose call that was.
  void put(std::uint32_t segment);
  // The host commits. Throws what put() would: then the run has not happened.
  void pass_gate();
  std::uint32_t reached() const { return reached_; }
  // What stands for an event of the plan in this run.
  Event& event_at(std::uint32_t event);
  // Kernels cannot throw on a device: they leave word of data that they refuse. fetch_refusals() puts copies of
  // these words, or of the decision, on the streams, to be looked at when the run is over there.
  void fetch_refusals();
  struct Refusal {
    std::uint32_t phase;
    std::uint32_t position;
  };
  std::optional<Refusal> find_refusal() const;  // the first, in the order of the plan
  // Says when each call began and ended, in a run that is timed (RunInfo::observer) and over. `tell` is given the
  // device call's number, its begin and its end.
  using Tell = std::function<void(std::uint32_t call, SteadyTime begin, SteadyTime end)>;
  void tell_times(const Tell& tell) const;
  // Sets the events behind everything that is on streams now: the run in flight, and its number.
  std::uint64_t end() { return work_->record(); }
  const std::shared_ptr<WorkInFlight>& work() const { return work_; }
  // The run has failed: what it has put on streams counts as flights until it is over.
  void leave(Flights& flights) noexcept;

 private:
  static constexpr std::size_t kFeedSets = 4;  // recordings of a body that read feeds where they are
  class Flight;
  class FeedReaders;
  // A recording, and the addresses at which it reads the feeds of FeedCopies; none: it reads the copies.
  struct Take {
    std::vector<void*> feeds;
    std::unique_ptr<Recording> recording;
    std::uint64_t used = 0;  // in this run of the body, last
  };
  // The front copies a feed, and only the body reads the copy.
  struct FeedCopy {
    std::uint32_t feed = 0;
    std::uint32_t call = 0;           // of the device
    std::vector<std::uint32_t> args;  // of the body
  };
  // What is recorded as one: the body of a segment, or those of two with the gate between them.
  struct Body {
    std::uint32_t first = 0, end = 0;  // segments
    bool records = false;
    std::vector<std::uint32_t> streams;  // it is recorded and replayed on the first
    bool is_awaited = false;             // something besides waits for events of it
    std::vector<bool> waits_inside;      // by wait of the plan: it is part of the recording
    std::vector<FeedCopy> copies;
    std::uint64_t runs = 0;  // with the variables where they are now
    std::vector<void*> variables;
    std::vector<Take> takes;
    std::vector<void*> feeds;                             // by copy, in this run
    std::array<std::vector<void*>, kFeedSets> seen = {};  // in the runs before, by turns
    std::unique_ptr<Event> over;                          // after all of it
    std::vector<std::unique_ptr<Event>> before;           // by further stream: what was there before
  };
  // What kernels of a stream read besides their arguments, or leave there.
  struct Block {
    std::size_t stream = 0;
    Tensor run, staged_run;          // seed and step
    Tensor refusal, staged_refusal;  // the smallest refusal so far
    bool is_clear = false;           // no refusal is there
  };
  struct StagedFeed {
    std::uint32_t feed;
    Tensor staged;
  };

  ComputeDevice& device_of(std::uint32_t stream) const;
  void make_blocks();
  void stage_feeds(std::span<TensorArg> args);
  void find_users();
  const std::shared_ptr<MemoryPool>& pool_of(const Block& block) const;
  const void* find_decision(const PlannedPhase& phase) const;
  Body make_body(std::uint32_t first, std::uint32_t end) const;
  bool is_in(const Body& body, std::uint32_t event) const;
  std::vector<FeedCopy> find_feed_copies(const Body& body) const;
  bool may_read_feeds(const Body& body) const;
  void find_waits_inside(Body& body) const;
  void put_blocks();
  template <class On>
  void put_gate(const On& on);
  void fetch_decision(Stream& first);
  void put_calls(std::uint32_t begin, std::uint32_t end);
  void make_timings();
  Take* find_take(Body& body);
  Take* make_take(Body& body, bool reads_feeds);
  std::unique_ptr<Recording> record(const Body& body, std::span<void* const> feeds);
  void replay(const Body& body, Take& take);

  const Plan& plan_;
  const Runtime runtime_;
  std::vector<Stream*> streams_;
  std::vector<Stream*> users_;                  // of variables, and of feeds on devices
  std::vector<std::unique_ptr<Event>> events_;  // of the plan
  std::shared_ptr<WorkInFlight> work_;
  std::unique_ptr<Flight[]> flying_;     // by stream: what a run that failed left there
  std::vector<KernelContext> contexts_;  // by device call
  std::vector<Body> bodies_;             // by segment; of two that are one, the first has both
  std::vector<Block> blocks_;
  std::vector<StagedFeed> staged_;
  std::span<TensorArg> args_;
  std::vector<bool> is_staged_;   // by argument
  std::vector<bool> is_skipped_;  // by device call, in this run: what it would copy is read where it is
  std::uint32_t reached_ = 0;  // the phase whose call is put on its stream; segments come one after another
  struct Timing {
    std::unique_ptr<Event> begin, end;
  };
  std::vector<Timing> timings_;  // by device call, once a run was timed
  bool is_timed_ = false;
  std::shared_ptr<Decision> decision_;           // null: the host decides
  Tensor gathered_;                              // where it is made: the words of all blocks
  std::vector<std::unique_ptr<Event>> arrived_;  // by block, but the first: its word is final
  std::unique_ptr<Event> decided_;
  bool began_ = false;     // something of the run is on streams
  bool fetched_ = false;   // copies of refusals are
  bool is_gated_ = false;  // the decision is made there
  struct Waiting {
    const Body* body = nullptr;
    Take* take = nullptr;
  };
  Waiting waiting_;                    // for the gate: it is replayed with it
  std::vector<const Body*> replayed_;  // by segment: what its body was part of; null: put call by call
  std::span<void*const> feeds_, variables_;
  const RunInfo* info_ = nullptr;
};

// Words in the memories of a plan's devices.
class StreamRun::Decision {
 public:
  explicit Decision(std::vector<Tensor> words) : words_(std::move(words)) { clear(); }

  const Tensor& word(std::size_t block) const { return words_[block]; }
  // Nothing uses the words now: runs commit again.
  void clear();
  // Someone has found a refusal: it has to be cleared.
  bool is_refused() const { return refused_.load(std::memory_order_acquire); }
  void set_refused() { refused_.store(true, std::memory_order_release); }

 private:
  std::vector<Tensor> words_;  // by block
  std::atomic<bool> refused_{false};
};

}  // namespace lockstep::internal
