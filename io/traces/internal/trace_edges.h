// io/traces/internal/trace_edges.h - which call waited for which.
//
// The calls of a node in one run form turns: a turn is its shards once, and in a loop each trip is a turn. An
// edge leads from the call that ended last in the turn that made a value to every call that reads the value.
// A node that makes no calls because it stands for another value hands that value on.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/io/traces/trace.h"

namespace lockstep::internal {

class LOCKSTEP_API TraceEdges {
 public:
  explicit TraceEdges(const Trace& trace);  // `trace` must outlive it

  // A turn of a node: where its edges start and end.
  struct Turn {
    std::uint64_t run = 0;
    std::uint32_t node = 0;
    int replica = -1;
    std::uint32_t first = 0;          // the call that began first
    std::uint32_t last = 0;           // the call that ended last
    std::int64_t begin = 0, end = 0;  // begin of `first`, end of `last`
    std::uint32_t last_shard = 0;     // the call that ended last, not counting the finishing call
  };
  std::span<const Turn> turns() const { return turns_; }

  // Of a finishing call: the shard of its turn that ended last, which it waited for. Null for any other call,
  // and for a finishing call without shards.
  const TracedCall* shard_before(const TracedCall& call) const;
  // Whether a node made calls in a run: constants and aliases, say, do not.
  bool made_calls(std::uint64_t run, std::uint32_t node) const { return !turns_of(run, node).empty(); }
  // The turn of `node` in the run that ended last by `begin`: among the turns of this replica, if the node
  // ran for it, else among all. Null: none.
  const Turn* turn_before(std::uint64_t run, std::uint32_t node, int replica, std::int64_t begin) const;
  // Calls `found` with the turns that `call` waited for: those of its node's inputs, and of the nodes that
  // its node runs after. A turn may come more than once.
  using Found = std::function<void(const Turn& turn, bool is_data)>;
  void each_before(const TracedCall& call, const Found& found) const;

 private:
  // The turns of one node in one run, by replica and begin.
  std::span<const Turn> turns_of(std::uint64_t run, std::uint32_t node) const;

  const Trace& trace_;
  std::vector<Turn> turns_;                  // by run, node, replica and begin
  std::vector<std::uint32_t> turn_of_call_;  // by call
};

}  // namespace lockstep::internal
