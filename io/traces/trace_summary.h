// io/traces/trace_summary.h - where the time of traced runs went.
//
//   std::cout << to_text(summarize(recorder.trace()));
//   std::cout << to_text(summarize(trace, measure_rates(runtime, trace)));   // and how near that is to what devices reach
//
// Counts complete runs only: runs that have not ended, and runs that lost some of their calls, are left
// out. The time of a call does not contain that of the calls inside it (a branch's, a loop's), so that times
// add up. Rates are by elapsed time: shards of a node that run at once count once, and what runs beside them takes its share.
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/io/traces/device_rates.h"
#include "lockstep/io/traces/trace.h"

namespace lockstep {

struct TraceSummary {
  std::size_t runs = 0;
  std::size_t runs_left_out = 0;
  std::uint64_t dropped = 0;
  std::int64_t wall = 0;  // nanoseconds during which at least one run was under way
  std::int64_t busy = 0;  // of all calls, added up over threads

  struct Row {
    std::string name;  // of the op, the node, or the replica ("replica 0", "all replicas" for calls of none)
    std::int64_t time = 0;  // nanoseconds, added up over threads
    std::size_t calls = 0;
    // Of calls whose work is known (NodeEvent::bytes_moved and multiply_adds):
    double bytes = 0;          // that had to move
    double multiply_adds = 0;  // of products
    std::int64_t elapsed = 0;  // nanoseconds
    double copy_share = 0;     // of the rates at which the devices copy; 0: not known
    double product_share = 0;  // of those at which they multiply matrices of these dtypes; 0: not known
    std::string op = {};       // of a node
  };
  std::vector<Row> by_op;          // most time first; values that the plan copies for nodes are in "copy"
  std::vector<Row> by_node;        // most time first
  std::vector<Row> by_replica;     // in order
  std::vector<DeviceRates> rates;  // what the shares are shares of; empty: there are none

  // Of the run of median length: the chain of calls that leads to the call that ended last. Each call comes
  // after the one that held it up (a node whose value it reads or that it runs after, a shard that it
  // finishes, or the call before it on its thread), back to the start of the run.
  struct PathCall {
    std::uint32_t node = 0;  // in Trace::nodes
    std::string name, op, site;
    int replica = -1;
    std::int64_t shard = 0, shards = 1;  // as in NodeEvent
    std::int64_t time = 0;               // of the call
    std::int64_t gap = 0;                // before it, since the end of the call that held it up
  };
  std::uint64_t path_run = 0;
  std::int64_t path_length = 0;  // of the run
  std::int64_t path_time = 0;    // in calls; the rest of path_length lies between and around them
  std::vector<PathCall> critical_path;

  std::int64_t communication = 0;  // nanoseconds during which a collective or a copy ran
  std::int64_t overlapped = 0;     // the part of it during which something was computed, too
  std::int64_t lock_wait = 0;      // time that runs waited for variables that others held

  struct Worker {
    std::string name;
    std::int64_t busy = 0;  // nanoseconds of `wall` in which a call ran there
    std::int64_t idle = 0;  // the rest of it
  };
  std::vector<Worker> workers;  // one for each track
  std::size_t streams = 0;      // of these, streams of devices: the last ones
};

LOCKSTEP_API TraceSummary summarize(const Trace& trace, std::span<const DeviceRates> rates = {});

struct TraceTextOptions {
  std::size_t max_rows = 20;  // of ops; also of calls on the critical path: the longest, in path order
  std::size_t max_nodes = 0;  // of nodes; 0: no table of them
};
LOCKSTEP_API std::string to_text(const TraceSummary& summary, const TraceTextOptions& options = {});

}  // namespace lockstep
