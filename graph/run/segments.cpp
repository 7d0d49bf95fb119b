// graph/run/segments.cpp - which calls of devices are put on streams together, and what orders them there.
#include "lockstep/graph/run/internal/segments.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace lockstep::internal {

namespace {

constexpr double kPutSeconds = 100e-9;   // of the caller's time, for one call
constexpr double kAwaitSeconds = 10e-6;  // only decides what is urgent

// Is there a node in its regions that may refuse what it is given?
bool may_refuse_inside(const Node& node) {
  for (const Graph& region : node.regions()) {
    for (const Node& inner : region.nodes()) {
      const auto is_refused = [&](ValueId value) {
        return inner.op().traits.refuses(region.spec(value).dtype);
      };
      if (std::ranges::any_of(inner.inputs(), is_refused) || may_refuse_inside(inner)) return true;
    }
  }
  return false;
}

class SegmentMaker {
 public:
  SegmentMaker(std::span<const Phase> phases, Plan& plan, DeviceOrder& order)
      : phases_(phases), plan_(plan), order_(order), streams_(plan.streams.size()) {}

  HostPhases run() {
    find_refusals();
    plan_.gate_on_streams = !commits_on_host();
    plan_.runs_ahead = plan_.gate_on_streams && !uses_host_memory();
    number_phases();
    find_awaited();
    order_ = DeviceOrder(phases_.size(), streams_);
    turns_.assign(streams_, 0);
    last_on_.assign(streams_, Known(streams_, 0));
    last_phase_on_.assign(streams_, kNone);
    last_call_.assign(phases_.size(), kNone);
    host_of_.assign(phases_.size(), kNone);
    await_of_.assign(phases_.size(), kNone);
    joins_ = can_join();
    add_stage(false);
    // Everything so far is over when the first call after the gate starts.
    at_gate_ = turns_;
    last_at_gate_ = last_phase_on_;
    add_stage(true);
    return std::move(result_);
  }

 private:
  using Known = std::vector<std::uint32_t>;  // by stream: the turn that is over
  static constexpr std::uint32_t kNone = 0xFFFFFFFFU;

  template <class F>
  bool any_phase(F&& is) const {
    for (std::uint32_t i = 0; i < phases_.size(); ++i) {
      if (is(i)) return true;
    }
    return false;
  }
  bool is_on_device(std::uint32_t phase) const { return plan_.phases[phase].stream >= 0; }
  // Within one stage: the gate is between them otherwise.
  bool same_stage(std::uint32_t a, std::uint32_t b) const { return phases_[a].commit == phases_[b].commit; }

  std::span<const PlannedArg> args_of(const PlannedPhase& phase) const {
    return std::span(plan_.args).subspan(phase.first_arg, phase.inputs + phase.outputs);
  }

  void find_refusals() {
    plan_.refuses = any_phase([this](std::uint32_t i) {
      const PlannedPhase& phase = plan_.phases[i];
      if (!is_on_device(i)) return false;
      if (!phase.source->regions().empty()) return may_refuse_inside(*phase.source);
      return std::ranges::any_of(args_of(phase), [&](const PlannedArg& arg) {
        return phase.source->op().traits.refuses(arg.spec->dtype);
      });
    });
  }

  bool commits_on_host() const {
    return any_phase([this](std::uint32_t i) { return phases_[i].commit && !is_on_device(i); });
  }
  // Does a device use memory of the host that is not the plan's own? (Feeds are staged.)
  bool uses_host_memory() const {
    const auto is_on_host = [this](const PlannedArg& arg) {
      const std::uint32_t index = arg.location.index;
      switch (arg.location.kind) {
        case Location::Kind::kVariable: return plan_.variables[index].memory == kHostMemory;
        case Location::Kind::kResult: return plan_.results[index].memory == kHostMemory;
        default: return false;
      }
    };
    return any_phase([&](std::uint32_t i) {
      return is_on_device(i) && std::ranges::any_of(args_of(plan_.phases[i]), is_on_host);
    });
  }

  void number_phases() {
    number_.assign(phases_.size(), 0);
    for (std::uint32_t i = 0; i < phases_.size(); ++i) {
      for (const std::uint32_t before : phases_[i].predecessors) {
        if (!same_stage(before, i)) continue;
        const bool comes_back = is_on_device(before) && !is_on_device(i);
        number_[i] = std::max(number_[i], number_[before] + (comes_back ? 1 : 0));
      }
      last_number_ = std::max(last_number_, number_[i]);
    }
  }

  // Which calls of devices have to be over for the host.
  void find_awaited() {
    awaited_.assign(phases_.size(), false);
    goes_on_.assign(phases_.size(), false);
    implied_for_.assign(phases_.size(), kNone);
    for (std::uint32_t i = 0; i < phases_.size(); ++i) {
      if (!is_on_device(i)) find_implied(i);
      for (const std::uint32_t before : phases_[i].predecessors) {
        if (!is_on_device(before) || !same_stage(before, i)) continue;
        if (is_on_device(i)) {
          goes_on_[before] = true;
        } else if (implied_for_[before] != i) {
          awaited_[before] = true;
        }
      }
    }
  }

  // What the host phase need not wait for, since it waits for a call of a device that comes after that: such as the call that makes
  // a value, beside the copy of the value to the host.
  void find_implied(std::uint32_t phase) {
    for (const std::uint32_t last : phases_[phase].predecessors) {
      if (!is_on_device(last) || !same_stage(last, phase)) continue;
      for (const std::uint32_t before : phases_[last].predecessors) implied_for_[before] = phase;
    }
  }

  // Has the host nothing to do between the last segment in front of the gate and the commit? What writes results then comes after
  // the commit, and so must not read what that changes.
  bool can_join() const {
    if (!plan_.runs_ahead || !any_phase([this](std::uint32_t i) { return phases_[i].commit; })) return false;
    auto [host, device] = members_of(false);
    if (device[last_number_].empty()) return false;
    if (move_needed_first(host[last_number_], device[last_number_]) < host[last_number_].size()) return false;
    const auto is_changed = [this](const PlannedArg& arg) {
      return arg.location.kind == Location::Kind::kVariable && plan_.variables[arg.location.index].written;
    };
    return std::ranges::none_of(device[last_number_], [&](std::uint32_t member) {
      const PlannedPhase& phase = plan_.phases[member];
      return awaited_[member] || (part_of(member) == Part::kBack &&
                                  std::ranges::any_of(args_of(phase).first(phase.inputs), is_changed));
    });
  }

  struct Members {
    std::vector<std::vector<std::uint32_t>> host, device;  // by number
  };
  Members members_of(bool commit) const {
    Members members;
    members.host.resize(last_number_ + 1);
    members.device.resize(last_number_ + 1);
    for (std::uint32_t i = 0; i < phases_.size(); ++i) {
      if (phases_[i].commit == commit)
        (is_on_device(i) ? members.device : members.host)[number_[i]].push_back(i);
    }
    return members;
  }

  void add_stage(bool commit) {
    auto [host, device] = members_of(commit);
    std::uint32_t segment_before = kNone;
    for (std::uint32_t number = 0; number <= last_number_; ++number) {
      const std::size_t needed = move_needed_first(host[number], device[number]);
      for (std::size_t i = 0; i < needed; ++i) add_host_phase(host[number][i]);
      if (!device[number].empty()) {
        const bool joins = joins_ && !commit && number == last_number_;
        segment_before = add_segment(device[number], commit, joins, segment_before);
      }
      for (std::size_t i = needed; i < host[number].size(); ++i) add_host_phase(host[number][i]);
    }
  }

  // What the devices' calls come after goes first, and is counted: the devices work while the host does the rest.
  std::size_t move_needed_first(std::vector<std::uint32_t>& host,
                                std::span<const std::uint32_t> device) const {
    if (device.empty() || host.empty()) return 0;
    std::vector<bool> needed(phases_.size(), false);
    const auto need = [&](std::uint32_t phase) {
      for (const std::uint32_t before : phases_[phase].predecessors) needed[before] = true;
    };
    for (const std::uint32_t phase : device) need(phase);
    for (std::size_t i = host.size(); i-- > 0;) {
      if (needed[host[i]]) need(host[i]);
    }
    const auto rest =
        std::stable_partition(host.begin(), host.end(), [&](std::uint32_t phase) { return needed[phase]; });
    return static_cast<std::size_t>(rest - host.begin());
  }

  // --- phases of the host

  void add_host_phase(std::uint32_t phase) {
    Phase seen = phases_[phase];
    seen.predecessors.clear();
    find_implied(phase);
    Known known = phases_[phase].commit ? at_gate_ : Known(streams_, 0);
    for (const std::uint32_t before : phases_[phase].predecessors) {
      if (!same_stage(before, phase)) {
        if (!is_on_device(before)) seen.predecessors.push_back(host_of_[before]);
        continue;
      }
      if (is_on_device(before) && implied_for_[before] == phase) continue;
      const std::uint32_t waits_for = is_on_device(before) ? await_of_[before] : host_of_[before];
      seen.predecessors.push_back(waits_for);
      learn(known, before);
    }
    order_.set_known(phase, known);
    host_of_[phase] = add(std::move(seen), phase);
  }

  std::uint32_t add(Phase seen, std::uint32_t origin) {
    std::vector<std::uint32_t> after(seen.predecessors.begin(), seen.predecessors.end());
    std::ranges::sort(after);
    after.erase(std::unique(after.begin(), after.end()), after.end());
    seen.predecessors = SmallVector<std::uint32_t, 2>(std::span<const std::uint32_t>(after));
    result_.phases.push_back(std::move(seen));
    result_.origin.push_back(origin);
    return static_cast<std::uint32_t>(result_.phases.size() - 1);
  }

  // What is over when a phase has ended, besides what was when it started: itself.
  void learn(Known& known, std::uint32_t before) const {
    merge(known, order_.known(before));
    const DeviceOrder::Place& place = order_.place(before);
    if (place.stream < 0) return;
    std::uint32_t& turn = known[static_cast<std::size_t>(place.stream)];
    turn = std::max(turn, place.turn);
  }
  static void merge(Known& into, std::span<const std::uint32_t> other) {
    for (std::size_t s = 0; s < into.size(); ++s) into[s] = std::max(into[s], other[s]);
  }

  // --- segments

  enum class Part : std::uint8_t { kFront, kBody, kBack };

  Part part_of(std::uint32_t phase) const {
    const PlannedPhase& planned = plan_.phases[phase];
    const auto args = args_of(planned);
    const auto is_feed = [](const PlannedArg& arg) { return arg.location.kind == Location::Kind::kFeed; };
    const auto is_result = [](const PlannedArg& arg) { return arg.location.kind == Location::Kind::kResult; };
    if (std::ranges::any_of(args.first(planned.inputs), is_feed)) return Part::kFront;
    const bool for_host = awaited_[phase] && !goes_on_[phase];
    return for_host || std::ranges::any_of(args.subspan(planned.inputs), is_result) ? Part::kBack
                                                                                    : Part::kBody;
  }

  Decision can_record(std::span<const std::uint32_t> body) const {
    if (body.empty()) return Decision::no("nothing in it is the same in each run");
    for (const std::uint32_t phase : body) {
      if (awaited_[phase])
        return Decision::no(
            str("the host awaits '", plan_.phases[phase].source->name(), "' in the middle of it"));
    }
    return Decision::yes();
  }

  std::uint32_t next_call() const { return static_cast<std::uint32_t>(plan_.device_calls.size()); }

  std::uint32_t add_segment(std::span<const std::uint32_t> members, bool commit, bool joins,
                            std::uint32_t before) {
    const auto own = static_cast<std::uint32_t>(plan_.phases.size());
    PlannedPhase put;
    put.segment = static_cast<std::int32_t>(plan_.segments.size());
    put.source = plan_.phases[members[0]].source;
    put.node = plan_.phases[members[0]].node;
    plan_.phases.push_back(put);
    plan_.defers = true;
    Segment& segment = plan_.segments.emplace_back();
    segment.begin = static_cast<std::uint32_t>(plan_.device_calls.size());
    segment.commit = commit;
    segment.joins = joins;

    Phase seen;
    seen.commit = commit;
    Known at_put = commit && !plan_.gate_on_streams ? at_gate_ : Known(streams_, 0);
    if (before != kNone) seen.predecessors.push_back(before);
    for (const std::uint32_t member : members) {
      for (const std::uint32_t after : phases_[member].predecessors) {
        if (is_on_device(after)) continue;
        seen.predecessors.push_back(host_of_[after]);
        if (same_stage(after, member)) learn(at_put, after);
      }
    }
    std::vector<std::uint32_t> parts[3];
    for (const std::uint32_t member : members)
      parts[static_cast<std::size_t>(part_of(member))].push_back(member);
    for (const std::uint32_t member : parts[0]) put_calls(member, own, at_put);
    segment.body_begin = next_call();
    for (const std::uint32_t member : parts[1]) {
      put_calls(member, own, at_put);
      const auto stream = static_cast<std::uint32_t>(plan_.phases[member].stream);
      if (std::ranges::find(segment.streams, stream) == segment.streams.end())
        segment.streams.push_back(stream);
    }
    segment.body_end = next_call();
    if (joins) postponed_ = std::exchange(parts[2], {});
    if (commit) parts[2].insert(parts[2].end(), postponed_.begin(), postponed_.end());
    for (const std::uint32_t member : parts[2]) put_calls(member, own, at_put);
    segment.end = next_call();
    segment.records = can_record(parts[1]);
    seen.seconds = kPutSeconds * static_cast<double>(segment.end - segment.begin);
    plan_.seconds += seen.seconds;
    seen.urgent = true;
    seen.starts = std::ranges::any_of(members, [&](std::uint32_t member) { return awaited_[member]; });
    const std::uint32_t put_phase = add(std::move(seen), own);
    for (const std::uint32_t member : members) {
      if (awaited_[member]) add_await(member, own, put_phase);
    }
    return put_phase;
  }

  void put_calls(std::uint32_t member, std::uint32_t put_by, const Known& at_put) {
    const PlannedPhase& phase = plan_.phases[member];
    const auto stream = static_cast<std::size_t>(phase.stream);
    Known known = last_on_[stream];
    merge(known, at_put);
    std::vector<std::uint32_t> waits;
    // The latest first: it may imply the others.
    std::vector<std::uint32_t> before(phases_[member].predecessors.begin(),
                                      phases_[member].predecessors.end());
    std::ranges::sort(before, std::greater<>());
    for (const std::uint32_t after : before) {
      if (!is_on_device(after)) continue;
      const DeviceOrder::Place& place = order_.place(after);
      if (known[static_cast<std::size_t>(place.stream)] >= place.turn) continue;
      waits.push_back(event_after(after));
      learn(known, after);
    }
    if (phases_[member].commit && plan_.gate_on_streams) {
      for (std::size_t s = 0; s < streams_; ++s) {
        if (s == stream || known[s] >= at_gate_[s]) continue;
        waits.push_back(event_after(last_at_gate_[s]));
        learn(known, last_at_gate_[s]);
      }
    }
    order_.set_known(member, known);
    const std::uint32_t shards = phase.finish ? 1 : phases_[member].shards;
    for (std::uint32_t shard = 0; shard < shards; ++shard) {
      DeviceCall call;
      call.phase = member;
      call.shard = shard;
      call.first_wait = static_cast<std::uint32_t>(plan_.device_waits.size());
      if (shard == 0) plan_.device_waits.insert(plan_.device_waits.end(), waits.begin(), waits.end());
      call.end_wait = static_cast<std::uint32_t>(plan_.device_waits.size());
      plan_.device_calls.push_back(call);
    }
    turns_[stream] += shards;
    known[stream] = turns_[stream];
    last_on_[stream] = known;
    last_phase_on_[stream] = member;
    order_.put(member, {phase.stream, turns_[stream]}, put_by);
    last_call_[member] = static_cast<std::uint32_t>(plan_.device_calls.size() - 1);
  }

  // The event that is set after the calls of the phase.
  std::uint32_t event_after(std::uint32_t phase) {
    DeviceCall& call = plan_.device_calls[last_call_[phase]];
    if (call.event < 0) {
      call.event = static_cast<std::int32_t>(plan_.events.size());
      plan_.events.push_back({static_cast<std::uint32_t>(plan_.phases[phase].stream), body_of(phase)});
    }
    return static_cast<std::uint32_t>(call.event);
  }

  // The segment in whose body the phase is; -1: in none. Its calls are there.
  std::int32_t body_of(std::uint32_t phase) const {
    if (part_of(phase) != Part::kBody) return -1;
    const auto after = std::ranges::upper_bound(plan_.segments, last_call_[phase], {}, &Segment::begin);
    return static_cast<std::int32_t>(after - plan_.segments.begin()) - 1;
  }

  void add_await(std::uint32_t member, std::uint32_t put_by, std::uint32_t put_phase) {
    const auto own = static_cast<std::uint32_t>(plan_.phases.size());
    PlannedPhase await = plan_.phases[member];
    await.stream = -1;
    await.scratch = -1;
    await.inputs = await.outputs = 0;
    await.awaits = true;
    await.started_by = put_by;
    await.event = static_cast<std::int32_t>(event_after(member));
    plan_.phases.push_back(await);
    Phase seen;
    seen.predecessors.push_back(put_phase);
    seen.seconds = kAwaitSeconds;
    seen.commit = phases_[member].commit;
    seen.awaits = true;
    await_of_[member] = add(std::move(seen), own);
  }

  std::span<const Phase> phases_;
  Plan& plan_;
  DeviceOrder& order_;
  const std::size_t streams_;
  bool joins_ = false;                    // the last segment in front of the gate, with the commit
  std::vector<std::uint32_t> postponed_;  // phases of the back of that segment
  std::uint32_t last_number_ = 0;
  std::vector<std::uint32_t> number_;    // by phase: how often a path to it comes back to the host
  std::vector<bool> awaited_, goes_on_;  // by phase: does the host need it to be over; do other device calls?
  std::vector<std::uint32_t> implied_for_;  // by phase: a phase of the host that need not wait for it
  std::vector<std::uint32_t> turns_;        // by stream: calls so far
  std::vector<Known> last_on_;              // by stream: what is over when its last call is
  std::vector<std::uint32_t> last_phase_on_, last_at_gate_;  // by stream
  Known at_gate_;
  std::vector<std::uint32_t> host_of_, await_of_;  // by phase: in the result
  std::vector<std::uint32_t> last_call_;           // by phase: of the device calls
  HostPhases result_;
};

}  // namespace

HostPhases make_segments(std::span<const Phase> phases, Plan& plan, DeviceOrder& order) {
  return SegmentMaker(phases, plan, order).run();
}

}  // namespace lockstep::internal
