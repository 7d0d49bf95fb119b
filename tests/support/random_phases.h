// tests/support/random_phases.h - random phase graphs, and what their clusters allow, by brute force.
//
// ScheduleOrder answers from the definition what the code under test answers by construction: does one call
// end before another starts, in every schedule that the clusters allow?
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "lockstep/graph/run/internal/clusters.h"

namespace lockstep::testing {

class PhaseDice {
 public:
  explicit PhaseDice(std::uint64_t seed) : engine_(seed * 0x9E3779B97F4A7C15U + 1) {}
  std::uint32_t below(std::size_t n) { return static_cast<std::uint32_t>(engine_() % n); }
  bool once_in(std::size_t n) { return below(n) == 0; }
  double unit() { return static_cast<double>(engine_() >> 11U) * 0x1p-53; }

 private:
  std::mt19937_64 engine_;
};

struct PhaseShape {
  std::size_t phases = 30;
  std::size_t most_predecessors = 3;
  std::uint32_t most_shards = 12;
  bool commits = true;
  std::size_t once_in_defers = 0;          // one phase in so many starts something; 0: none does
  double shortest = 1e-8, longest = 1e-4;  // seconds of a shard
};

// Edges reach back a little or far, so that there are chains, joins and wide levels.
inline std::vector<internal::Phase> random_phases(PhaseDice& dice, const PhaseShape& shape) {
  std::vector<internal::Phase> phases(shape.phases);
  const std::size_t reach = 1 + dice.below(shape.phases);
  for (std::uint32_t i = 0; i < phases.size(); ++i) {
    internal::Phase& phase = phases[i];
    for (std::size_t n = dice.below(shape.most_predecessors + 1); n > 0 && i > 0; --n) {
      const std::uint32_t before = i - 1 - dice.below(std::min<std::size_t>(reach, i));
      bool have = false;
      for (const std::uint32_t other : phase.predecessors) have = have || other == before;
      if (!have) phase.predecessors.push_back(before);
      phase.commit = phase.commit || phases[before].commit;
    }
    phase.shards = dice.once_in(3) ? 1 + dice.below(shape.most_shards) : 1;
    phase.seconds = shape.shortest * std::pow(shape.longest / shape.shortest, dice.unit());
    if (shape.commits && i > shape.phases / 2 && dice.once_in(5)) phase.commit = true;
    if (i > 0 && phases[i - 1].starts) {  // awaits what the phase before it started
      phase = internal::Phase();
      phase.predecessors.push_back(i - 1);
      phase.seconds = 1e-3;
      phase.awaits = true;
    } else if (shape.once_in_defers > 0 && i + 1 < phases.size() && !phase.commit &&
               dice.once_in(shape.once_in_defers)) {
      phase.shards = 1;
      phase.starts = true;
    }
  }
  return phases;
}

class ScheduleOrder {
 public:
  explicit ScheduleOrder(const internal::Clusters& clusters)
      : clusters_(clusters), count_(clusters.clusters.size()) {
    reach_.assign(count_ * count_, false);
    for (std::size_t i = count_; i-- > 0;) {
      const internal::Cluster& cluster = clusters.clusters[i];
      for (std::uint32_t at = cluster.first_successor; at < cluster.end_successor; ++at) {
        const std::size_t next = clusters.successors[at];
        if (next <= i) continue;  // the tests of the order say so
        reach_[i * count_ + next] = true;
        for (std::size_t k = 0; k < count_; ++k) {
          if (reach_[next * count_ + k]) reach_[i * count_ + k] = true;
        }
      }
    }
  }

  bool cluster_precedes(std::size_t a, std::size_t b) const { return reach_[a * count_ + b]; }
  // Calls by position.
  bool precedes(std::size_t a, std::size_t b) const {
    if (clusters_.sequential) return a < b;
    const std::size_t first = clusters_.cluster_of[a];
    const std::size_t second = clusters_.cluster_of[b];
    return first == second ? a < b : cluster_precedes(first, second);
  }

 private:
  const internal::Clusters& clusters_;
  std::size_t count_;
  std::vector<bool> reach_;
};

}  // namespace lockstep::testing
