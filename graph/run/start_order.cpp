// graph/run/start_order.cpp - which phase of a lane leads to a start soonest.
#include "lockstep/graph/run/internal/start_order.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>

namespace lockstep::internal {

namespace {

constexpr double kAwait = 1e-3;  // seconds until something arrives, at least: nobody knows how long it takes

}  // namespace

std::vector<std::uint32_t> start_order(std::span<const Phase> phases) {
  const auto count = static_cast<std::uint32_t>(phases.size());
  // By phase: seconds from its begin until something is started.
  std::vector<double> soonest(count, std::numeric_limits<double>::infinity());
  std::vector<std::uint32_t> waits(count, 0);
  std::vector<std::vector<std::uint32_t>> successors(count);
  for (std::uint32_t i = count; i-- > 0;) {
    const Phase& phase = phases[i];
    if (phase.commit) continue;
    const bool starts = phase.starts || phase.urgent;
    const double own = phase.seconds * phase.shards + (phase.awaits ? kAwait : 0);
    soonest[i] = starts ? 0 : soonest[i] + own;
    for (const std::uint32_t before : phase.predecessors) {
      soonest[before] = std::min(soonest[before], soonest[i]);
      successors[before].push_back(i);
      ++waits[i];
    }
  }
  using Next = std::tuple<bool, double, std::uint32_t>;
  std::priority_queue<Next, std::vector<Next>, std::greater<>> ready;
  const auto add = [&](std::uint32_t i) { ready.emplace(phases[i].awaits, soonest[i], i); };
  for (std::uint32_t i = 0; i < count; ++i) {
    if (!phases[i].commit && waits[i] == 0) add(i);
  }
  std::vector<std::uint32_t> order;
  order.reserve(count);
  while (!ready.empty()) {
    const std::uint32_t next = std::get<2>(ready.top());
    ready.pop();
    order.push_back(next);
    for (const std::uint32_t after : successors[next]) {
      if (--waits[after] == 0) add(after);
    }
  }
  return order;
}

}  // namespace lockstep::internal
