// graph/run/clusters.cpp - which kernel calls form one task.
#include "lockstep/graph/run/internal/clusters.h"

#include <algorithm>
#include <compare>
#include <map>
#include <numeric>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/graph/run/internal/start_order.h"

namespace lockstep::internal {

namespace {

constexpr double kSmallest = 4e-6;             // seconds: a group below this is not worth a task ...
constexpr double kWorthCutting = 1e-6;         // ... unless every lane gets at least this much
constexpr double kWorthKeepingApart = 0.5e-6;  // cheaper sets are joined with calls of other heights
constexpr double kLargest = 50e-6;  // above this a group is cut for balance, whatever the level costs
constexpr double kChain = 16e-6;    // chains grow up to this
constexpr std::size_t kGroupsPerLane = 8;
constexpr std::size_t kManyPredecessors = 4;
constexpr std::size_t kManyDrafts = 16;    // a phase cut into more drafts gets a join of its own
constexpr std::size_t kManyAwaits = 1024;  // with more of them every call is a cluster of its own

// A cluster while it grows.
struct Draft {
  std::vector<Call> calls;
  std::vector<std::uint32_t> predecessors;  // drafts, unique
  double seconds = 0;
  std::uint32_t level = 0;  // of its last calls
  std::uint32_t class_number = 0;
  bool gate = false, commit = false, awaits = false;
};

// Divides phases into classes: those that come behind the same awaits.
class AwaitClasses {
 public:
  // By phase. Phases of the commit stage are in class 0: the gate waits for everything.
  static std::vector<std::uint32_t> of(std::span<const Phase> phases) {
    AwaitClasses classes;
    std::vector<std::uint32_t> result(phases.size(), 0);
    std::size_t awaits = 0;
    for (std::size_t i = 0; i < phases.size(); ++i) {
      if (phases[i].commit) continue;
      const auto& before = phases[i].predecessors;
      std::uint32_t common = before.empty() ? 0 : result[before[0]];
      const bool equal =
          std::ranges::all_of(before, [&](std::uint32_t phase) { return result[phase] == common; });
      if (!equal || phases[i].awaits) {
        Set set;
        for (const std::uint32_t phase : before) set.add_all(*classes.sets_[result[phase]]);
        if (phases[i].awaits) set.add(awaits++);
        common = classes.number_of(std::move(set));
      }
      result[i] = common;
    }
    return result;
  }

 private:
  // Of awaits, by their numbers.
  struct Set {
    std::vector<std::uint64_t> words;
    void add(std::size_t await) {
      if (words.size() <= await / 64) words.resize(await / 64 + 1);
      words[await / 64] |= std::uint64_t{1} << (await % 64);
    }
    void add_all(const Set& other) {
      if (words.size() < other.words.size()) words.resize(other.words.size());
      for (std::size_t i = 0; i < other.words.size(); ++i) words[i] |= other.words[i];
    }
    friend auto operator<=>(const Set&, const Set&) = default;
  };

  AwaitClasses() { number_of({}); }
  std::uint32_t number_of(Set set) {
    const auto [found, fresh] = numbers_.emplace(std::move(set), static_cast<std::uint32_t>(sets_.size()));
    if (fresh) sets_.push_back(&found->first);
    return found->second;
  }

  std::map<Set, std::uint32_t> numbers_;
  std::vector<const Set*> sets_;  // by class
};

class Clusterer {
 public:
  Clusterer(std::span<const Phase> phases, const ClusterOptions& options)
      : phases_(phases), options_(options) {
    const auto awaits = static_cast<std::size_t>(std::ranges::count_if(phases, &Phase::awaits));
    has_awaits_ = awaits > 0;
    if (awaits > kManyAwaits) options_.by_cost = false;
    if (has_awaits_ && options_.by_cost) classes_ = AwaitClasses::of(phases);
  }

  Clusters run() {
    sort_into_levels();
    drafts_of_.resize(phases_.size());
    joins_.assign(phases_.size(), kNone);
    for (std::uint32_t level = 0; level < levels_.size(); ++level) {
      if (has_commit_ && level == gate_level_) add_gate();
      if (!levels_[level].empty()) add_level(level);
    }
    return finish();
  }

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFFU;

  void sort_into_levels() {
    std::vector<std::uint32_t> level(phases_.size(), 0);
    std::uint32_t deepest = 0;
    for (std::size_t i = 0; i < phases_.size(); ++i) {
      if (phases_[i].commit) {
        has_commit_ = true;
        continue;
      }
      for (const std::uint32_t before : phases_[i].predecessors)
        level[i] = std::max(level[i], level[before] + 1);
      deepest = std::max(deepest, level[i] + 1);
    }
    gate_level_ = deepest;  // commit phases come after all others
    for (std::size_t i = 0; i < phases_.size(); ++i) {
      if (!phases_[i].commit) continue;
      level[i] = gate_level_;
      for (const std::uint32_t before : phases_[i].predecessors) {
        if (phases_[before].commit) level[i] = std::max(level[i], level[before] + 1);
      }
      deepest = std::max(deepest, level[i] + 1);
    }
    if (is_in_turn()) {
      const std::vector<std::uint32_t> order = start_order(phases_);
      const auto turns = static_cast<std::uint32_t>(order.size());
      for (std::uint32_t turn = 0; turn < turns; ++turn) level[order[turn]] = turn;
      for (std::size_t i = 0; i < phases_.size(); ++i) {
        if (phases_[i].commit) level[i] += turns - gate_level_;
      }
      deepest += turns - gate_level_;
      gate_level_ = turns;
    }
    levels_.resize(deepest);
    for (std::uint32_t i = 0; i < phases_.size(); ++i) levels_[level[i]].push_back(i);
    height_.assign(phases_.size(), 0);
    for (std::size_t i = phases_.size(); i-- > 0;) {
      for (const std::uint32_t before : phases_[i].predecessors) {
        height_[before] = std::max(height_[before], height_[i] + 1);
      }
    }
  }

  // With one lane, a call that does not start anything only keeps others from being started: each phase is a level of its own.
  bool is_in_turn() const { return options_.lanes < 2 && options_.by_cost && has_awaits_; }

  void add_gate() {
    Draft gate;
    gate.gate = true;
    gate.level = gate_level_;
    gate.predecessors = ends();
    gate_ = static_cast<std::uint32_t>(drafts_.size());
    drafts_.push_back(std::move(gate));
    single_ = kNone;
    singles_.clear();
    last_singles_.clear();
  }

  void add_level(std::uint32_t level) {
    std::vector<std::uint32_t>& phases = levels_[level];
    if (!has_awaits_) {
      const auto rest = std::stable_partition(phases.begin(), phases.end(),
                                              [&](std::uint32_t phase) { return phases_[phase].urgent; });
      const auto urgent = static_cast<std::size_t>(rest - phases.begin());
      if (urgent > 0) add_phases(level, std::span(phases).first(urgent));
      if (urgent < phases.size()) add_phases(level, std::span(phases).subspan(urgent));
      return;
    }
    for (const std::uint32_t phase : phases) {
      if (phases_[phase].awaits) add_await(level, phase);
    }
    std::erase_if(phases, [&](std::uint32_t phase) { return phases_[phase].awaits; });
    // What starts something comes first: the earlier it starts, the more can run meanwhile.
    std::ranges::stable_sort(phases, [&](std::uint32_t a, std::uint32_t b) {
      if (class_of(a) != class_of(b)) return class_of(a) < class_of(b);
      const auto first = [&](std::uint32_t phase) { return phases_[phase].starts || phases_[phase].urgent; };
      return first(a) && !first(b);
    });
    for (std::size_t begin = 0; begin < phases.size();) {
      std::size_t end = begin;
      const std::uint32_t same = class_of(phases[begin]);
      while (end < phases.size() && class_of(phases[end]) == same) ++end;
      class_ = same;
      const auto single = singles_.find(same);
      single_ = single == singles_.end() ? kNone : single->second;
      // An await that has arrived must not wait behind a long cluster.
      if (single_ != kNone && drafts_[single_].seconds >= kLargest) single_ = kNone;
      add_phases(level, std::span(phases).subspan(begin, end - begin));
      singles_[same] = single_;
      begin = end;
    }
  }

  std::uint32_t class_of(std::uint32_t phase) const { return classes_.empty() ? 0 : classes_[phase]; }

  void add_await(std::uint32_t level, std::uint32_t phase) {
    const auto draft = static_cast<std::uint32_t>(drafts_.size());
    class_ = class_of(phase);
    start_draft(level);
    put(phase, 0);
    drafts_[draft].awaits = true;
    connect(draft);
    note_drafts(draft);
  }

  void add_phases(std::uint32_t level, std::span<const std::uint32_t> phases) {
    double total = 0;
    for (const std::uint32_t phase : phases) total += cost_of(phase);
    if (how_many(total) == 1) {
      add_single(level, phases);
      return;
    }
    single_ = kNone;
    // The most urgent calls first. Calls whose predecessors ran together stay together, so that a chain
    // continues in its own cluster.
    std::vector<Ranked> order;
    order.reserve(phases.size());
    for (const std::uint32_t phase : phases) {
      const auto& before = phases_[phase].predecessors;
      const bool first_known = !before.empty() && !drafts_of_[before[0]].empty();
      order.push_back({height_[phase], first_known ? drafts_of_[before[0]].front() : 0, phase});
    }
    std::ranges::stable_sort(order, [](const Ranked& a, const Ranked& b) {
      return a.height != b.height ? a.height > b.height : a.before < b.before;
    });
    const std::size_t first = drafts_.size();
    for (std::size_t begin = 0; begin < order.size();) {
      std::size_t end = begin;
      double set = 0;
      for (; end < order.size(); ++end) {
        if (order[end].height != order[begin].height && set >= kWorthKeepingApart) break;
        set += cost_of(order[end].phase);
      }
      cut(level, std::span(order).subspan(begin, end - begin), set);
      begin = end;
    }
    const std::size_t own = drafts_.size();  // joins come after these
    for (std::size_t draft = first; draft < own; ++draft) connect(static_cast<std::uint32_t>(draft));
    if (options_.by_cost) {
      join_many(first);
      append_to_chains(first);
    }
    note_drafts(first);
  }

  struct Ranked {
    std::uint32_t height, before, phase;
  };

  double cost_of(std::uint32_t phase) const { return phases_[phase].seconds * phases_[phase].shards; }

  // Cuts equally urgent calls, `total` seconds of them, into groups of about one size.
  void cut(std::uint32_t level, std::span<const Ranked> order, double total) {
    const std::size_t groups = how_many(total);
    double spent = 0;
    std::size_t group = 0;
    start_draft(level);
    for (const Ranked& entry : order) {
      const double seconds = phases_[entry.phase].seconds;
      for (std::uint32_t shard = 0; shard < phases_[entry.phase].shards; ++shard) {
        // The middle of the call decides which group it falls into.
        const double middle = total > 0 ? (spent + seconds / 2) / total : 0;
        const auto wanted =
            std::min(groups - 1, static_cast<std::size_t>(middle * static_cast<double>(groups)));
        const bool next = !options_.by_cost || wanted > group;
        if (next && !drafts_.back().calls.empty()) start_draft(level);
        group = wanted;
        put(entry.phase, shard);
        spent += seconds;
      }
    }
  }

  std::size_t how_many(double total) const {
    if (!options_.by_cost) return 2;  // any number above one: every call becomes a group anyway
    const auto lanes = static_cast<double>(options_.lanes);
    if (options_.lanes < 2 || total < kWorthCutting * lanes) return 1;
    const double size = std::clamp(total / (lanes * kGroupsPerLane), kSmallest, kLargest);
    const auto rounds = static_cast<std::size_t>(std::max(1.0, total / (size * lanes) + 0.5));
    return rounds * options_.lanes;
  }

  // A level that is not worth cutting continues the cluster of the level before, if that was not worth
  // cutting either.
  void add_single(std::uint32_t level, std::span<const std::uint32_t> phases) {
    if (single_ == kNone) {
      single_ = static_cast<std::uint32_t>(drafts_.size());
      start_draft(level);
      if (is_in_turn()) {
        const auto [before, first] = last_singles_.try_emplace(class_, single_);
        if (!first && before->second != single_) link(single_, std::exchange(before->second, single_));
      }
    }
    Draft& draft = drafts_[single_];
    draft.level = level;
    for (const std::uint32_t phase : phases) {
      for (const std::uint32_t before : phases_[phase].predecessors) {
        for (const std::uint32_t other : drafts_of_[before]) link(single_, other);
      }
      link_gate(single_, phase);
      for (std::uint32_t shard = 0; shard < phases_[phase].shards; ++shard) {
        draft.calls.push_back({phase, shard});
        draft.seconds += phases_[phase].seconds;
      }
      drafts_of_[phase].assign(1, single_);
    }
    draft.commit = phases_[phases.front()].commit;
  }

  void start_draft(std::uint32_t level) {
    drafts_.emplace_back();
    drafts_.back().level = level;
    drafts_.back().class_number = class_;
    mark_.resize(drafts_.size(), kNone);
  }

  void put(std::uint32_t phase, std::uint32_t shard) {
    drafts_.back().calls.push_back({phase, shard});
    drafts_.back().seconds += phases_[phase].seconds;
    drafts_.back().commit = phases_[phase].commit;
  }

  void link(std::uint32_t draft, std::uint32_t before) {
    if (before == draft || mark_[before] == draft) return;
    // The mark is only valid while one draft is being connected. A single cluster grows over several levels
    // and checks the mark again at each.
    mark_[before] = draft;
    drafts_[draft].predecessors.push_back(before);
  }

  void link_gate(std::uint32_t draft, std::uint32_t phase) {
    if (phases_[phase].commit) link(draft, gate_);
  }

  void connect(std::uint32_t draft) {
    std::uint32_t last_phase = kNone;
    for (std::size_t i = 0; i < drafts_[draft].calls.size(); ++i) {
      const std::uint32_t phase = drafts_[draft].calls[i].phase;
      if (phase == last_phase) continue;
      last_phase = phase;
      link_gate(draft, phase);
      for (const std::uint32_t before : phases_[phase].predecessors) {
        if (drafts_of_[before].size() > kManyDrafts) {
          link(draft, join_of(before));
        } else {
          for (const std::uint32_t other : drafts_of_[before]) link(draft, other);
        }
      }
    }
  }

  // An empty cluster after all calls of a phase. Waiting for the phase then takes one edge, and asking
  // whether it has ended one question, instead of one per draft.
  std::uint32_t join_of(std::uint32_t phase) {
    if (joins_[phase] == kNone) {
      joins_[phase] = static_cast<std::uint32_t>(drafts_.size());
      Draft join;
      join.predecessors = drafts_of_[phase];
      join.commit = gate_ != kNone;  // made for calls after the gate, so it comes after the gate too
      if (join.commit) join.predecessors.push_back(gate_);
      drafts_.push_back(std::move(join));
      mark_.resize(drafts_.size(), kNone);
    }
    return joins_[phase];
  }

  // Many groups that wait for the same many others: an empty cluster in between takes a + b edges instead of
  // a * b.
  void join_many(std::size_t first) {
    std::vector<std::uint32_t> behind;
    std::size_t edges = 0;
    Draft join;
    for (std::size_t i = first; i < drafts_.size(); ++i) {
      const Draft& draft = drafts_[i];
      if (draft.predecessors.size() < kManyPredecessors || draft.calls.empty()) continue;
      behind.push_back(static_cast<std::uint32_t>(i));
      edges += draft.predecessors.size();
      join.predecessors.insert(join.predecessors.end(), draft.predecessors.begin(), draft.predecessors.end());
      join.commit = join.commit || draft.commit;
    }
    std::ranges::sort(join.predecessors);
    join.predecessors.erase(std::unique(join.predecessors.begin(), join.predecessors.end()),
                            join.predecessors.end());
    if (behind.empty() || edges < 2 * (join.predecessors.size() + behind.size())) return;
    const auto number = static_cast<std::uint32_t>(drafts_.size());
    for (const std::uint32_t draft : behind) drafts_[draft].predecessors.assign(1, number);
    drafts_.push_back(std::move(join));
    mark_.resize(drafts_.size(), kNone);
  }

  // Appends a new draft to its predecessor, if it has only one and is most of the work that waits for that
  // predecessor.
  void append_to_chains(std::size_t first) {
    waiting_.resize(drafts_.size(), 0);
    for (std::size_t i = first; i < drafts_.size(); ++i) {
      for (const std::uint32_t before : drafts_[i].predecessors) waiting_[before] += drafts_[i].seconds;
    }
    for (std::size_t i = first; i < drafts_.size(); ++i) {
      Draft& draft = drafts_[i];
      if (draft.predecessors.size() != 1 || draft.calls.empty()) continue;
      Draft& before = drafts_[draft.predecessors[0]];
      const bool main_successor = draft.seconds * 2 > waiting_[draft.predecessors[0]];
      const bool fits = before.seconds + draft.seconds <= kChain && !before.gate && !before.calls.empty() &&
                        !before.awaits && before.class_number == draft.class_number;
      if (!main_successor || !fits || before.level >= draft.level || before.commit != draft.commit) continue;
      before.calls.insert(before.calls.end(), draft.calls.begin(), draft.calls.end());
      before.seconds += draft.seconds;
      before.level = draft.level;
      moved_.resize(drafts_.size(), kNone);
      moved_[i] = draft.predecessors[0];
      draft.predecessors.clear();
    }
    for (std::size_t i = first; i < drafts_.size(); ++i) {
      for (const std::uint32_t before : drafts_[i].predecessors) waiting_[before] = 0;
      if (i < moved_.size() && moved_[i] != kNone) waiting_[moved_[i]] = 0;
    }
  }

  void note_drafts(std::size_t first) {
    moved_.resize(drafts_.size(), kNone);
    for (std::size_t i = first; i < drafts_.size(); ++i) {
      const std::uint32_t owner = moved_[i] == kNone ? static_cast<std::uint32_t>(i) : moved_[i];
      for (const Call& call : drafts_[i].calls) {
        auto& list = drafts_of_[call.phase];
        if (list.empty() || list.back() != owner) list.push_back(owner);
      }
      if (moved_[i] != kNone) drafts_[i].calls.clear();
    }
  }

  bool dropped(std::uint32_t draft) const { return draft < moved_.size() && moved_[draft] != kNone; }

  // The drafts that no other waits for.
  std::vector<std::uint32_t> ends() const {
    std::vector<bool> has_successor(drafts_.size(), false);
    for (const Draft& draft : drafts_) {
      for (const std::uint32_t before : draft.predecessors) has_successor[before] = true;
    }
    std::vector<std::uint32_t> result;
    for (std::uint32_t i = 0; i < drafts_.size(); ++i) {
      if (!has_successor[i] && !dropped(i)) result.push_back(i);
    }
    return result;
  }

  // Numbers the drafts in an order in which they may run and packs them.
  Clusters finish() {
    Draft last;
    last.predecessors = ends();
    last.commit = has_commit_;
    drafts_.push_back(std::move(last));
    const auto count = static_cast<std::uint32_t>(drafts_.size());
    std::vector<std::vector<std::uint32_t>> successors(count);
    std::vector<std::uint32_t> waits(count, 0);
    for (std::uint32_t i = 0; i < count; ++i) {
      std::ranges::sort(drafts_[i].predecessors);
      drafts_[i].predecessors.erase(
          std::unique(drafts_[i].predecessors.begin(), drafts_[i].predecessors.end()),
          drafts_[i].predecessors.end());
      for (const std::uint32_t before : drafts_[i].predecessors) successors[before].push_back(i);
      waits[i] = static_cast<std::uint32_t>(drafts_[i].predecessors.size());
    }
    std::vector<std::uint32_t> order;
    order.reserve(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      if (waits[i] == 0 && !dropped(i)) order.push_back(i);
    }
    for (std::size_t next = 0; next < order.size(); ++next) {
      for (const std::uint32_t after : successors[order[next]]) {
        if (--waits[after] == 0) order.push_back(after);
      }
    }
    // The commit stage comes after everything else.
    std::stable_partition(order.begin(), order.end(),
                          [&](std::uint32_t i) { return !drafts_[i].gate && !drafts_[i].commit; });
    std::stable_partition(order.begin(), order.end(), [&](std::uint32_t i) { return !drafts_[i].commit; });

    std::vector<double> urgency(count, 0);
    for (auto draft = order.rbegin(); draft != order.rend(); ++draft) {
      std::vector<std::uint32_t>& after = successors[*draft];
      std::ranges::stable_sort(after,
                               [&](std::uint32_t a, std::uint32_t b) { return urgency[a] > urgency[b]; });
      urgency[*draft] = drafts_[*draft].seconds + (after.empty() ? 0 : urgency[after.front()]);
    }

    Clusters result;
    std::vector<std::uint32_t> number(count, kNone);
    for (std::uint32_t i = 0; i < order.size(); ++i) number[order[i]] = i;
    bool committing = false;
    for (const std::uint32_t from : order) {
      Draft& draft = drafts_[from];
      Cluster cluster;
      cluster.begin = static_cast<std::uint32_t>(result.calls.size());
      if ((draft.gate || draft.commit) && !committing) {
        committing = true;
        result.commit_begin = cluster.begin;
      }
      result.calls.insert(result.calls.end(), draft.calls.begin(), draft.calls.end());
      result.cluster_of.resize(result.calls.size(), static_cast<std::uint32_t>(result.clusters.size()));
      cluster.end = static_cast<std::uint32_t>(result.calls.size());
      cluster.predecessors = static_cast<std::uint32_t>(draft.predecessors.size()) + (draft.awaits ? 1 : 0);
      cluster.first_successor = static_cast<std::uint32_t>(result.successors.size());
      for (const std::uint32_t after : successors[from]) result.successors.push_back(number[after]);
      cluster.end_successor = static_cast<std::uint32_t>(result.successors.size());
      cluster.urgency = static_cast<float>(urgency[from]);
      cluster.gate = draft.gate;
      cluster.commit = draft.commit;
      cluster.awaits = draft.awaits;
      cluster.starts =
          std::ranges::any_of(draft.calls, [&](const Call& c) { return phases_[c.phase].starts; });
      result.clusters.push_back(cluster);
    }
    result.clusters.back().last = true;
    result.awaits = has_awaits_;
    result.join_of.assign(phases_.size(), Clusters::kNoJoin);
    for (std::size_t i = 0; i < joins_.size(); ++i) {
      if (joins_[i] != kNone) result.join_of[i] = number[joins_[i]];
    }
    if (!committing) result.commit_begin = static_cast<std::uint32_t>(result.calls.size());
    const std::size_t calls =
        std::accumulate(phases_.begin(), phases_.end(), std::size_t{0},
                        [](std::size_t sum, const Phase& phase) { return sum + phase.shards; });
    LOCKSTEP_CHECK(result.calls.size() == calls, "clustering lost calls");
    return result;
  }

  std::span<const Phase> phases_;
  ClusterOptions options_;
  bool has_awaits_ = false;
  std::vector<std::uint32_t> classes_;              // by phase; empty: all are in one
  std::uint32_t class_ = 0;                         // of the drafts that are being made
  std::map<std::uint32_t, std::uint32_t> singles_;  // by class: its cluster that uncut levels continue
  std::map<std::uint32_t, std::uint32_t>
      last_singles_;  // by class: the last such cluster, which the next one follows
  bool has_commit_ = false;
  std::uint32_t gate_level_ = 0;
  std::uint32_t gate_ = kNone;
  std::uint32_t single_ = kNone;                    // the cluster that uncut levels continue
  std::vector<std::vector<std::uint32_t>> levels_;  // phases by level
  std::vector<Draft> drafts_;
  std::vector<std::vector<std::uint32_t>> drafts_of_;  // by phase
  std::vector<std::uint32_t> joins_;                   // by phase: its join, if it has one
  std::vector<std::uint32_t> height_;                  // by phase: the longest path from it
  std::vector<std::uint32_t> mark_;                    // by draft: who linked it last
  // By draft: seconds of the drafts that wait for it in the level being added; 0 between levels.
  std::vector<double> waiting_;
  std::vector<std::uint32_t> moved_;  // by draft: the draft that took its calls
};

// Everything in program order, the commit stage last: program order keeps values alive for the shortest time.
Clusters one_after_another(std::span<const Phase> phases) {
  Clusters result;
  result.sequential = true;
  const auto add = [&](bool commit) {
    Cluster cluster;
    cluster.begin = static_cast<std::uint32_t>(result.calls.size());
    for (std::uint32_t phase = 0; phase < phases.size(); ++phase) {
      if (phases[phase].commit != commit) continue;
      for (std::uint32_t shard = 0; shard < phases[phase].shards; ++shard)
        result.calls.push_back({phase, shard});
    }
    cluster.end = static_cast<std::uint32_t>(result.calls.size());
    cluster.commit = commit;
    result.clusters.push_back(cluster);
  };
  add(false);
  result.commit_begin = static_cast<std::uint32_t>(result.calls.size());
  add(true);
  if (result.clusters[1].begin == result.clusters[1].end) result.clusters.pop_back();
  for (std::uint32_t i = 0; i < result.clusters.size(); ++i)
    result.cluster_of.resize(result.clusters[i].end, i);
  return result;
}

}  // namespace

Clusters make_clusters(std::span<const Phase> phases, const ClusterOptions& options) {
  if (options.lanes < 2 && std::ranges::none_of(phases, &Phase::awaits)) return one_after_another(phases);
  return Clusterer(phases, options).run();
}

}  // namespace lockstep::internal
