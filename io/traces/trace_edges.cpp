// io/traces/trace_edges.cpp - which call waited for which.
#include "lockstep/io/traces/internal/trace_edges.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

namespace lockstep::internal {

TraceEdges::TraceEdges(const Trace& trace) : trace_(trace) {
  std::vector<std::uint32_t> order(trace.calls.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order, {}, [&](std::uint32_t i) {
    const TracedCall& call = trace.calls[i];
    return std::tuple(call.run, call.node, call.replica, call.begin);
  });
  turn_of_call_.resize(trace.calls.size());
  std::set<std::int64_t> shards;  // of the turn being filled
  for (const std::uint32_t i : order) {
    const TracedCall& call = trace.calls[i];
    const bool same = !turns_.empty() && turns_.back().run == call.run && turns_.back().node == call.node &&
                      turns_.back().replica == call.replica;
    if (!same || shards.contains(call.shard)) {
      turns_.push_back({call.run, call.node, call.replica, i, i, call.begin, call.end, i});
      shards.clear();
    }
    shards.insert(call.shard);
    Turn& turn = turns_.back();
    turn_of_call_[i] = static_cast<std::uint32_t>(turns_.size() - 1);
    if (call.shard < call.shards && call.end >= trace.calls[turn.last_shard].end) turn.last_shard = i;
    if (call.end >= turn.end) {
      turn.last = i;
      turn.end = call.end;
    }
  }
}

std::span<const TraceEdges::Turn> TraceEdges::turns_of(std::uint64_t run, std::uint32_t node) const {
  const auto key = [](const Turn& turn) { return std::pair(turn.run, turn.node); };
  const auto begin = std::ranges::lower_bound(turns_, std::pair(run, node), {}, key);
  const auto end = std::ranges::upper_bound(turns_, std::pair(run, node), {}, key);
  return {begin, end};
}

const TracedCall* TraceEdges::shard_before(const TracedCall& call) const {
  if (call.shard != call.shards) return nullptr;
  const auto index = static_cast<std::size_t>(&call - trace_.calls.data());
  const TracedCall& shard = trace_.calls[turns_[turn_of_call_[index]].last_shard];
  return &shard == &call ? nullptr : &shard;
}

const TraceEdges::Turn* TraceEdges::turn_before(std::uint64_t run, std::uint32_t node, int replica,
                                                std::int64_t begin) const {
  // The turns of one replica follow one another, so it is the last one that began by then, or one shortly
  // before it.
  const auto of_replica = [&](std::span<const Turn> turns) -> const Turn* {
    auto at = std::ranges::upper_bound(turns, begin, {}, &Turn::begin);
    while (at != turns.begin()) {
      if ((--at)->end <= begin) return &*at;
    }
    return nullptr;
  };
  const std::span<const Turn> turns = turns_of(run, node);
  const auto own = std::ranges::lower_bound(turns, replica, {}, &Turn::replica);
  const auto behind = std::ranges::upper_bound(turns, replica, {}, &Turn::replica);
  if (own != behind) return of_replica({own, behind});
  const Turn* best = nullptr;
  for (auto first = turns.begin(); first != turns.end();) {
    const auto end = std::ranges::upper_bound(first, turns.end(), first->replica, {}, &Turn::replica);
    const Turn* const turn = of_replica({first, end});
    if (turn != nullptr && (best == nullptr || turn->end >= best->end)) best = turn;
    first = end;
  }
  return best;
}

void TraceEdges::each_before(const TracedCall& call, const Found& found) const {
  const auto visit = [&](std::uint32_t node, bool is_data) {
    while (turns_of(call.run, node).empty()) {  // made no call: perhaps it stands for its first input
      const TracedNode& silent = trace_.nodes[node];
      if (!silent.passes_on || silent.inputs.empty()) return;
      node = silent.inputs.front();
    }
    if (const Turn* turn = turn_before(call.run, node, call.replica, call.begin)) found(*turn, is_data);
  };
  for (const std::uint32_t input : trace_.nodes[call.node].inputs) visit(input, true);
  for (const std::uint32_t control : trace_.nodes[call.node].controls) visit(control, false);
}

}  // namespace lockstep::internal
