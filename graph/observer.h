// graph/observer.h - sees what runs when.
//
// An Observer is handed to a run (RunOptions::observer) and told of every kernel call, shard by shard: constants, aliases
// and reads of variables make none; the nodes of a region come between begin and end of the node around them. Calls come from the
// threads that run the nodes, concurrently: implementations synchronise themselves and stay short, since they stand
// in the path of the run. Without an observer nothing is called and nothing is paid.
#pragma once

#include <cstdint>

#include "lockstep/core/export.h"
#include "lockstep/graph/graph.h"

namespace lockstep {

struct NodeEvent {
  const Node& node;
  std::int64_t shard = 0;  // of `shards`; shard == shards is the finishing call
  std::int64_t shards = 1;
  int worker = -1;  // the scheduler's worker; -1: the thread that called run
};

class LOCKSTEP_API Observer {
 public:
  Observer();
  virtual ~Observer();
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  virtual void on_run_begin() noexcept {}
  virtual void on_run_end() noexcept {}
  virtual void on_node_begin(const NodeEvent& event) noexcept = 0;
  // Also called when the node failed.
  virtual void on_node_end(const NodeEvent& event) noexcept = 0;
};

}  // namespace lockstep
