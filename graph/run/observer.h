// graph/run/observer.h - sees what runs when.
//
// An Observer is handed to a run (RunOptions::observer) and told about every kernel call, shard by shard; about
// calls that are put on streams of devices when they are over there, since nobody knows before.
// Constants, aliases and reads of variables make no calls; the nodes of a region come between begin and end
// of the node around them. On each thread begins and ends nest: the call that began last ends first.
// Implementations must be fast, since the run waits for them. Without an observer nothing is called and
// nothing is paid.
//
// Thread safety: calls come from the threads that run the nodes, concurrently; implementations synchronise
// themselves.
//
// The objects an event refers to (nodes, graphs, names) live at least until on_run_end returns.
#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/core/base/export.h"
#include "lockstep/core/base/steady_time.h"
#include "lockstep/core/compute_device.h"
#include "lockstep/core/device.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep {

// One run of one step: the same object in all events of the run.
struct RunEvent {
  std::uint64_t run = 0;           // unique in the process
  std::uint64_t program = 0;       // the program that runs, unique in the process; its graph never changes
  const Graph& graph;              // of the program; nodes of regions are inside it
  std::uint64_t step = 0;          // the store's step counter when the run asked for its variables
  std::int64_t planned_bytes = 0;  // memory the plan reserves for intermediate values
  int worker = -1;                 // the scheduler's worker that called run; -1: another thread
  int workers = 0;                 // how many workers the scheduler has
};

struct NodeEvent {
  const RunEvent& run;
  const Node& node;
  std::int64_t shard = 0;  // of `shards`; shard == shards is the finishing call
  std::int64_t shards = 1;
  int worker = -1;   // the scheduler's worker; -1: the thread that called run
  int replica = -1;  // the replica it runs for; -1: none in particular
  // Bytes of all inputs and outputs of the node, variables included: what all shards read and write together.
  std::int64_t bytes_read = 0;
  std::int64_t bytes_written = 0;
  // What all shards together have to do at least (Cost::bytes and Cost::multiply_adds, for the shapes of this run): of a table the
  // rows that are looked up, of a fused node what goes in and comes out. 0: not known, or nothing.
  double bytes_moved = 0;
  double multiply_adds = 0;
  // Not the node's kernel: a value is copied on its behalf, to another memory or to where the caller wants a result.
  bool copies = false;
  // The previous call on this thread has ended just now, and everything else this call needs ended before
  // that: the end of that call can serve as the begin of this one.
  bool follows = false;
};

// A call on a device that works by itself, once it is over there; or one of a group of processes, which goes on after its node has
// made it.
struct SpanEvent {
  const RunEvent& run;
  const Node& node;
  std::int64_t shard = 0, shards = 1;  // as in NodeEvent
  int replica = -1;
  std::int64_t bytes_read = 0, bytes_written = 0;
  double bytes_moved = 0, multiply_adds = 0;
  bool copies = false;
  Device device = {};
  StreamRole stream = StreamRole::kCompute;
  SteadyTime begin, end;  // there, by the clock of the host
};

// A run that cannot start: other runs hold a variable, or a checkpoint is being taken.
struct WaitEvent {
  const RunEvent& run;
  std::string_view variable;  // empty: the random step, which one run at a time draws from; "*": a checkpoint
};

class LOCKSTEP_API Observer {
 public:
  Observer();
  virtual ~Observer();
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  // On the thread that called run, around the nodes.
  virtual void on_run_begin(const RunEvent&) noexcept {}
  virtual void on_run_end(const RunEvent&) noexcept {}
  // On the same thread, before on_run_begin. A run that is stopped while it waits neither begins nor ends.
  virtual void on_wait_begin(const WaitEvent&) noexcept {}
  virtual void on_wait_end(const WaitEvent&) noexcept {}
  virtual void on_node_begin(const NodeEvent& event) noexcept = 0;
  // Also called when the node failed.
  virtual void on_node_end(const NodeEvent& event) noexcept = 0;
  // Calls on streams of devices, after the fact: a run that is observed waits for them, and tells of them on the
  // thread that called run, stream by stream in their order, before on_run_end. On devices that do not say when a
  // call began and ended, nothing is told.
  virtual void on_span(const SpanEvent&) noexcept {}
};

}  // namespace lockstep
