// io/traces/internal/trace_edges.h - which call waited for which.
//
// The calls of a node in one run fall into turns: its shards once, or once for each trip of a loop around it.
// An edge leads from the call that ended last in the turn that made a value to every call that reads it.
// Nodes without calls hand on what they stand for, where they stand for another value.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/io/traces/trace.h"

namespace lockstep::internal {

class LOCKSTEP_API TraceEdges {
 public:
  explicit TraceEdges(const Trace& trace);  // which must outlive it

  // A turn of a node: what its edges start from and lead to.
  struct Turn {
    std::uint64_t run = 0;
    std::uint32_t node = 0;
    int replica = -1;
    std::uint32_t first = 0;          // the call that began first
    std::uint32_t last = 0;           // the call that ended last
    std::int64_t begin = 0, end = 0;  // of those
    std::uint32_t last_shard = 0;     // the call that ended last but for the finishing one
  };
  std::span<const Turn> turns() const { return turns_; }

  // Of a finishing call: the shard of its turn that it waited for, that which ended last. Null: it is none,
  // or alone.
  const TracedCall* shard_before(const TracedCall& call) const;
  // Whether a node made calls in a run: constants and aliases, say, do not.
  bool made_calls(std::uint64_t run, std::uint32_t node) const { return !turns_of(run, node).empty(); }
  // The turn of `node` in a run that ended last before `begin`: that of the replica, where it ran for
  // several. Null: none.
  const Turn* turn_before(std::uint64_t run, std::uint32_t node, int replica, std::int64_t begin) const;
  // Calls `found` with the turns that a call of `node` which began then waited for: those of its inputs, and
  // of the nodes it runs after. A turn may come more than once.
  using Found = std::function<void(const Turn& turn, bool is_data)>;
  void each_before(const TracedCall& call, const Found& found) const;

 private:
  // The turns of one node in one run, in order of their begins.
  std::span<const Turn> turns_of(std::uint64_t run, std::uint32_t node) const;

  const Trace& trace_;
  std::vector<Turn> turns_;                  // by run, node, replica and begin
  std::vector<std::uint32_t> turn_of_call_;  // by call
};

}  // namespace lockstep::internal
