// io/traces/trace.h - what ran when.
//
//   TraceRecorder recorder;
//   for (...) program.run_into(feeds, results, {.observer = &recorder});   // any number of runs, programs and threads
//   const Trace trace = recorder.trace();
//   write_file_whole("step.trace.json", to_chrome_trace(trace));   // opens in ui.perfetto.dev and chrome://tracing
//   std::cout << to_text(summarize(trace));                        // io/traces/trace_summary.h
//
// A TraceRecorder keeps the last events of every thread that worked on a run; older ones are overwritten and
// counted, so that memory stays bounded in a long run. Recording hardly ever locks: each thread writes into
// memory of its own, with stamps of the CPU's counter, and a call that follows another takes the end stamp of
// that call as its own start. A Trace is a value: it owns its names and needs neither the recorder nor the
// programs any more.
//
// Thread safety: one recorder may observe any number of runs at once. trace() may be called at any time:
// calls, runs and waits that have not ended by then are not in it, and threads that record may have to wait
// for a moment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/run/observer.h"

namespace lockstep {

// The role of a node in the step as a whole.
enum class TracedWork : std::uint8_t {
  kCompute,
  kCollective,  // brings values of replicas together: a collective, or a node that one was lowered to
  kCopy,        // moves a value from one device to another
};

struct TracedNode {
  std::string name = {};
  std::string op = {};
  std::string device = {};  // empty: not placed
  std::string site = {};    // "model.cpp:12" of the user's line; empty: unknown
  TracedWork work = TracedWork::kCompute;
  DType dtype = DType::kF32;                 // of its first output, if it has one
  std::vector<std::uint32_t> inputs = {};    // the nodes that give its inputs, in Trace::nodes
  std::vector<std::uint32_t> controls = {};  // the nodes it runs after
  bool passes_on = false;                    // may be its first input under another name, and make no call
  bool is_result = false;                    // of the graph it lies in
  bool updates_variable = false;
  bool in_region = false;  // of another node
};

// All times are nanoseconds since the recorder was made (Trace::origin). Calls, runs and waits on one track nest; `depth`
// says how deep.
struct TracedCall {
  std::uint32_t node = 0;   // in Trace::nodes
  std::uint32_t track = 0;  // in Trace::tracks
  std::uint32_t depth = 0;
  std::int64_t begin = 0, end = 0;
  std::uint64_t run = 0;
  std::int64_t shard = 0, shards = 1;  // as in NodeEvent
  int replica = -1;
  std::int64_t bytes_read = 0, bytes_written = 0;  // by all shards together; at most 2^40 - 1
  // Of all shards together, as in NodeEvent, to seven digits; 0: not known, or nothing.
  double bytes_moved = 0, multiply_adds = 0;
  bool copies = false;  // not the node's kernel: a value is copied on its behalf
};

struct TracedRun {
  std::uint64_t run = 0;
  std::uint64_t program = 0;
  std::uint32_t track = 0;  // of the thread that called run
  std::uint32_t depth = 0;
  std::int64_t begin = 0, end = 0;
  std::uint64_t step = 0;
  std::int64_t planned_bytes = 0;
  bool complete = true;  // false: some of its calls may have been dropped
};

// A run that waited: for a variable that other runs held, or for a checkpoint.
struct TracedWait {
  std::uint64_t run = 0;
  std::uint32_t track = 0;
  std::uint32_t depth = 0;
  std::int64_t begin = 0, end = 0;
  std::string variable = {};  // empty: the random step; "*": all of them, for a checkpoint to be taken
};

struct TraceTrack {
  std::string name;  // "worker 0" of a scheduler; "caller" for a thread of the application; "gpu:0 compute"
  int worker = -1;
  std::uint64_t dropped = 0;  // events of this thread that are not in the trace
  std::string device = {};    // of a stream; empty: it is a thread
  StreamRole stream = StreamRole::kCompute;
};

struct Trace {
  // Of threads that worked, of workers that had nothing to do, then of streams of devices.
  std::vector<TraceTrack> tracks;
  std::vector<TracedNode> nodes;
  std::vector<TracedCall> calls;
  std::vector<TracedRun> runs;
  std::vector<TracedWait> waits;
  std::uint64_t dropped = 0;  // of all tracks, and events there was no memory for
  std::int64_t origin = 0;    // of all times, by the machine's steady clock, in nanoseconds
};

// That of its stream, else that of its node; cpu:0 if that is not placed.
LOCKSTEP_API std::string_view device_of_call(const Trace& trace, const TracedCall& call);

struct TraceRecorderOptions {
  // Events kept for each thread, of 64 bytes each: at least that many of the last ones survive. At least 1.
  std::size_t events_per_thread = std::size_t{1} << 16U;
  // Programs whose nodes are remembered. The least recent are forgotten first; their events count as dropped.
  // At least 1.
  std::size_t max_programs = 64;
};

class LOCKSTEP_API TraceRecorder final : public Observer {
 public:
  explicit TraceRecorder(TraceRecorderOptions options = {});  // throws InvalidArgument
  ~TraceRecorder() override;                                  // no run that it observes may be under way

  void on_run_begin(const RunEvent& event) noexcept override;
  void on_run_end(const RunEvent& event) noexcept override;
  void on_wait_begin(const WaitEvent& event) noexcept override;
  void on_wait_end(const WaitEvent& event) noexcept override;
  void on_node_begin(const NodeEvent& event) noexcept override;
  void on_node_end(const NodeEvent& event) noexcept override;
  void on_span(const SpanEvent& event) noexcept override;

  Trace trace() const;

 private:
  class Track;
  struct State;
  Track* track(int worker) noexcept;
  Track* find_track(int worker) noexcept;
  void remember(const RunEvent& event) noexcept;
  std::int64_t number_of(std::string_view variable) noexcept;
  template <class Fill>
  void end(int worker, const Fill& fill) noexcept;

  const std::uint64_t number_;  // of this recorder in the process
  std::unique_ptr<State> state_;
};

struct ChromeTraceOptions {
  bool flows = true;  // arrows along data edges, from the call that made a value to the one that reads it
  // If a thread is idle for at least this long until a value arrives that its next node reads, the gap is
  // marked as a wait.
  std::int64_t min_wait_ns = 1000;
};

// The Trace Event Format, which Perfetto reads too: a track for each thread; slices for calls (category
// compute, collective or copy; with op, replica, bytes, source line), runs and waits; arrows; a counter of
// the bytes alive (values of the step's graph, from when they are made until the last node that reads them
// has ended).
LOCKSTEP_API std::string to_chrome_trace(const Trace& trace, const ChromeTraceOptions& options = {});

}  // namespace lockstep
