// strategies/proof/collective_schedule.h - the order in which a graph communicates, to be compared between
// workers.
//
//   0 all_reduce sum f32 x 1000, f32 x 10        // grads
//   1 all_gather f32 x ?                         // metrics
//
// One line for each collective, in the order that order-collectives gives; collectives inside branches and
// loops stand at the place of their outer node. Sizes that depend on the batch are left out (?), and so are
// names and the number of replicas: two workers that run the same program have equal lines. The digest is
// that of the lines without names; it is equal on every platform. Thread safety: any thread; the graph is
// only read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep {

struct ScheduledCollective {
  std::size_t id = 0;  // its place
  std::string name;    // of the node, after the names of the nodes around it
  std::string op;
  std::string reduce;  // empty: it does not reduce
  // Of one replica: dtype, elements (-1: not known before feeds).
  std::vector<std::pair<DType, std::int64_t>> tensors;

  LOCKSTEP_API std::string to_string() const;  // a line as above, without the name
};

using CollectiveSchedule = std::vector<ScheduledCollective>;

LOCKSTEP_API CollectiveSchedule collective_schedule(const Graph& graph);
LOCKSTEP_API std::string print_schedule(const CollectiveSchedule& schedule);
LOCKSTEP_API std::uint64_t collective_digest(const CollectiveSchedule& schedule);
LOCKSTEP_API std::uint64_t collective_digest(const Graph& graph);

}  // namespace lockstep
