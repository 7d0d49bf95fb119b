// io/traces/trace.cpp - what ran when.
#include "lockstep/io/traces/trace.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <unordered_map>

#include "lockstep/core/error.h"
#include "lockstep/io/drawings/internal/communication.h"
#include "lockstep/io/traces/internal/event_ring.h"
#include "lockstep/io/traces/internal/tick_clock.h"

namespace lockstep {

namespace {

constexpr std::uint32_t kMaxDepth = 64;  // levels of calls nested on one thread; deeper calls are dropped

// Programs are numbered from 1; the lower half of the number's bits is enough to tell them apart.
using ProgramNumber = std::uint32_t;
ProgramNumber program_of(const RunEvent& run) { return static_cast<ProgramNumber>(run.program); }

// Bytes and a number of shards in one word; the most that fits in place of what is more.
class BytesAndShards {
 public:
  constexpr BytesAndShards() = default;
  constexpr BytesAndShards(std::int64_t bytes, std::int64_t shards)
      : word_(fit(bytes, 64 - kBits) << kBits | fit(shards, kBits)) {}
  constexpr std::int64_t bytes() const { return static_cast<std::int64_t>(word_ >> kBits); }
  constexpr std::int64_t shards() const {
    return static_cast<std::int64_t>(word_ & ((std::uint64_t{1} << kBits) - 1));
  }

 private:
  static constexpr unsigned kBits = 24;  // a node has fewer than 2^24 shards
  static constexpr std::uint64_t fit(std::int64_t number, unsigned bits) {
    return std::min(static_cast<std::uint64_t>(number), (std::uint64_t{1} << bits) - 1);
  }
  std::uint64_t word_ = 0;
};

// One cache line: a thread that records writes it whole and touches no other.
struct alignas(64) Entry {
  enum class Kind : std::uint8_t { kCall, kCopy, kRun, kWait };  // kCopy: a call on behalf of its node
  // Of a call: the address of its node, which identifies the node only as long as the program is known.
  const void* node = nullptr;
  std::uint64_t begin = 0, end = 0;  // ticks
  std::uint64_t run = 0;
  BytesAndShards read;     // and the shard; of a run: the step; of a wait: the variable's number
  BytesAndShards written;  // and the number of shards; of a run: the planned bytes
  float moved = 0, multiply_adds = 0;
  ProgramNumber program = 0;
  std::int16_t replica = -1;
  std::uint8_t depth = 0;
  Kind kind = Kind::kCall;
};
static_assert(sizeof(Entry) == 64);

// The nodes that are remembered of a program's graph.
struct ProgramNodes {
  ProgramNumber program = 0;
  std::vector<TracedNode> nodes;
  std::unordered_map<const void*, std::uint32_t> numbers;  // of nodes, by address
};

TracedWork work_of(const Node& node) {
  switch (internal::communication_of(node)) {
    case internal::Communication::kNone: return TracedWork::kCompute;
    case internal::Communication::kJoinsReplicas: return TracedWork::kCollective;
    case internal::Communication::kTransfers: return TracedWork::kCopy;
  }
  return TracedWork::kCompute;
}

void add_nodes(const Graph& graph, bool in_region, ProgramNodes& to) {
  std::vector<std::uint32_t> number(graph.id_bound());
  for (const Node& node : graph.nodes()) {
    number[node.id().index()] = static_cast<std::uint32_t>(to.nodes.size());
    to.numbers.emplace(&node, number[node.id().index()]);
    TracedNode& traced = to.nodes.emplace_back();
    traced.name = node.name();
    traced.op = node.op().name;
    traced.device = node.device();
    if (const SourceSite site = node.site(); site.known()) traced.site = str(site.file, ":", site.line);
    traced.work = work_of(node);
    if (!node.outputs().empty()) traced.dtype = node.outputs()[0].dtype;
    traced.passes_on = node.op().traits.alias || node.op().traits.alias_if_same;
    traced.updates_variable = node.op().traits.updates_variable || node.op().traits.merges_updates;
    traced.in_region = in_region;
  }
  for (const Node& node : graph.nodes()) {
    TracedNode& traced = to.nodes[number[node.id().index()]];
    for (const ValueId input : node.inputs()) traced.inputs.push_back(number[input.node.index()]);
    for (const NodeId before : node.controls()) traced.controls.push_back(number[before.index()]);
  }
  for (const ValueId result : graph.results()) to.nodes[number[result.node.index()]].is_result = true;
  for (const Node& node : graph.nodes()) {
    for (const Graph& region : node.regions()) add_nodes(region, true, to);
  }
}

}  // namespace

// Records the events of one thread.
class TraceRecorder::Track {
 public:
  Track(int worker, std::string name, std::size_t events)
      : worker_(worker), name_(std::move(name)), ring_(events) {}

  void begin(std::uint64_t ticks) {
    if (depth_ < kMaxDepth) open_[depth_] = ticks;
    ++depth_;
  }
  void begin_now() { begin(internal::read_ticks()); }
  void begin_with_last_end() { begin(last_end_); }
  // Adds the event that began last; `fill` says what it was.
  template <class Fill>
  void end(const Fill& fill) {
    last_end_ = internal::read_ticks();
    --depth_;
    if (depth_ >= kMaxDepth) {
      too_deep_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    Entry& event = ring_.next();
    event.begin = open_[depth_];
    event.end = last_end_;
    event.depth = static_cast<std::uint8_t>(depth_);
    fill(event);
    ring_.publish();
  }

  // Adds a call of a stream, whose times are in nanoseconds since the recorder was made.
  template <class Fill>
  void add(std::int64_t begin, std::int64_t end, const Fill& fill) {
    Entry& event = ring_.next();
    event.begin = static_cast<std::uint64_t>(begin);
    event.end = static_cast<std::uint64_t>(end);
    event.depth = 0;
    fill(event);
    ring_.publish();
  }

  int worker() const { return worker_; }
  const std::string& name() const { return name_; }
  std::uint64_t copy_to(std::vector<Entry>& events) const {
    return ring_.copy_to(events) + too_deep_.load(std::memory_order_relaxed);
  }

 private:
  int worker_;
  std::string name_;
  std::uint32_t depth_ = 0;
  std::uint64_t last_end_ = 0;
  std::array<std::uint64_t, kMaxDepth> open_{};
  std::atomic<std::uint64_t> too_deep_{0};
  internal::EventRing<Entry> ring_;
};

struct TraceRecorder::State {
  TraceRecorderOptions options;
  internal::TickClock clock;
  std::atomic<std::uint64_t> forgotten{0};  // programs, so far
  std::atomic<int> workers{0};              // of the largest scheduler seen
  std::atomic<std::uint64_t> lost{0};       // events there was no memory for
  std::mutex mutex;                         // guards all members below
  std::map<std::thread::id, std::unique_ptr<Track>> tracks;
  std::vector<const Track*> in_order;
  std::map<std::pair<std::string, StreamRole>, std::unique_ptr<Track>> streams;
  std::deque<ProgramNodes> programs;  // the most recent last
  std::vector<std::string> variables;
};

namespace {

std::uint64_t next_recorder() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

// Which track this thread used last, and of which recorder. Numbers of recorders are never used twice.
struct LastTrack {
  std::uint64_t recorder = 0;
  void* track = nullptr;
};
thread_local LastTrack last_track;

// Programs that a recorder is known to remember, so that this thread need not ask it.
struct KnownPrograms {
  std::uint64_t recorder = 0, forgotten = 0;  // the recorder, and its `forgotten` when this was filled
  std::array<ProgramNumber, 8> programs{};
  std::size_t next = 0;  // the entry to replace next

  bool contains(ProgramNumber program) const {
    return std::ranges::find(programs, program) != programs.end();
  }
  void add(ProgramNumber program) {
    programs[next] = program;
    next = (next + 1) % programs.size();
  }
};
thread_local KnownPrograms known_programs;

}  // namespace

TraceRecorder::TraceRecorder(TraceRecorderOptions options)
    : number_(next_recorder()), state_(std::make_unique<State>()) {
  if (options.events_per_thread == 0 || options.max_programs == 0) {
    throw InvalidArgument(str("TraceRecorder: expected at least one event a thread and one program, got ",
                              options.events_per_thread, " and ", options.max_programs));
  }
  state_->options = options;
}

TraceRecorder::~TraceRecorder() = default;

TraceRecorder::Track* TraceRecorder::track(int worker) noexcept {
  if (last_track.recorder == number_) return static_cast<Track*>(last_track.track);
  return find_track(worker);
}

template <class Fill>
void TraceRecorder::end(int worker, const Fill& fill) noexcept {
  if (Track* const here = track(worker)) {
    here->end(fill);
  } else {
    state_->lost.fetch_add(1, std::memory_order_relaxed);
  }
}

// Of the variable in State::variables, from 1 on; 0 if there is no memory for the name.
std::int64_t TraceRecorder::number_of(std::string_view variable) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    std::vector<std::string>& names = state_->variables;
    const std::int64_t number = std::ranges::find(names, variable) - names.begin();
    if (number == static_cast<std::int64_t>(names.size())) names.emplace_back(variable);
    return number + 1;
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

TraceRecorder::Track* TraceRecorder::find_track(int worker) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    std::unique_ptr<Track>& track = state_->tracks[std::this_thread::get_id()];
    if (track == nullptr) {
      const std::string base = worker >= 0 ? str("worker ", worker) : "caller";
      state_->in_order.reserve(state_->in_order.size() + 1);
      const auto alike = std::ranges::count(state_->in_order, worker, &Track::worker);
      track = std::make_unique<Track>(worker, alike == 0 ? base : str(base, " (", alike + 1, ")"),
                                      state_->options.events_per_thread);
      state_->in_order.push_back(track.get());
    }
    last_track = {number_, track.get()};
    return track.get();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void TraceRecorder::remember(const RunEvent& event) noexcept {
  State& state = *state_;
  try {
    const std::lock_guard<std::mutex> lock(state.mutex);
    const auto known = std::ranges::find(state.programs, program_of(event), &ProgramNodes::program);
    if (known == state.programs.end()) {
      ProgramNodes fresh;
      fresh.program = program_of(event);
      add_nodes(event.graph, false, fresh);
      state.programs.push_back(std::move(fresh));
      if (state.programs.size() > state.options.max_programs) {
        state.programs.pop_front();
        state.forgotten.fetch_add(1, std::memory_order_relaxed);
      }
    } else if (known + 1 != state.programs.end()) {
      std::rotate(known, known + 1, state.programs.end());
    }
    const std::uint64_t forgotten = state.forgotten.load(std::memory_order_relaxed);
    if (known_programs.recorder != number_ || known_programs.forgotten != forgotten)
      known_programs = {number_, forgotten};
    known_programs.add(program_of(event));
  } catch (const std::bad_alloc&) {
    // Its events are counted as dropped when the trace is made.
  }
}

void TraceRecorder::on_run_begin(const RunEvent& event) noexcept {
  const KnownPrograms& known = known_programs;
  const bool is_known = known.recorder == number_ &&
                        known.forgotten == state_->forgotten.load(std::memory_order_relaxed) &&
                        known.contains(program_of(event));
  if (!is_known) remember(event);
  for (int most = state_->workers.load(std::memory_order_relaxed); most < event.workers;) {
    if (state_->workers.compare_exchange_weak(most, event.workers, std::memory_order_relaxed)) break;
  }
  if (Track* const here = track(event.worker)) here->begin_now();
}

void TraceRecorder::on_run_end(const RunEvent& event) noexcept {
  end(event.worker, [&](Entry& run) {
    run.kind = Entry::Kind::kRun;
    run.run = event.run;
    run.program = program_of(event);
    run.read = {static_cast<std::int64_t>(event.step), 0};
    run.written = {event.planned_bytes, 0};
  });
}

void TraceRecorder::on_wait_begin(const WaitEvent& event) noexcept {
  if (Track* const here = track(event.run.worker)) here->begin_now();
}

void TraceRecorder::on_wait_end(const WaitEvent& event) noexcept {
  const std::int64_t variable = number_of(event.variable);
  end(event.run.worker, [&](Entry& wait) {
    wait.kind = Entry::Kind::kWait;
    wait.run = event.run.run;
    wait.program = program_of(event.run);
    wait.read = {variable, 0};
  });
}

void TraceRecorder::on_node_begin(const NodeEvent& event) noexcept {
  Track* const here = track(event.worker);
  if (here == nullptr) return;
  if (event.follows) {
    here->begin_with_last_end();
  } else {
    here->begin_now();
  }
}

namespace {

// What a call of a worker and one of a stream have in common.
template <class Event>
void fill_call(Entry& call, const Event& event) {
  call.kind = event.copies ? Entry::Kind::kCopy : Entry::Kind::kCall;
  call.node = &event.node;
  call.run = event.run.run;
  call.program = program_of(event.run);
  call.read = {event.bytes_read, event.shard};
  call.written = {event.bytes_written, event.shards};
  call.moved = static_cast<float>(event.bytes_moved);
  call.multiply_adds = static_cast<float>(event.multiply_adds);
  call.replica = static_cast<std::int16_t>(event.replica);
}

}  // namespace

void TraceRecorder::on_node_end(const NodeEvent& event) noexcept {
  end(event.worker, [&](Entry& call) { fill_call(call, event); });
}

// Many threads may tell of one stream; it is after the fact, so that a lock does no harm.
void TraceRecorder::on_span(const SpanEvent& event) noexcept {
  const auto since = [this](SteadyTime time) {
    return std::chrono::nanoseconds(time - state_->clock.first_time()).count();
  };
  try {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    const std::string device = event.device.to_string();
    std::unique_ptr<Track>& track = state_->streams[{device, event.stream}];
    if (track == nullptr)
      track = std::make_unique<Track>(-1, str(device, " ", to_string(event.stream)),
                                      state_->options.events_per_thread);
    track->add(since(event.begin), since(event.end), [&](Entry& call) { fill_call(call, event); });
  } catch (const std::bad_alloc&) {
    state_->lost.fetch_add(1, std::memory_order_relaxed);
  }
}

namespace {

// Makes a Trace of the events of all tracks.
class TraceMaker {
 public:
  TraceMaker(const internal::TickClock& clock, const std::deque<ProgramNodes>& programs,
             const std::vector<std::string>& variables)
      : first_(clock.first()),
        scale_(clock.nanoseconds_per_tick()),
        programs_(programs),
        variables_(variables) {}

  // Adds a track with the events that it kept; `dropped` others are lost.
  // Of a stream of a device the events are in nanoseconds.
  void add_track(std::string name, int worker, const std::vector<Entry>& events, std::uint64_t dropped,
                 const std::string& device = {}, StreamRole stream = StreamRole::kCompute) {
    const auto track = static_cast<std::uint32_t>(trace_.tracks.size());
    trace_.tracks.push_back({std::move(name), worker, dropped, device, stream});
    const auto time = [&](std::uint64_t stamp) {
      return device.empty() ? nanoseconds(stamp) : static_cast<std::int64_t>(stamp);
    };
    if (dropped > 0 && !events.empty()) horizon_ = std::max(horizon_, time(events.front().end));
    for (const Entry& event : events) {
      const std::int64_t begin = time(event.begin), end = time(event.end);
      switch (event.kind) {
        case Entry::Kind::kRun:
          trace_.runs.push_back({event.run, event.program, track, event.depth, begin, end,
                                 static_cast<std::uint64_t>(event.read.bytes()), event.written.bytes()});
          break;
        case Entry::Kind::kWait: {
          const auto variable = static_cast<std::size_t>(event.read.bytes());
          trace_.waits.push_back({event.run, track, event.depth, begin, end,
                                  variable == 0 ? std::string() : variables_[variable - 1]});
          break;
        }
        case Entry::Kind::kCall:
        case Entry::Kind::kCopy:
          if (const std::optional<std::uint32_t> node = number_of(event)) {
            trace_.calls.push_back({*node, track, event.depth, begin, end, event.run, event.read.shards(),
                                    event.written.shards(), event.replica, event.read.bytes(),
                                    event.written.bytes(), event.moved, event.multiply_adds,
                                    event.kind == Entry::Kind::kCopy});
          } else {
            ++trace_.tracks.back().dropped;
          }
      }
    }
    trace_.dropped += trace_.tracks.back().dropped;
  }

  Trace finish(std::uint64_t lost) {
    trace_.dropped += lost;
    for (TracedRun& run : trace_.runs)
      run.complete = run.begin >= horizon_ && lost == 0 && is_known(static_cast<ProgramNumber>(run.program));
    std::ranges::sort(trace_.runs, {}, &TracedRun::begin);
    return std::move(trace_);
  }

 private:
  std::int64_t nanoseconds(std::uint64_t ticks) const {
    const auto since = static_cast<std::int64_t>(ticks - first_);
    return static_cast<std::int64_t>(static_cast<double>(since) * scale_);
  }

  bool is_known(ProgramNumber program) const {
    return std::ranges::find(programs_, program, &ProgramNodes::program) != programs_.end();
  }

  // The index of the event's node in the trace. The first call of a program adds the program's nodes to the
  // trace.
  std::optional<std::uint32_t> number_of(const Entry& event) {
    if (last_ == nullptr || last_->program != event.program) {
      const auto found = std::ranges::find(programs_, event.program, &ProgramNodes::program);
      if (found == programs_.end()) return std::nullopt;
      last_ = &*found;
      const auto [place, fresh] =
          first_node_.try_emplace(event.program, static_cast<std::uint32_t>(trace_.nodes.size()));
      last_first_ = place->second;
      if (fresh) add_nodes_of(*last_);
    }
    const auto node = last_->numbers.find(event.node);
    if (node == last_->numbers.end()) return std::nullopt;
    return last_first_ + node->second;
  }

  void add_nodes_of(const ProgramNodes& program) {
    const auto first = static_cast<std::uint32_t>(trace_.nodes.size());
    for (const TracedNode& node : program.nodes) {
      TracedNode& added = trace_.nodes.emplace_back(node);
      for (std::uint32_t& input : added.inputs) input += first;
      for (std::uint32_t& control : added.controls) control += first;
    }
  }

  std::uint64_t first_;
  double scale_;
  const std::deque<ProgramNodes>& programs_;
  const std::vector<std::string>& variables_;
  std::unordered_map<ProgramNumber, std::uint32_t> first_node_;  // in the trace, by program
  const ProgramNodes* last_ = nullptr;
  std::uint32_t last_first_ = 0;
  std::int64_t horizon_ = 0;  // runs that began earlier may lack calls
  Trace trace_;
};

}  // namespace

std::string_view device_of_call(const Trace& trace, const TracedCall& call) {
  const TraceTrack& track = trace.tracks[call.track];
  if (!track.device.empty()) return track.device;
  const std::string& wanted = trace.nodes[call.node].device;
  return wanted.empty() ? std::string_view("cpu:0") : wanted;
}

Trace TraceRecorder::trace() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  TraceMaker maker(state_->clock, state_->programs, state_->variables);
  std::vector<Entry> events;
  for (const Track* track : state_->in_order) {
    events.clear();
    const std::uint64_t dropped = track->copy_to(events);
    maker.add_track(track->name(), track->worker(), events, dropped);
  }
  // Workers that had nothing to do have a track, too.
  for (int worker = 0; worker < state_->workers.load(std::memory_order_relaxed); ++worker) {
    if (std::ranges::find(state_->in_order, worker, &Track::worker) == state_->in_order.end())
      maker.add_track(str("worker ", worker), worker, {}, 0);
  }
  for (const auto& [stream, track] : state_->streams) {
    events.clear();
    const std::uint64_t dropped = track->copy_to(events);
    maker.add_track(track->name(), -1, events, dropped, stream.first, stream.second);
  }
  Trace trace = maker.finish(state_->lost.load(std::memory_order_relaxed));
  trace.origin = std::chrono::nanoseconds(state_->clock.first_time().time_since_epoch()).count();
  return trace;
}

}  // namespace lockstep
