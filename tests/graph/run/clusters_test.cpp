// Tests: graph/run/clusters.cpp, graph/run/start_order.cpp
#include "lockstep/graph/run/internal/clusters.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/graph/run/internal/start_order.h"
#include "support/random_phases.h"

namespace lockstep {
namespace {

using internal::Call;
using internal::Cluster;
using internal::ClusterOptions;
using internal::Clusters;
using internal::make_clusters;
using internal::Phase;
using testing::PhaseDice;
using testing::PhaseShape;
using testing::random_phases;
using testing::ScheduleOrder;

Phase phase(std::initializer_list<std::uint32_t> predecessors, double seconds, std::uint32_t shards = 1,
            bool commit = false) {
  Phase made;
  for (const std::uint32_t before : predecessors) made.predecessors.push_back(before);
  made.seconds = seconds;
  made.shards = shards;
  made.commit = commit;
  return made;
}

void expect_every_call_once(std::span<const Phase> phases, const Clusters& clusters) {
  std::vector<std::vector<int>> seen(phases.size());
  for (std::size_t i = 0; i < phases.size(); ++i) seen[i].assign(phases[i].shards, 0);
  for (const Call& call : clusters.calls) {
    ASSERT_LT(call.phase, phases.size());
    ASSERT_LT(call.shard, phases[call.phase].shards);
    ++seen[call.phase][call.shard];
  }
  for (const std::vector<int>& shards : seen) {
    for (const int count : shards) ASSERT_EQ(count, 1);
  }
}

void expect_clusters_cut_the_calls(const Clusters& clusters) {
  std::uint32_t at = 0;
  ASSERT_EQ(clusters.cluster_of.size(), clusters.calls.size());
  for (std::uint32_t i = 0; i < clusters.clusters.size(); ++i) {
    ASSERT_EQ(clusters.clusters[i].begin, at);
    ASSERT_LE(clusters.clusters[i].begin, clusters.clusters[i].end);
    for (; at < clusters.clusters[i].end; ++at) ASSERT_EQ(clusters.cluster_of[at], i);
  }
  ASSERT_EQ(at, clusters.calls.size());
}

// Every edge leads forward (so there is no cycle) and is counted by the cluster it leads to.
void expect_edges_count_and_lead_forward(const Clusters& clusters) {
  std::vector<std::uint32_t> waits(clusters.clusters.size(), 0);
  for (std::uint32_t i = 0; i < clusters.clusters.size(); ++i) {
    const Cluster& cluster = clusters.clusters[i];
    for (std::uint32_t at = cluster.first_successor; at < cluster.end_successor; ++at) {
      ASSERT_GT(clusters.successors[at], i);
      ASSERT_LT(clusters.successors[at], clusters.clusters.size());
      ++waits[clusters.successors[at]];
    }
  }
  for (std::size_t i = 0; i < waits.size(); ++i) {
    const std::uint32_t arrivals = clusters.clusters[i].awaits ? 1 : 0;
    ASSERT_EQ(waits[i] + arrivals, clusters.clusters[i].predecessors) << i;
  }
}

void expect_dependencies_kept(std::span<const Phase> phases, const Clusters& clusters,
                              const ScheduleOrder& order) {
  std::vector<std::vector<std::size_t>> calls(phases.size());
  for (std::size_t at = 0; at < clusters.calls.size(); ++at) calls[clusters.calls[at].phase].push_back(at);
  for (std::size_t i = 0; i < phases.size(); ++i) {
    for (const std::uint32_t before : phases[i].predecessors) {
      for (const std::size_t a : calls[before]) {
        for (const std::size_t b : calls[i]) {
          ASSERT_TRUE(order.precedes(a, b)) << "phase " << before << " before phase " << i;
        }
      }
    }
  }
}

void expect_commit_behind_gate(std::span<const Phase> phases, const Clusters& clusters,
                               const ScheduleOrder& order) {
  for (std::size_t at = 0; at < clusters.calls.size(); ++at) {
    ASSERT_EQ(phases[clusters.calls[at].phase].commit, at >= clusters.commit_begin) << "call " << at;
  }
  if (clusters.sequential) return;
  const bool commits = std::ranges::any_of(phases, &Phase::commit);
  const auto gates = std::ranges::count_if(clusters.clusters, &Cluster::gate);
  ASSERT_EQ(gates, commits ? 1 : 0);
  if (!commits) return;
  const auto found = std::ranges::find_if(clusters.clusters, &Cluster::gate);
  const auto gate = static_cast<std::size_t>(found - clusters.clusters.begin());
  ASSERT_EQ(found->begin, found->end) << "nothing runs in the gate";
  for (std::size_t i = 0; i < clusters.clusters.size(); ++i) {
    if (i == gate) continue;
    if (clusters.clusters[i].commit) {
      ASSERT_TRUE(order.cluster_precedes(gate, i)) << "commit cluster " << i;
    } else {
      ASSERT_TRUE(order.cluster_precedes(i, gate)) << "cluster " << i;
    }
  }
}

// One cluster ends last, whatever the schedule; no cluster is there for nothing.
void expect_one_last(const Clusters& clusters, const ScheduleOrder& order) {
  const std::size_t last = clusters.clusters.size() - 1;
  for (std::size_t i = 0; i < clusters.clusters.size(); ++i) {
    const Cluster& cluster = clusters.clusters[i];
    ASSERT_EQ(cluster.last, i == last);
    if (i == last) continue;
    ASSERT_TRUE(order.cluster_precedes(i, last)) << "cluster " << i;
    ASSERT_TRUE(cluster.begin < cluster.end || cluster.gate || cluster.predecessors > 1)
        << "cluster " << i << " is idle";
  }
}

// Every await is a cluster of its own. If one never arrives, everything that does not come behind it still runs.
void expect_nothing_waits_in_vain(std::span<const Phase> phases, const Clusters& clusters) {
  std::vector<std::uint32_t> awaits;
  for (std::uint32_t i = 0; i < phases.size(); ++i) {
    if (phases[i].awaits) awaits.push_back(i);
  }
  ASSERT_EQ(clusters.awaits, !awaits.empty());
  for (const Cluster& cluster : clusters.clusters) {
    const auto calls = std::span(clusters.calls).subspan(cluster.begin, cluster.end - cluster.begin);
    const auto is_await = [&](const Call& call) { return phases[call.phase].awaits; };
    const auto is_start = [&](const Call& call) { return phases[call.phase].starts; };
    ASSERT_EQ(std::ranges::any_of(calls, is_await), cluster.awaits);
    ASSERT_EQ(std::ranges::any_of(calls, is_start), cluster.starts);
    ASSERT_TRUE(!cluster.awaits || calls.size() == 1);
  }
  for (const std::uint32_t late : awaits) {
    std::vector<bool> behind(phases.size());
    for (std::uint32_t i = 0; i < phases.size(); ++i) {
      behind[i] = i == late || phases[i].commit ||
                  std::ranges::any_of(phases[i].predecessors, [&](std::uint32_t p) { return behind[p]; });
    }
    std::vector<std::uint32_t> missing;
    for (const Cluster& cluster : clusters.clusters)
      missing.push_back(cluster.predecessors - (cluster.awaits ? 1 : 0));
    std::vector<bool> ran(clusters.calls.size());
    for (std::size_t i = 0; i < clusters.clusters.size(); ++i) {  // an order in which they may run
      const Cluster& cluster = clusters.clusters[i];
      const bool held = cluster.awaits && clusters.calls[cluster.begin].phase == late;
      if (missing[i] != 0 || held) continue;
      for (std::uint32_t at = cluster.begin; at < cluster.end; ++at) ran[at] = true;
      for (std::uint32_t at = cluster.first_successor; at < cluster.end_successor; ++at)
        --missing[clusters.successors[at]];
    }
    for (std::size_t at = 0; at < ran.size(); ++at) {
      ASSERT_EQ(ran[at], !behind[clusters.calls[at].phase])
          << "phase " << clusters.calls[at].phase << " if phase " << late << " does not arrive";
    }
  }
}

void expect_valid(std::span<const Phase> phases, const ClusterOptions& options) {
  const Clusters clusters = make_clusters(phases, options);
  expect_every_call_once(phases, clusters);
  expect_clusters_cut_the_calls(clusters);
  if (!clusters.sequential) expect_edges_count_and_lead_forward(clusters);
  const ScheduleOrder order(clusters);
  if (!clusters.sequential) expect_one_last(clusters, order);
  expect_dependencies_kept(phases, clusters, order);
  expect_commit_behind_gate(phases, clusters, order);
  if (!clusters.sequential) expect_nothing_waits_in_vain(phases, clusters);
}

class RandomClusters : public ::testing::TestWithParam<std::size_t> {};

TEST_P(RandomClusters, KeepEveryPromiseByCost) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    PhaseDice dice(seed);
    const PhaseShape shape{.phases = 1 + dice.below(60), .commits = !dice.once_in(3)};
    expect_valid(random_phases(dice, shape), {GetParam(), true});
    if (HasFatalFailure()) FAIL() << "seed " << seed;
  }
}

TEST_P(RandomClusters, KeepEveryPromiseCallByCall) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    PhaseDice dice(1000 + seed);
    const PhaseShape shape{.phases = 1 + dice.below(40), .most_shards = 20, .commits = !dice.once_in(3)};
    expect_valid(random_phases(dice, shape), {GetParam(), false});
    if (HasFatalFailure()) FAIL() << "seed " << seed;
  }
}

TEST_P(RandomClusters, KeepEveryPromiseForLongChainsOfCheapPhases) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    PhaseDice dice(2000 + seed);
    const PhaseShape shape{.phases = 120, .most_predecessors = 1, .most_shards = 2, .longest = 3e-6};
    expect_valid(random_phases(dice, shape), {GetParam(), true});
    if (HasFatalFailure()) FAIL() << "seed " << seed;
  }
}

TEST_P(RandomClusters, KeepEveryPromiseForManyShards) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    PhaseDice dice(3000 + seed);
    const PhaseShape shape{.phases = 12, .most_shards = 90, .shortest = 1e-6};
    expect_valid(random_phases(dice, shape), {GetParam(), !dice.once_in(2)});
    if (HasFatalFailure()) FAIL() << "seed " << seed;
  }
}

TEST_P(RandomClusters, KeepEveryPromiseWithDeferredCalls) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    PhaseDice dice(4000 + seed);
    const PhaseShape shape{.phases = 1 + dice.below(80),
                           .commits = !dice.once_in(3),
                           .once_in_defers = 2 + dice.below(10),
                           .longest = dice.once_in(2) ? 1e-4 : 1e-6};
    expect_valid(random_phases(dice, shape), {GetParam(), !dice.once_in(5)});
    if (HasFatalFailure()) FAIL() << "seed " << seed;
  }
}

// More awaits than classes are made for.
TEST(Clusters, ManyDeferredCalls) {
  std::vector<Phase> phases;
  for (std::uint32_t i = 0; i < 1500; ++i) {
    phases.push_back(phase({}, 1e-8));
    phases.back().starts = true;
    phases.push_back(phase({2 * i}, 1e-3));
    phases.back().awaits = true;
  }
  phases.push_back(phase({1, 3, 5}, 1e-8));
  expect_valid(phases, {1, true});
}

INSTANTIATE_TEST_SUITE_P(Lanes, RandomClusters, ::testing::Values(1, 2, 3, 4, 8));

TEST(Clusters, NothingGivesNothing) {
  for (const std::size_t lanes : {1U, 4U}) {
    const Clusters clusters = make_clusters({}, {lanes, true});
    EXPECT_TRUE(clusters.calls.empty());
    EXPECT_EQ(clusters.commit_begin, 0U);
  }
}

TEST(Clusters, OneLaneKeepsTheOrderOfTheProgram) {
  const std::vector<Phase> phases = {phase({}, 1e-6), phase({}, 1e-6, 2), phase({0}, 1e-6)};
  const Clusters clusters = make_clusters(phases, {1, true});
  EXPECT_TRUE(clusters.sequential);
  ASSERT_EQ(clusters.calls.size(), 4U);
  EXPECT_EQ(clusters.calls[1].phase, 1U);
  EXPECT_EQ(clusters.calls[2].shard, 1U);
  EXPECT_EQ(clusters.calls[3].phase, 2U);
}

TEST(Clusters, AChainOfCheapPhasesIsOneCluster) {
  std::vector<Phase> phases = {phase({}, 1e-8)};
  for (std::uint32_t i = 1; i < 100; ++i) phases.push_back(phase({i - 1}, 1e-8));
  // One more, empty, is the last of all.
  EXPECT_EQ(make_clusters(phases, {2, true}).clusters.size(), 2U);
  EXPECT_EQ(make_clusters(phases, {2, false}).clusters.size(), 101U);
}

TEST(Clusters, DearIndependentPhasesCanRunSideBySide) {
  const std::vector<Phase> phases(8, phase({}, 100e-6));
  const Clusters clusters = make_clusters(phases, {4, true});
  EXPECT_GE(clusters.clusters.size(), 4U);
  for (const Cluster& cluster : clusters.clusters) {
    if (!cluster.last) {
      EXPECT_EQ(cluster.predecessors, 0U);
    }
  }
}

TEST(Clusters, AChainThatEndsInTheCommitPassesTheGate) {
  std::vector<Phase> phases;
  for (std::uint32_t chain = 0; chain < 4; ++chain) {
    for (std::uint32_t i = 0; i < 6; ++i) {
      phases.push_back(i == 0 ? phase({}, 3e-6)
                              : phase({static_cast<std::uint32_t>(phases.size() - 1)}, 3e-6));
    }
  }
  phases.push_back(phase({5}, 1e-6, 1, true));
  expect_valid(phases, {2, true});
  expect_valid(phases, {4, true});
}

// --- one lane

// Layers of 10 ms; of every other layer something is packed, started, and unpacked when it has arrived:
//   layer 0, layer 1 --> pack --> start ==> await --> unpack
TEST(StartOrder, StartsAsEarlyAsItCan) {
  constexpr std::uint32_t kLayers = 6;
  std::vector<Phase> phases;
  for (std::uint32_t i = 0; i < kLayers; ++i) {
    phases.push_back(phase({}, 10e-3));
    if (i > 0) phases.back().predecessors.push_back(i - 1);
  }
  std::vector<std::uint32_t> starts;
  for (std::uint32_t i = 1; i < kLayers; i += 2) {
    const auto pack = static_cast<std::uint32_t>(phases.size());
    phases.push_back(phase({i - 1, i}, 100e-6));
    phases.push_back(phase({pack}, 1e-6));
    phases.back().starts = true;
    starts.push_back(pack + 1);
    phases.push_back(phase({pack + 1}, 5e-3));
    phases.back().awaits = true;
    phases.push_back(phase({pack + 2}, 100e-6));
  }
  const Clusters clusters = make_clusters(phases, {.lanes = 1});
  expect_every_call_once(phases, clusters);
  expect_clusters_cut_the_calls(clusters);
  expect_edges_count_and_lead_forward(clusters);
  std::vector<std::uint32_t> position(phases.size());
  for (std::uint32_t at = 0; at < clusters.calls.size(); ++at) position[clusters.calls[at].phase] = at;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const auto last = static_cast<std::uint32_t>(2 * i + 1);
    EXPECT_LT(position[last], position[starts[i]]);
    if (last + 1 < kLayers) {
      EXPECT_LT(position[starts[i]], position[last + 1]) << "before the next layer";
    }
  }
}

TEST(StartOrder, HasEachPhaseOnceAfterItsPredecessors) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    PhaseDice dice(seed);
    const std::vector<Phase> phases = random_phases(dice, {.once_in_defers = 4});
    const std::vector<std::uint32_t> order = internal::start_order(phases);
    std::vector<std::size_t> place(phases.size(), phases.size());
    for (std::size_t at = 0; at < order.size(); ++at) place[order[at]] = at;
    for (std::size_t i = 0; i < phases.size(); ++i) {
      ASSERT_EQ(place[i] == phases.size(), phases[i].commit) << seed;
      if (phases[i].commit) continue;
      for (const std::uint32_t before : phases[i].predecessors) ASSERT_LT(place[before], place[i]) << seed;
    }
  }
}

}  // namespace
}  // namespace lockstep
