// graph/run/memory_plan.cpp - where intermediate values lie.
#include "lockstep/graph/run/internal/memory_plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>

#include "lockstep/core/memory.h"

namespace lockstep::internal {

namespace {

constexpr std::size_t kChains = 64;  // how many chains of clusters are tracked
// A block used by more clusters than this is not reused (in parallel plans).
constexpr std::size_t kMaxUsers = 64;
constexpr std::size_t kMaxPairs = 65'536;  // of clusters looked at per block
constexpr std::size_t kCandidates = 32;    // free blocks looked at per value
constexpr std::size_t kMaxBySize = 4096;   // values of a plan that is laid out largest first

// Does cluster a end before cluster b starts, whatever the schedule? Clusters are put into chains; each
// member of a chain leads to the next (not always by an edge). For each cluster and chain the table holds the
// last member of that chain that leads to the cluster. A cluster continues a chain whose last member leads to
// it, so that a fan-out after a join continues the chains that met there. If no chain fits and no new one can
// be started, the cluster has none and counts as never ended.
class Reachability {
 public:
  explicit Reachability(const Clusters& clusters) {
    const std::size_t count = clusters.clusters.size();
    if (count < 2) return;
    chain_.assign(count, kNone);
    place_.assign(count, 0);
    before_.assign(count * kChains, 0);
    std::uint32_t begun = 0;
    std::array<std::uint32_t, kChains> length{}, last{};  // by chain: members, the last of them
    for (std::uint32_t i = 0; i < count; ++i) {
      const Cluster& cluster = clusters.clusters[i];
      const std::uint32_t* own = &before_[std::size_t{i} * kChains];
      if (is_asked_about(clusters, cluster)) {
        // The chain with the most recent last member: other clusters may still continue chains that ended
        // earlier, but not this one.
        std::uint32_t chain = kNone;
        for (std::uint32_t c = 0; c < begun; ++c) {
          if (own[c] == length[c] && (chain == kNone || last[c] > last[chain])) chain = c;
        }
        if (chain == kNone && begun < kChains) chain = begun++;
        if (chain != kNone) {
          place_[i] = ++length[chain];
          last[chain] = i;
        }
        chain_[i] = chain;
      }
      for (std::uint32_t at = cluster.first_successor; at < cluster.end_successor; ++at) {
        std::uint32_t* row = &before_[std::size_t{clusters.successors[at]} * kChains];
        for (std::size_t c = 0; c < kChains; ++c) row[c] = std::max(row[c], own[c]);
        if (chain_[i] != kNone) row[chain_[i]] = std::max(row[chain_[i]], place_[i]);
      }
    }
  }

  // true for a == b: the caller has compared the positions of the calls inside the cluster.
  bool precedes(std::uint32_t a, std::uint32_t b) const {
    if (a == b) return true;
    return !chain_.empty() && chain_[a] != kNone &&
           before_[std::size_t{b} * kChains + chain_[a]] >= place_[a];
  }

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFFU;

  // Whether anyone will ask if this cluster has ended: not if a join is asked instead, and not if nothing
  // comes after it before the gate.
  static bool is_asked_about(const Clusters& clusters, const Cluster& cluster) {
    const auto calls = std::span(clusters.calls).subspan(cluster.begin, cluster.end - cluster.begin);
    const bool joined = !calls.empty() && std::ranges::all_of(calls, [&](const Call& call) {
      return clusters.join_of[call.phase] != Clusters::kNoJoin;
    });
    const auto after = std::span(clusters.successors)
                           .subspan(cluster.first_successor, cluster.end_successor - cluster.first_successor);
    return !joined && std::ranges::any_of(after, [&](std::uint32_t next) {
      const Cluster& successor = clusters.clusters[next];
      const bool commits = successor.gate || successor.commit;
      return !successor.last && (!commits || cluster.gate || cluster.commit);
    });
  }

  std::vector<std::uint32_t> chain_, place_, before_;
};

class Planner {
 public:
  Planner(std::span<Interval> intervals, std::size_t phases, const Clusters& clusters, std::size_t arenas,
          const DeviceOrder& devices)
      : intervals_(intervals), devices_(devices), sequential_(clusters.sequential), free_(arenas) {
    if (!sequential_) reach_.emplace(clusters);
    plan_.arena_bytes.assign(arenas, 0);
    join_of_ = clusters.join_of;
    first_.assign(phases, 0xFFFFFFFFU);
    last_.assign(phases, 0);
    clusters_of_.resize(sequential_ ? 0 : phases);
    std::uint32_t position = 0;
    for (std::uint32_t at = 0; at < clusters.calls.size(); ++at) {
      const std::uint32_t phase = clusters.calls[at].phase;
      add_position(phase, position++, clusters.cluster_of[at]);
      for (const std::uint32_t put : devices.put_by(phase)) {
        add_position(put, position++, clusters.cluster_of[at]);
        has_devices_ = true;
      }
    }
  }

  MemoryPlan run() {
    struct Event {
      std::uint32_t at;
      std::uint32_t interval;
    };
    std::vector<Event> starts, ends;
    for (std::uint32_t i = 0; i < intervals_.size(); ++i) {
      starts.push_back({first_[intervals_[i].writer], i});
      ends.push_back({end_of(intervals_[i]), i});
      ends_.push_back(ends.back().at);
    }
    std::ranges::stable_sort(starts, {}, &Event::at);
    std::ranges::stable_sort(ends, {}, &Event::at);
    taken_over_.assign(intervals_.size(), false);
    for (std::uint32_t i = 0; i < intervals_.size(); ++i) first_of_.push_back(i);
    std::size_t next_end = 0;
    std::int64_t live = 0;
    for (const Event& start : starts) {
      for (; next_end < ends.size() && ends[next_end].at < start.at; ++next_end) {
        if (taken_over_[ends[next_end].interval]) continue;  // another interval has taken its bytes over
        live -= rounded(intervals_[ends[next_end].interval]);
        release(ends[next_end].interval);
      }
      Interval& interval = intervals_[start.interval];
      if (take_over(interval)) {
        first_of_[start.interval] = first_of_[static_cast<std::size_t>(interval.in_place_of)];
        continue;
      }
      live += rounded(interval);
      plan_.live_set_bytes = std::max(plan_.live_set_bytes, live);
      interval.offset = allocate(interval);
    }
    for (const std::int64_t bytes : plan_.arena_bytes) plan_.planned_bytes += bytes;
    if (sequential_ && !has_devices_ && plan_.planned_bytes > plan_.live_set_bytes &&
        intervals_.size() <= kMaxBySize)
      place_by_size();
    return std::move(plan_);
  }

 private:
  struct Users {
    std::vector<std::uint32_t> clusters;   // that must have ended; empty in sequential plans
    std::vector<std::uint32_t> on_device;  // phases whose calls must be over
    std::size_t size() const { return clusters.size() + on_device.size(); }
    friend bool operator==(const Users&, const Users&) = default;
  };
  struct Block {
    std::int64_t bytes = 0;
    Users users;
  };
  struct FreeList {
    std::map<std::int64_t, Block> by_offset;
    std::set<std::pair<std::int64_t, std::int64_t>> by_size;  // bytes, offset
  };

  void add_position(std::uint32_t phase, std::uint32_t position, std::uint32_t cluster) {
    first_[phase] = std::min(first_[phase], position);
    last_[phase] = position;
    if (sequential_) return;
    auto& list = clusters_of_[phase];
    if (list.empty() || list.back() != cluster) list.push_back(cluster);
  }

  // Large blocks of equal size would start at addresses that map to the same cache sets. They get a few extra
  // lines, so that streams over several blocks do not evict each other.
  static std::int64_t rounded(const Interval& interval) {
    constexpr auto kLine = static_cast<std::int64_t>(kAlignment);
    const std::int64_t lines = std::max<std::int64_t>((interval.bytes + kLine - 1) / kLine, 1);
    const std::int64_t more = interval.bytes >= (64 << 10) ? 17 : interval.bytes >= (16 << 10) ? 5 : 0;
    return (lines + more) * kLine;
  }

  std::uint32_t end_of(const Interval& interval) const {
    std::uint32_t end = last_[interval.writer];
    for (const std::uint32_t reader : interval.readers) end = std::max(end, last_[reader]);
    return end;
  }

  // A second layout: the largest first, each at the lowest offset that is free while it is needed. It is
  // often closer to the live set than first come, first served, which leaves gaps. Looks at all pairs. Keeps
  // the better layout.
  void place_by_size() {
    struct Placed {
      std::uint32_t interval, begin, end;
      std::int64_t bytes, offset = 0;
    };
    std::vector<Placed> blocks;
    std::vector<std::uint32_t> block_of(intervals_.size());
    for (std::uint32_t i = 0; i < intervals_.size(); ++i) {
      if (first_of_[i] != i) continue;
      block_of[i] = static_cast<std::uint32_t>(blocks.size());
      blocks.push_back({i, first_[intervals_[i].writer], ends_[i], rounded(intervals_[i])});
    }
    for (std::uint32_t i = 0; i < intervals_.size(); ++i) {  // a block lives until its last interval ends
      Placed& block = blocks[block_of[first_of_[i]]];
      block.end = std::max(block.end, ends_[i]);
    }
    std::vector<std::uint32_t> order(blocks.size());
    for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(
        order, [&](std::uint32_t a, std::uint32_t b) { return blocks[a].bytes > blocks[b].bytes; });
    std::vector<std::int64_t> arena_bytes(plan_.arena_bytes.size(), 0);
    std::vector<const Placed*> placed, around;
    for (const std::uint32_t i : order) {
      Placed& block = blocks[i];
      const std::uint32_t arena = intervals_[block.interval].arena;
      around.clear();
      for (const Placed* other : placed) {
        const bool meets = other->begin <= block.end && block.begin <= other->end;
        if (meets && intervals_[other->interval].arena == arena) around.push_back(other);
      }
      std::ranges::sort(around, {}, &Placed::offset);
      for (const Placed* other : around) {
        if (block.offset + block.bytes <= other->offset) break;
        block.offset = std::max(block.offset, other->offset + other->bytes);
      }
      arena_bytes[arena] = std::max(arena_bytes[arena], block.offset + block.bytes);
      placed.push_back(&block);
    }
    std::int64_t total = 0;
    for (const std::int64_t bytes : arena_bytes) total += bytes;
    if (total >= plan_.planned_bytes) return;
    plan_.planned_bytes = total;
    plan_.arena_bytes = std::move(arena_bytes);
    for (std::uint32_t i = 0; i < intervals_.size(); ++i)
      intervals_[i].offset = blocks[block_of[first_of_[i]]].offset;
  }

  Users users_of(const Interval& interval) const {
    Users users;
    if (sequential_ && !has_devices_) return users;
    const auto add = [&](std::uint32_t phase) {
      if (devices_.is_on_device(phase)) {
        users.on_device.push_back(phase);
      } else if (sequential_) {  // the order of the calls says it
      } else if (join_of_[phase] != Clusters::kNoJoin) {
        users.clusters.push_back(join_of_[phase]);  // the join ends after all calls of the phase
      } else {
        users.clusters.insert(users.clusters.end(), clusters_of_[phase].begin(), clusters_of_[phase].end());
      }
    };
    for (const std::uint32_t reader : interval.readers) add(reader);
    if (interval.readers.empty()) add(interval.writer);
    for (std::vector<std::uint32_t>* list : {&users.clusters, &users.on_device}) {
      std::ranges::sort(*list);
      list->erase(std::unique(list->begin(), list->end()), list->end());
    }
    return users;
  }

  bool all_precede(const Users& users, std::uint32_t phase) const {
    if (!std::ranges::all_of(users.on_device,
                             [&](std::uint32_t user) { return devices_.precedes(user, phase); }))
      return false;
    if (sequential_) return true;
    if (users.clusters.size() * clusters_of_[phase].size() > kMaxPairs) return false;
    return std::ranges::all_of(clusters_of_[phase], [&](std::uint32_t cluster) {
      return std::ranges::all_of(users.clusters,
                                 [&](std::uint32_t user) { return reach_->precedes(user, cluster); });
    });
  }

  bool take_over(Interval& interval) {
    if (interval.in_place_of < 0) return false;
    const auto from = static_cast<std::size_t>(interval.in_place_of);
    const Interval& old = intervals_[from];
    const bool fits = !taken_over_[from] && old.offset >= 0 && rounded(old) == rounded(interval) &&
                      old.arena == interval.arena && ends_[from] == last_[interval.writer];
    if (!fits) return false;
    if (!sequential_ || has_devices_) {
      Users others;  // its readers besides the one that takes over
      Interval rest = old;
      rest.readers.clear();
      for (const std::uint32_t reader : old.readers) {
        if (reader != interval.writer) rest.readers.push_back(reader);
      }
      // The writer of the old value has ended: the phase that takes over reads that value.
      if (!rest.readers.empty()) others = users_of(rest);
      if (!all_precede(others, interval.writer)) return false;
    }
    // Inside one cluster the order of the calls decides: no other phase may read the old value once the new
    // one is begun.
    for (const std::uint32_t reader : old.readers) {
      if (reader != interval.writer && last_[reader] > first_[interval.writer]) return false;
    }
    taken_over_[from] = true;
    interval.offset = old.offset;
    return true;
  }

  std::int64_t allocate(const Interval& interval) {
    const std::int64_t bytes = rounded(interval);
    FreeList& list = free_[interval.arena];
    std::size_t looked_at = 0;
    for (auto candidate = list.by_size.lower_bound({bytes, -1});
         candidate != list.by_size.end() && looked_at < kCandidates; ++candidate, ++looked_at) {
      const auto block = list.by_offset.find(candidate->second);
      if (!all_precede(block->second.users, interval.writer)) continue;
      const std::int64_t offset = block->first;
      Block rest{block->second.bytes - bytes, block->second.users};
      list.by_size.erase(candidate);
      list.by_offset.erase(block);
      if (rest.bytes > 0) {
        list.by_size.emplace(rest.bytes, offset + bytes);
        list.by_offset.emplace(offset + bytes, std::move(rest));
      }
      return offset;
    }
    std::int64_t& end = plan_.arena_bytes[interval.arena];
    // A free block at the very end can grow. (A free block that is large enough, if there is one, was too far
    // back among the candidates.)
    if (!list.by_offset.empty()) {
      const auto last = std::prev(list.by_offset.end());
      if (last->second.bytes < bytes && last->first + last->second.bytes == end &&
          all_precede(last->second.users, interval.writer)) {
        const std::int64_t offset = last->first;
        list.by_size.erase({last->second.bytes, offset});
        list.by_offset.erase(last);
        end = offset + bytes;
        return offset;
      }
    }
    const std::int64_t offset = end;
    end += bytes;
    return offset;
  }

  void release(std::uint32_t index) {
    const Interval& interval = intervals_[index];
    Block block{rounded(interval), users_of(interval)};
    if (block.users.size() > kMaxUsers) return;
    FreeList& list = free_[interval.arena];
    std::int64_t offset = interval.offset;
    // Merges with neighbours that wait for the same clusters.
    const auto after = list.by_offset.lower_bound(offset);
    if (after != list.by_offset.end() && after->first == offset + block.bytes &&
        after->second.users == block.users) {
      list.by_size.erase({after->second.bytes, after->first});
      block.bytes += after->second.bytes;
      list.by_offset.erase(after);
    }
    const auto next = list.by_offset.lower_bound(offset);
    if (next != list.by_offset.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second.bytes == offset && before->second.users == block.users) {
        offset = before->first;
        list.by_size.erase({before->second.bytes, before->first});
        block.bytes += before->second.bytes;
        list.by_offset.erase(before);
      }
    }
    list.by_size.emplace(block.bytes, offset);
    list.by_offset.emplace(offset, std::move(block));
  }

  std::span<Interval> intervals_;
  const DeviceOrder& devices_;
  bool sequential_;
  bool has_devices_ = false;
  std::optional<Reachability> reach_;
  std::vector<FreeList> free_;
  std::vector<std::uint32_t> first_, last_;  // by phase: its calls, in the order of all of them
  std::vector<SmallVector<std::uint32_t, 2>> clusters_of_;
  std::vector<std::uint32_t> join_of_;  // by phase
  std::vector<std::uint32_t> ends_;     // by interval: the last call that touches it
  std::vector<bool> taken_over_;
  std::vector<std::uint32_t> first_of_;  // by interval: the first one in its chain of take-overs
  MemoryPlan plan_;
};

}  // namespace

MemoryPlan plan_memory(std::span<Interval> intervals, std::size_t phases, const Clusters& clusters,
                       std::size_t arenas, const DeviceOrder& devices) {
  return Planner(intervals, phases, clusters, arenas, devices).run();
}

}  // namespace lockstep::internal
