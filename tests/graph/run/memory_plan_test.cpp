// Tests: graph/run/memory_plan.cpp
#include "lockstep/graph/run/internal/memory_plan.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/core/memory.h"
#include "support/random_phases.h"

namespace lockstep {
namespace {

using internal::ClusterOptions;
using internal::Clusters;
using internal::Interval;
using internal::make_clusters;
using internal::MemoryPlan;
using internal::Phase;
using internal::plan_memory;
using testing::PhaseDice;
using testing::PhaseShape;
using testing::random_phases;
using testing::ScheduleOrder;

std::int64_t rounded(std::int64_t bytes) { return std::max<std::int64_t>((bytes + 63) / 64 * 64, 64); }

// One value per phase, most of them, read by phases that wait for its writer.
std::vector<Interval> random_intervals(PhaseDice& dice, std::span<const Phase> phases, std::uint32_t arenas) {
  std::vector<Interval> intervals;
  for (std::uint32_t writer = 0; writer < phases.size(); ++writer) {
    if (dice.once_in(8)) continue;
    Interval interval;
    interval.writer = writer;
    interval.bytes = dice.once_in(10) ? 0 : 1 + dice.below(dice.once_in(2) ? 64 : 1000);
    interval.arena = dice.below(arenas);
    for (std::uint32_t reader = writer + 1; reader < phases.size(); ++reader) {
      const auto& before = phases[reader].predecessors;
      if (std::ranges::find(before, writer) != before.end() && !dice.once_in(4))
        interval.readers.push_back(reader);
    }
    // May take over the first value that its writer reads.
    for (std::size_t i = 0; i < intervals.size() && interval.in_place_of < 0; ++i) {
      const bool reads = std::ranges::find(intervals[i].readers, writer) != intervals[i].readers.end();
      if (!reads || dice.once_in(3)) continue;
      interval.in_place_of = static_cast<std::int64_t>(i);
      interval.bytes = intervals[i].bytes;
      interval.arena = intervals[i].arena;
    }
    intervals.push_back(interval);
  }
  return intervals;
}

class CheckedPlan {
 public:
  CheckedPlan(std::span<const Phase> phases, std::vector<Interval> intervals, const ClusterOptions& options,
              std::size_t arenas)
      : clusters_(make_clusters(phases, options)),
        intervals_(std::move(intervals)),
        order_(clusters_),
        calls_(phases.size()) {
    memory_ = plan_memory(intervals_, phases.size(), clusters_, arenas);
    for (std::size_t at = 0; at < clusters_.calls.size(); ++at)
      calls_[clusters_.calls[at].phase].push_back(at);
  }

  const MemoryPlan& memory() const { return memory_; }
  const std::vector<Interval>& intervals() const { return intervals_; }

  void expect_sound() const {
    expect_inside_the_arenas();
    for (std::size_t a = 0; a < intervals_.size(); ++a) {
      for (std::size_t b = a + 1; b < intervals_.size(); ++b) {
        if (!share_memory(intervals_[a], intervals_[b])) continue;
        ASSERT_TRUE(may_follow(a, b) || may_follow(b, a))
            << "intervals " << a << " at " << intervals_[a].offset << " and " << b << " at "
            << intervals_[b].offset;
      }
    }
  }

 private:
  void expect_inside_the_arenas() const {
    std::int64_t total = 0;
    std::int64_t largest = 0;
    for (const std::int64_t bytes : memory_.arena_bytes) total += bytes;
    ASSERT_EQ(memory_.planned_bytes, total);
    for (const Interval& interval : intervals_) {
      ASSERT_GE(interval.offset, 0);
      ASSERT_EQ(interval.offset % static_cast<std::int64_t>(kAlignment), 0);
      ASSERT_LE(interval.offset + interval.bytes, memory_.arena_bytes[interval.arena]);
      largest = std::max(largest, rounded(interval.bytes));
    }
    ASSERT_GE(memory_.planned_bytes, memory_.live_set_bytes);
    ASSERT_GE(memory_.live_set_bytes, largest);
  }

  static bool share_memory(const Interval& a, const Interval& b) {
    return a.arena == b.arena && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
  }

  // Has everyone who touches `first` ended before `second` is written? Whoever takes over in place may read
  // it.
  bool may_follow(std::size_t first, std::size_t second) const {
    const std::uint32_t writer = intervals_[second].writer;
    const bool in_place = intervals_[second].in_place_of == static_cast<std::int64_t>(first);
    if (in_place && intervals_[first].offset != intervals_[second].offset) return false;
    std::vector<std::uint32_t> users(intervals_[first].readers.begin(), intervals_[first].readers.end());
    users.push_back(intervals_[first].writer);
    for (const std::uint32_t user : users) {
      if (in_place && user == writer) continue;
      for (const std::size_t a : calls_[user]) {
        for (const std::size_t b : calls_[writer]) {
          if (!order_.precedes(a, b)) return false;
        }
      }
    }
    return true;
  }

  Clusters clusters_;
  std::vector<Interval> intervals_;
  ScheduleOrder order_;
  std::vector<std::vector<std::size_t>> calls_;
  MemoryPlan memory_;
};

class RandomMemoryPlans : public ::testing::TestWithParam<std::size_t> {};

TEST_P(RandomMemoryPlans, NoTwoValuesThatCanBeAliveTogetherOverlap) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    PhaseDice dice(seed);
    const PhaseShape shape{.phases = 2 + dice.below(50), .most_shards = 5};
    const std::vector<Phase> phases = random_phases(dice, shape);
    const std::uint32_t arenas = 1 + dice.below(2);
    std::vector<Interval> intervals = random_intervals(dice, phases, arenas);
    CheckedPlan(phases, std::move(intervals), {GetParam(), !dice.once_in(3)}, arenas).expect_sound();
    if (HasFatalFailure()) FAIL() << "seed " << seed;
  }
}

// More free blocks than are looked at for one value: what is not found must not be lost either.
TEST_P(RandomMemoryPlans, HoldsForManyValuesOfManySizes) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    PhaseDice dice(5000 + seed);
    const PhaseShape shape{.phases = 260, .most_predecessors = 2, .most_shards = 2, .shortest = 1e-6};
    const std::vector<Phase> phases = random_phases(dice, shape);
    std::vector<Interval> intervals = random_intervals(dice, phases, 1);
    CheckedPlan(phases, std::move(intervals), {GetParam(), !dice.once_in(2)}, 1).expect_sound();
    if (HasFatalFailure()) FAIL() << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, RandomMemoryPlans, ::testing::Values(1, 2, 4, 8));

// A chain in which each value is read by the next phase alone.
std::vector<Phase> chain(std::uint32_t length) {
  std::vector<Phase> phases(length);
  for (std::uint32_t i = 0; i < length; ++i) {
    phases[i].seconds = 1e-7;
    if (i > 0) phases[i].predecessors.push_back(i - 1);
  }
  return phases;
}
std::vector<Interval> chain_values(std::uint32_t length, bool in_place) {
  std::vector<Interval> intervals(length);
  for (std::uint32_t i = 0; i < length; ++i) {
    intervals[i].bytes = 1000;
    intervals[i].writer = i;
    if (i + 1 < length) intervals[i].readers.push_back(i + 1);
    if (in_place && i > 0) intervals[i].in_place_of = i - 1;
  }
  return intervals;
}

TEST(MemoryPlan, AChainNeedsTwoBlocks) {
  for (const std::size_t lanes : {1U, 2U}) {
    const CheckedPlan plan(chain(50), chain_values(50, false), {lanes, true}, 1);
    plan.expect_sound();
    EXPECT_EQ(plan.memory().planned_bytes, 2 * rounded(1000)) << lanes << " lanes";
    EXPECT_EQ(plan.memory().live_set_bytes, 2 * rounded(1000)) << lanes << " lanes";
  }
}

TEST(MemoryPlan, AChainInPlaceNeedsOneBlock) {
  for (const std::size_t lanes : {1U, 2U}) {
    const CheckedPlan plan(chain(50), chain_values(50, true), {lanes, true}, 1);
    plan.expect_sound();
    EXPECT_EQ(plan.memory().planned_bytes, rounded(1000)) << lanes << " lanes";
    EXPECT_EQ(plan.memory().live_set_bytes, rounded(1000)) << lanes << " lanes";
  }
}

TEST(MemoryPlan, AChainAcrossClustersReusesMemoryToo) {
  const CheckedPlan plan(chain(50), chain_values(50, false), {2, false}, 1);
  plan.expect_sound();
  EXPECT_EQ(plan.memory().planned_bytes, 2 * rounded(1000));
}

// Towers of layers, each layer a phase cut into clusters of which all wait for all of the layer before. Every
// layer also leads to a phase that nothing waits for.
struct Towers {
  std::uint32_t towers = 1, layers = 40, shards = 1, ends = 0;  // ends: shards of the phase beside each layer
};
struct TowerValues {
  std::vector<Phase> phases;
  std::vector<Interval> intervals;  // one per layer, read by the next
};
TowerValues make_towers(const Towers& towers) {
  TowerValues made;
  std::vector<std::uint32_t> before(towers.towers);
  for (std::uint32_t layer = 0; layer < towers.layers; ++layer) {
    for (std::uint32_t tower = 0; tower < towers.towers; ++tower) {
      const auto number = static_cast<std::uint32_t>(made.phases.size());
      Phase phase;
      phase.shards = towers.shards;
      phase.seconds = 1e-4;  // worth a cluster each
      if (layer > 0) phase.predecessors.push_back(before[tower]);
      made.phases.push_back(phase);
      Interval value;
      value.bytes = 1000;
      value.writer = number;
      if (layer > 0) made.intervals[made.intervals.size() - towers.towers].readers.push_back(number);
      made.intervals.push_back(value);
      if (towers.ends > 0) {
        Phase end;
        end.shards = towers.ends;
        end.seconds = 1e-4;
        end.predecessors.push_back(number);
        made.phases.push_back(end);
      }
      before[tower] = number;
    }
  }
  return made;
}

// However often clusters fan out and come together, memory is found again.
TEST(MemoryPlan, EveryTowerOfLayersNeedsTwoBlocks) {
  const Towers cases[] = {
      {.shards = 8},                 // 40 fan-outs, each behind a join where clusters are made by cost
      {.shards = 16},                // the most that have no join of their own
      {.layers = 8, .shards = 100},  // more than there are chains
      {.layers = 3, .shards = 1100},
      {.towers = 5, .layers = 8, .shards = 20},
      {.towers = 3, .shards = 4},
      {.shards = 8, .ends = 8},  // what leads nowhere takes no chain from the others
      {.towers = 2, .layers = 8, .shards = 20, .ends = 20},
  };
  for (const Towers& towers : cases) {
    for (const bool by_cost : {false, true}) {
      TowerValues made = make_towers(towers);
      const CheckedPlan plan(made.phases, std::move(made.intervals), {2, by_cost}, 1);
      plan.expect_sound();
      EXPECT_EQ(plan.memory().planned_bytes, 2 * rounded(1000) * towers.towers)
          << towers.towers << " towers, " << towers.shards << " shards, " << towers.ends
          << " at each end, by cost: " << by_cost;
    }
  }
}

// Large values, which are cut into very many shards, are those for which it matters most.
TEST(MemoryPlan, ManyShardsTakeOverWhatTheyAloneRead) {
  for (const bool by_cost : {false, true}) {
    TowerValues made = make_towers({.layers = 2, .shards = 1100});
    for (std::size_t i = 1; i < made.intervals.size(); ++i)
      made.intervals[i].in_place_of = static_cast<std::int64_t>(i) - 1;
    const CheckedPlan plan(made.phases, std::move(made.intervals), {2, by_cost}, 1);
    plan.expect_sound();
    EXPECT_EQ(plan.memory().planned_bytes, rounded(1000)) << "by cost: " << by_cost;
  }
}

// More writers than there are chains: whoever takes over knows all the same that they have ended.
TEST(MemoryPlan, ManyTowersTakeOverWhatTheyAloneRead) {
  constexpr std::uint32_t kTowers = 100;
  TowerValues made = make_towers({.towers = kTowers, .layers = 2});
  for (std::uint32_t i = kTowers; i < made.intervals.size(); ++i)
    made.intervals[i].in_place_of = std::int64_t{i} - kTowers;
  const CheckedPlan plan(made.phases, std::move(made.intervals), {2, false}, 1);
  plan.expect_sound();
  EXPECT_EQ(plan.memory().planned_bytes, rounded(1000) * kTowers);
}

TEST(MemoryPlan, AValueWithAnotherReaderIsNotTakenOver) {
  // 0 -> 1 (in place?), 0 -> 2: phase 2 may run after phase 1 has begun to write.
  std::vector<Phase> phases(3);
  phases[1].predecessors.push_back(0);
  phases[2].predecessors.push_back(0);
  std::vector<Interval> intervals(2);
  intervals[0].bytes = intervals[1].bytes = 64;
  intervals[0].readers = {1, 2};
  intervals[1].writer = 1;
  intervals[1].in_place_of = 0;
  for (const std::size_t lanes : {1U, 2U}) {
    const CheckedPlan plan(phases, intervals, {lanes, false}, 1);
    plan.expect_sound();
    EXPECT_NE(plan.intervals()[0].offset, plan.intervals()[1].offset) << lanes << " lanes";
  }
}

// First come, first served would put the large value behind both: 300, 100, 400 bytes, of which the last two
// live together.
TEST(MemoryPlan, ALargeValueTakesTheRoomOfASmallOneBeforeIt) {
  std::vector<Interval> intervals(3);
  intervals[0].bytes = 300;
  intervals[0].readers = {1};
  intervals[1].bytes = 100;
  intervals[1].writer = 1;
  intervals[1].readers = {3};
  intervals[2].bytes = 400;
  intervals[2].writer = 2;
  intervals[2].readers = {3};
  const CheckedPlan plan(chain(4), std::move(intervals), {1, true}, 1);
  plan.expect_sound();
  EXPECT_EQ(plan.memory().live_set_bytes, rounded(400) + rounded(100));
  EXPECT_EQ(plan.memory().planned_bytes, rounded(400) + rounded(100));
}

TEST(MemoryPlan, ArenasAreApart) {
  std::vector<Interval> intervals = chain_values(10, false);
  for (std::size_t i = 0; i < intervals.size(); ++i) intervals[i].arena = static_cast<std::uint32_t>(i % 2);
  const CheckedPlan plan(chain(10), std::move(intervals), {1, true}, 2);
  plan.expect_sound();
  EXPECT_EQ(plan.memory().arena_bytes, (std::vector<std::int64_t>{rounded(1000), rounded(1000)}));
}

// The largest live set counts what is taken over once, although both names are in use for a while.
TEST(MemoryPlan, ALiveSetCountsWhatIsTakenOverOnce) {
  // Phase 1 works in place on phase 0's value and also has scratch; both start at its first call.
  std::vector<Phase> phases(2);
  phases[1].predecessors.push_back(0);
  phases[1].shards = 2;
  std::vector<Interval> intervals(3);
  intervals[0].bytes = intervals[1].bytes = 640;
  intervals[0].readers = {1};
  intervals[1].writer = 1;
  intervals[1].in_place_of = 0;
  intervals[2].bytes = 64;
  intervals[2].writer = 1;
  const CheckedPlan plan(phases, std::move(intervals), {1, true}, 1);
  plan.expect_sound();
  EXPECT_EQ(plan.memory().live_set_bytes, 640 + 64);
  EXPECT_EQ(plan.memory().planned_bytes, 640 + 64);
}

// A large free block behind many small ones that cannot be used yet must not shrink the arena when it is
// found.
TEST(MemoryPlan, TheArenaNeverShrinks) {
  constexpr std::uint32_t kSmall = 40;
  std::vector<Phase> phases;
  std::vector<Interval> intervals;
  const auto add_phase = [&](std::initializer_list<std::uint32_t> predecessors) {
    Phase& phase = phases.emplace_back();
    for (const std::uint32_t before : predecessors) phase.predecessors.push_back(before);
    return static_cast<std::uint32_t>(phases.size() - 1);
  };
  const auto add_value = [&](std::int64_t bytes, std::uint32_t writer,
                             std::initializer_list<std::uint32_t> readers) {
    Interval& interval = intervals.emplace_back();
    interval.bytes = bytes;
    interval.writer = writer;
    for (const std::uint32_t reader : readers) interval.readers.push_back(reader);
  };
  // Small values that are laid out first (long chains are urgent), read by somebody else than those before
  // `last`.
  for (std::uint32_t i = 0; i < kSmall; ++i) {
    const std::uint32_t writer = add_phase({});
    const std::uint32_t reader = add_phase({writer});
    std::uint32_t follower = reader;
    for (int length = 0; length < 4; ++length) follower = add_phase({follower});
    add_value(128, writer, {reader});
  }
  const std::uint32_t large = add_phase({});
  const std::uint32_t reader = add_phase({large});
  const std::uint32_t last = add_phase({reader});
  add_value(64'000, large, {reader});
  add_value(128, last, {});
  CheckedPlan(phases, std::move(intervals), {2, false}, 1).expect_sound();
}

}  // namespace
}  // namespace lockstep
