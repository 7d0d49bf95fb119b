// graph/run/internal/clusters.h - which kernel calls form one task.
//
// In: the phases of a plan in topological order. A phase is `shards` independent calls of equal cost that
// start once its predecessors' calls have all ended. Out: the calls in an order in which they may run one
// after another, cut into clusters, with the edges between clusters.
//
// How: calls are sorted by level (the longest path to them) and, within a level, by height (the longest path
// from them): calls of one level and height are equally urgent, and can wait for each other without harm.
// Such a set is cut into as many groups as keep every lane busy and each group worth a task's overhead. A set
// that is not worth cutting is one group, and consecutive levels that are not worth cutting form one cluster.
// A group with one predecessor is appended to it if the group is most of the work that waits for that
// predecessor, so that chains become one cluster. If many groups wait for the same many others, one empty
// cluster joins the latter. Edges run from lower to higher levels only, so clusters cannot wait for each
// other in a cycle. Results do not depend on any of this.
//
// A call may go on after it has returned: then its phase `starts` something, and the next phase `awaits` its
// end. Each such await is a cluster of its own, which also waits for an arrival from outside. Calls that come
// behind different awaits never share a cluster, so that nothing waits for an end that it does not need. With one lane, calls come
// in the order of start_order(): first what leads to a start soonest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/base/small_vector.h"

namespace lockstep::internal {

struct Phase {
  SmallVector<std::uint32_t, 2> predecessors;  // phases, lower numbers only
  std::uint32_t shards = 1;
  double seconds = 0;   // of one shard
  bool commit = false;  // belongs to the commit stage
  bool starts = false;  // the next phase awaits the end of what it starts
  bool urgent = false;  // puts work on devices: first in its level, so that it goes on meanwhile
  bool awaits = false;  // one shard; `seconds` is how long it waits, roughly
};

struct Call {
  std::uint32_t phase = 0;
  std::uint32_t shard = 0;
};

struct Cluster {
  std::uint32_t begin = 0, end = 0;  // its calls
  std::uint32_t predecessors = 0;    // how many clusters it waits for, and one more for an arrival
  std::uint32_t first_successor = 0, end_successor = 0;  // the most urgent first
  float urgency = 0;    // seconds of the longest path from its start to the end
  bool gate = false;    // the only one in which the run decides whether to commit
  bool commit = false;  // after the gate
  bool last = false;    // the only one without successors: when it has ended, all have (in parallel plans)
  bool starts = false;  // some of its calls start something
  bool awaits = false;  // one arrival is among its predecessors
};

struct Clusters {
  std::vector<Call> calls;
  std::vector<Cluster> clusters;          // in an order in which they may run
  std::vector<std::uint32_t> successors;  // of all clusters
  std::vector<std::uint32_t> cluster_of;  // by call position
  // By phase: the empty cluster that runs after all of its calls, if there is one (in parallel plans).
  static constexpr std::uint32_t kNoJoin = 0xFFFFFFFFU;
  std::vector<std::uint32_t> join_of;
  bool sequential = false;         // one thread runs all calls, in this order
  bool awaits = false;             // there are clusters that await something
  std::uint32_t commit_begin = 0;  // calls from here on come after the gate
};

struct ClusterOptions {
  std::size_t lanes = 1;
  bool by_cost = true;  // false: every call alone
};

LOCKSTEP_API Clusters make_clusters(std::span<const Phase> phases, const ClusterOptions& options);

}  // namespace lockstep::internal
