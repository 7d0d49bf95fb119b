// graph/run/observer.h - sees what runs when.
//
// An Observer is handed to a run (RunOptions::observer) and told of every kernel call, shard by shard:
// constants, aliases and reads of variables make none; the nodes of a region come between begin and end of
// the node around them. On each thread begins and ends nest: what began last ends first. Implementations stay
// short, since they stand in the path of the run. Without an observer nothing is called and nothing is paid.
//
// Thread safety: calls come from the threads that run the nodes, concurrently; implementations synchronise
// themselves.
//
// What an event refers to (nodes, graphs, names) lives at least until on_run_end returns.
#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/core/export.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep {

// One run of one step: the same object in all events of the run.
struct RunEvent {
  std::uint64_t run = 0;           // unique in the process
  std::uint64_t program = 0;       // that runs, unique in the process; its graph never changes
  const Graph& graph;              // of the program; nodes of regions lie inside of it
  std::uint64_t step = 0;          // the store's step counter when the run asked for its variables
  std::int64_t planned_bytes = 0;  // memory that the plan has for intermediate values
  int worker = -1;                 // of the scheduler, that called run; -1: another thread
  int workers = 0;                 // that the scheduler has
};

struct NodeEvent {
  const RunEvent& run;
  const Node& node;
  std::int64_t shard = 0;  // of `shards`; shard == shards is the finishing call
  std::int64_t shards = 1;
  int worker = -1;   // the scheduler's worker; -1: the thread that called run
  int replica = -1;  // for which it runs; -1: for none in particular
  // Of all inputs and outputs of the node, variables included; what all shards read and write together.
  std::int64_t bytes_read = 0;
  std::int64_t bytes_written = 0;
  // The call before it on this thread ended just now, and what else it needs before that: its end is this
  // one's begin.
  bool follows = false;
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
};

}  // namespace lockstep
