// graph/run/stream_run.cpp - the part of a run that is on streams of devices.
#include "lockstep/graph/run/internal/stream_run.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <utility>

namespace lockstep::internal {

namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);
constexpr std::uint64_t kNothingRefused = std::numeric_limits<std::uint64_t>::max();

}  // namespace

// What a run that failed has left on a stream.
class StreamRun::Flight final : public Completion {
 public:
  void leave(Event& end, Flights& flights) noexcept {
    flights_ = &flights;
    flights.add();
    if (!internal::insist([&] { end.when_done(*this); }))
      flights.drop();  // the device is lost: nothing runs there any more
  }

 private:
  void end(std::exception_ptr /*why*/) noexcept override { flights_->drop(); }
  Flights* flights_ = nullptr;
};

StreamRun::StreamRun(const Plan& plan, const Runtime& runtime, std::span<TensorArg> args)
    : plan_(plan), runtime_(runtime), is_staged_(args.size(), false) {
  std::vector<WorkInFlight::End> ends;
  for (std::uint32_t i = 0; i < plan_.streams.size(); ++i) {
    streams_.push_back(device_of(i).stream(plan_.streams[i].role));
    ends.push_back({streams_.back(), device_of(i).make_event()});
  }
  work_ = std::make_shared<WorkInFlight>(std::move(ends));
  flying_ = std::make_unique<Flight[]>(streams_.size());
  for (const PlannedEvent& event : plan_.events) events_.push_back(device_of(event.stream).make_event());
  make_blocks();
  stage_feeds(args);
  find_users();
  for (const Segment& segment : plan_.segments) {
    Body& body = bodies_.emplace_back();
    if (segment.streams.empty() || !segment.records) continue;
    body.variables.reserve(plan_.variables.size());  // a commit allocates nothing
    body.fork = device_of(segment.streams[0]).make_event();
    body.end = device_of(segment.streams[0]).make_event();
    for (std::size_t i = 1; i < segment.streams.size(); ++i) {
      body.join.push_back(device_of(segment.streams[i]).make_event());
      body.before.push_back(device_of(segment.streams[i]).make_event());
    }
  }
}

StreamRun::~StreamRun() {
  try {
    work_->wait(work_->last());
    work_->refusal(work_->last(), false);  // results may outlive this
  } catch (...) {                          // the device is lost: nothing runs there any more
  }
  work_->close();
}

ComputeDevice& StreamRun::device_of(std::uint32_t stream) const {
  return *runtime_.backend_device(plan_.streams[stream].device);
}

void StreamRun::make_blocks() {
  if (!plan_.draws_random && !plan_.refuses) return;
  const auto room = [](std::size_t words, const std::shared_ptr<MemoryPool>& pool) {
    return Tensor::empty(DType::kU8, {static_cast<std::int64_t>(words * sizeof(std::uint64_t))}, pool);
  };
  for (std::uint32_t i = 0; i < plan_.streams.size(); ++i) {
    if (plan_.streams[i].role != StreamRole::kCompute) continue;
    const ComputeDevice& device = device_of(i);
    Block& block = blocks_.emplace_back();
    block.stream = i;
    if (plan_.draws_random) {
      block.run = room(2, device.pool());
      block.staged_run = room(2, device.staging());
    }
    if (plan_.refuses) {
      block.refusal = room(1, device.pool());
      block.staged_refusal = room(1, device.staging());
      std::memcpy(block.staged_refusal.raw(), &kNothingRefused, kWord);
    }
  }
}

// What streams read of the caller's feeds is copied first: the caller may change them when the run has returned.
void StreamRun::stage_feeds(std::span<TensorArg> args) {
  std::vector<void*> staged(plan_.feeds.size(), nullptr);
  for (const PlannedPhase& phase : plan_.phases) {
    if (phase.stream < 0) continue;
    for (std::uint32_t i = phase.first_arg; i < phase.first_arg + phase.inputs; ++i) {
      const Location& from = plan_.args[i].location;
      if (from.kind != Location::Kind::kFeed || plan_.feeds[from.index].memory != kHostMemory) continue;
      const TensorSpec& spec = plan_.feeds[from.index].spec;
      if (staged[from.index] == nullptr) {
        const ComputeDevice& device = device_of(static_cast<std::uint32_t>(phase.stream));
        staged_.push_back({from.index, Tensor::empty(spec.dtype, spec.shape, device.staging())});
        staged[from.index] = staged_.back().staged.raw();
      }
      args[i].data = staged[from.index];
      is_staged_[i] = true;
    }
  }
}

// Which streams use memory that other runs may use at the same time.
void StreamRun::find_users() {
  std::vector<bool> uses(streams_.size(), false);
  for (const PlannedPhase& phase : plan_.phases) {
    if (phase.stream < 0) continue;
    for (std::uint32_t i = phase.first_arg; i < phase.first_arg + phase.inputs + phase.outputs; ++i) {
      const Location::Kind kind = plan_.args[i].location.kind;
      if (kind == Location::Kind::kVariable || kind == Location::Kind::kResult ||
          (kind == Location::Kind::kFeed && !is_staged_[i]))
        uses[static_cast<std::size_t>(phase.stream)] = true;
    }
  }
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (uses[i]) users_.push_back(streams_[i]);
  }
}

void StreamRun::bind(const MakeContext& make) {
  for (const DeviceCall& call : plan_.device_calls) {
    const auto stream = static_cast<std::size_t>(plan_.phases[call.phase].stream);
    contexts_.push_back(make(call.phase, call.shard));
    DeviceBlocks given;
    const auto block = std::ranges::find(blocks_, stream, &Block::stream);
    if (block != blocks_.end()) {
      given.run = block->run.raw();
      given.refusal = block->refusal.raw();
      given.number = call.phase;
    }
    contexts_.back().set_stream(streams_[stream], given);
  }
}

std::shared_ptr<StreamRun::Decision> StreamRun::make_decision() const {
  std::vector<Tensor> words;
  for (const Block& block : blocks_) words.push_back(Tensor::empty(DType::kU8, {kWord}, pool_of(block)));
  return std::make_shared<Decision>(std::move(words));
}

void StreamRun::Decision::clear() {
  const Tensor none = Tensor::full(DType::kU8, {kWord}, 255);
  for (Tensor& word : words_) word.assign(none);
  refused_.store(false, std::memory_order_release);
}

void StreamRun::decide_by(std::shared_ptr<Decision> decision) {
  decision_ = std::move(decision);
  gathered_ =
      Tensor::empty(DType::kU8, {static_cast<std::int64_t>(kWord * blocks_.size())}, pool_of(blocks_[0]));
  decided_ = device_of(static_cast<std::uint32_t>(blocks_[0].stream)).make_event();
  for (std::size_t i = 1; i < blocks_.size(); ++i)
    arrived_.push_back(device_of(static_cast<std::uint32_t>(blocks_[i].stream)).make_event());
  for (const Segment& segment : plan_.segments) {
    if (!segment.commit) continue;
    for (std::uint32_t at = segment.begin; at < segment.end; ++at) {
      DeviceBlocks given = contexts_[at].blocks();
      given.decision = find_decision(plan_.phases[plan_.device_calls[at].phase]);
      contexts_[at].set_stream(contexts_[at].stream(), given);
    }
  }
}

// The word that a call of the phase looks at: in the memory that it writes.
const void* StreamRun::find_decision(const PlannedPhase& phase) const {
  const ComputeDevice& device = device_of(static_cast<std::uint32_t>(phase.stream));
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (pool_of(blocks_[i])->memory() == device.pool()->memory()) return decision_->word(i).raw();
  }
  return nullptr;  // it only copies to memory that is the run's own
}

const std::shared_ptr<MemoryPool>& StreamRun::pool_of(const Block& block) const {
  return device_of(static_cast<std::uint32_t>(block.stream)).pool();
}

// --- one run

void StreamRun::begin(std::span<void* const> feeds, std::span<void* const> variables, const RunInfo& info) {
  if (find_refusal()) {  // of the run before
    for (Block& block : blocks_) block.is_clear = false;
  }
  variables_ = variables;
  info_ = &info;
  began_ = is_gated_ = fetched_ = false;
  is_timed_ = info.observer != nullptr;
  for (StagedFeed& feed : staged_) {
    if (feed.staged.num_bytes() > 0)
      std::memcpy(feed.staged.raw(), feeds[feed.feed], feed.staged.num_bytes());
  }
}

void StreamRun::follow(MemoryUses* uses, bool writes) {
  if (uses == nullptr) return;
  for (Stream* const stream : users_) uses->precede(*stream, writes);
}

void StreamRun::put(std::uint32_t index) {
  const Segment& segment = plan_.segments[index];
  reached_ = plan_.device_calls[segment.begin].phase;
  if (is_timed_ && timings_.empty()) make_timings();
  if (!std::exchange(began_, true)) put_blocks();
  if (segment.commit && decision_ != nullptr && !std::exchange(is_gated_, true)) put_gate();
  put_calls(segment.begin, segment.body_begin);
  put_body(index);
  put_calls(segment.body_end, segment.end);
}

void StreamRun::put_blocks() {
  for (Block& block : blocks_) {
    Stream& stream = *streams_[block.stream];
    if (block.run.defined()) {
      const std::uint64_t values[] = {info_->seed, info_->step};
      std::memcpy(block.staged_run.raw(), values, sizeof(values));
      stream.copy(block.run.raw(), block.run.memory(), block.staged_run.raw(), kHostMemory, sizeof(values));
    }
    if (block.refusal.defined() && !std::exchange(block.is_clear, true))
      stream.fill(block.refusal.raw(), std::byte{0xFF}, kWord);
  }
}

// One decision for all devices, from the words of all of them.
void StreamRun::put_gate() {
  Stream& first = *streams_[blocks_[0].stream];
  auto* const gathered = static_cast<std::uint64_t*>(gathered_.raw());
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (i > 0) {
      streams_[blocks_[i].stream]->record(*arrived_[i - 1]);
      first.wait(*arrived_[i - 1]);
    }
    const Tensor& word = blocks_[i].refusal;
    first.copy(gathered + i, gathered_.memory(), word.raw(), word.memory(), kWord);
  }
  const Tensor& made = decision_->word(0);
  first.latch(const_cast<void*>(made.raw()), gathered, blocks_.size());
  for (std::size_t i = 1; i < blocks_.size(); ++i) {
    const Tensor& told = decision_->word(i);
    first.copy(const_cast<void*>(told.raw()), told.memory(), made.raw(), made.memory(), kWord);
  }
  first.record(*decided_);
  for (Stream* const stream : streams_) {
    if (stream != &first) stream->wait(*decided_);
  }
}

void StreamRun::fetch_refusals() {
  if (!plan_.refuses || !began_) return;
  fetched_ = true;
  if (is_gated_) {
    const Tensor& made = decision_->word(0);
    streams_[blocks_[0].stream]->copy(blocks_[0].staged_refusal.raw(), kHostMemory, made.raw(), made.memory(),
                                      kWord);
    return;
  }
  for (Block& block : blocks_) {
    streams_[block.stream]->copy(block.staged_refusal.raw(), kHostMemory, block.refusal.raw(),
                                 block.refusal.memory(), kWord);
  }
}

std::optional<StreamRun::Refusal> StreamRun::find_refusal() const {
  if (!fetched_) return std::nullopt;
  std::uint64_t first = kNothingRefused;
  for (const Block& block : std::span(blocks_).first(is_gated_ ? 1 : blocks_.size())) {
    std::uint64_t word = 0;
    std::memcpy(&word, block.staged_refusal.raw(), sizeof(word));
    first = std::min(first, word);
  }
  if (first == kNothingRefused) return std::nullopt;
  return Refusal{static_cast<std::uint32_t>(first >> 32U), static_cast<std::uint32_t>(first)};
}

// Of a body that was replayed, its end.
Event& StreamRun::event_at(std::uint32_t event) {
  const std::int32_t body = plan_.events[event].body_of;
  if (body >= 0 && bodies_[static_cast<std::size_t>(body)].replayed)
    return *bodies_[static_cast<std::size_t>(body)].end;
  return *events_[event];
}

void StreamRun::put_calls(std::uint32_t begin, std::uint32_t end) {
  for (std::uint32_t at = begin; at < end; ++at) {
    const DeviceCall& call = plan_.device_calls[at];
    KernelContext& context = contexts_[at];
    reached_ = call.phase;
    for (std::uint32_t i = call.first_wait; i < call.end_wait; ++i)
      context.stream()->wait(event_at(plan_.device_waits[i]));
    if (is_timed_) context.stream()->record(*timings_[at].begin);
    plan_.kernels[plan_.phases[call.phase].kernel](context);
    if (is_timed_) context.stream()->record(*timings_[at].end);
    if (call.event >= 0) context.stream()->record(*events_[static_cast<std::size_t>(call.event)]);
    if (info_->synchronous) {
      const std::unique_ptr<Event> done =
          device_of(static_cast<std::uint32_t>(plan_.phases[call.phase].stream)).make_event();
      context.stream()->record(*done);
      done->wait({});
    }
  }
}

// The first run warms libraries up, the second one is recorded, unless a variable has moved meanwhile: those of a region lie in
// the memory of the run around it.
void StreamRun::put_body(std::uint32_t index) {
  const Segment& segment = plan_.segments[index];
  Body& body = bodies_[index];
  body.replayed = false;
  if (!segment.records || is_timed_ || info_->synchronous) {  // each call of a recording has no time
    put_calls(segment.body_begin, segment.body_end);
    return;
  }
  if (!std::ranges::equal(body.variables, variables_)) {
    body.variables.assign(variables_.begin(), variables_.end());
    body.recording = nullptr;
    body.runs = 0;
  }
  if (body.recording == nullptr && body.runs > 0) {
    try {
      record_body(index);
    } catch (const std::exception& error) {  // nothing of it has run: call by call it needs no memory
      if (code_of(error, ErrorCode::kInternal) != ErrorCode::kOutOfMemory) throw;
    }
  }
  if (body.recording != nullptr) {
    replay_body(index);
  } else {
    put_calls(segment.body_begin, segment.body_end);
  }
  ++body.runs;
}

void StreamRun::record_body(std::uint32_t index) {
  const Segment& segment = plan_.segments[index];
  Body& body = bodies_[index];
  std::vector<std::unique_ptr<Stream>> own;  // by stream of the segment
  for (const std::uint32_t stream : segment.streams) own.push_back(device_of(stream).make_stream());
  const auto own_stream = [&](std::uint32_t phase) {
    const auto stream = static_cast<std::uint32_t>(plan_.phases[phase].stream);
    return own[static_cast<std::size_t>(std::ranges::find(segment.streams, stream) - segment.streams.begin())]
        .get();
  };
  Stream& first = *own[0];
  first.begin_recording();
  try {
    if (own.size() > 1) first.record(*body.fork);
    for (std::size_t i = 1; i < own.size(); ++i) own[i]->wait(*body.fork);
    for (std::uint32_t at = segment.body_begin; at < segment.body_end; ++at) {
      const DeviceCall& call = plan_.device_calls[at];
      Stream& stream = *own_stream(call.phase);
      reached_ = call.phase;
      for (std::uint32_t i = call.first_wait; i < call.end_wait; ++i) {
        const std::uint32_t event = plan_.device_waits[i];
        const bool inside = plan_.events[event].body_of == static_cast<std::int32_t>(index);
        if (inside) stream.wait(*body.events.at(event));  // for others the whole waits
      }
      KernelContext context = contexts_[at];
      context.set_stream(&stream, context.blocks());
      plan_.kernels[plan_.phases[call.phase].kernel](context);
      if (call.event < 0) continue;
      const auto event = static_cast<std::uint32_t>(call.event);
      std::unique_ptr<Event>& set = body.events[event];
      set = device_of(plan_.events[event].stream).make_event();
      stream.record(*set);
    }
    for (std::size_t i = 1; i < own.size(); ++i) {
      own[i]->record(*body.join[i - 1]);
      first.wait(*body.join[i - 1]);
    }
  } catch (...) {
    try {
      static_cast<void>(first.end_recording());
    } catch (const std::exception&) {  // the first error says more
    }
    throw;
  }
  body.recording = first.end_recording();
}

// As one piece of work of the first stream, with the order of all streams that take part.
void StreamRun::replay_body(std::uint32_t index) {
  const Segment& segment = plan_.segments[index];
  Body& body = bodies_[index];
  Stream& first = *streams_[segment.streams[0]];
  const auto further = std::span(segment.streams).subspan(1);
  for (std::size_t i = 0; i < further.size(); ++i) {
    streams_[further[i]]->record(*body.before[i]);
    first.wait(*body.before[i]);
  }
  for (std::uint32_t at = segment.body_begin; at < segment.body_end; ++at) {
    const DeviceCall& call = plan_.device_calls[at];
    for (std::uint32_t i = call.first_wait; i < call.end_wait; ++i) {
      const std::uint32_t event = plan_.device_waits[i];
      if (plan_.events[event].body_of != static_cast<std::int32_t>(index)) first.wait(event_at(event));
    }
  }
  body.recording->replay(first);
  body.replayed = true;
  first.record(*body.end);
  for (const std::uint32_t stream : further) streams_[stream]->wait(*body.end);
}

void StreamRun::make_timings() {
  for (const DeviceCall& call : plan_.device_calls) {
    ComputeDevice& device = device_of(static_cast<std::uint32_t>(plan_.phases[call.phase].stream));
    timings_.push_back({device.make_timed_event(), device.make_timed_event()});
  }
}

void StreamRun::tell_times(const Tell& tell) const {
  if (!is_timed_ || timings_.empty()) return;
  for (std::uint32_t stream = 0; stream < streams_.size(); ++stream) {
    for (std::uint32_t at = 0; at < timings_.size(); ++at) {
      if (static_cast<std::uint32_t>(plan_.phases[plan_.device_calls[at].phase].stream) != stream) continue;
      const std::optional<SteadyTime> begin = timings_[at].begin->time(), end = timings_[at].end->time();
      if (begin && end) tell(at, *begin, *end);
    }
  }
}

void StreamRun::leave(Flights& flights) noexcept {
  work_->record_surely();
  const std::vector<WorkInFlight::End>& ends = work_->ends();
  for (std::size_t i = 0; i < ends.size(); ++i) flying_[i].leave(*ends[i].event, flights);
}

}  // namespace lockstep::internal
