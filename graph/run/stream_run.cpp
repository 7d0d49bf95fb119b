// graph/run/stream_run.cpp - the part of a run that is on streams of devices.
#include "lockstep/graph/run/internal/stream_run.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <map>
#include <utility>

namespace lockstep::internal {

namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);
constexpr std::uint64_t kNothingRefused = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kStale =
    16;  // runs after which a recording makes room for feeds that come again elsewhere

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

// While it lives, arguments that are copies of feeds are the feeds.
class StreamRun::FeedReaders {
 public:
  FeedReaders(std::span<TensorArg> args, std::span<const FeedCopy> copies, std::span<void* const> feeds) {
    for (std::size_t i = 0; i < feeds.size(); ++i) {
      for (const std::uint32_t arg : copies[i].args) copies_.emplace_back(&args[arg], args[arg].data);
    }
    for (std::size_t i = 0; i < feeds.size(); ++i) {
      for (const std::uint32_t arg : copies[i].args) args[arg].data = feeds[i];
    }
  }
  ~FeedReaders() {
    for (const auto& [arg, copy] : copies_) arg->data = copy;
  }
  FeedReaders(const FeedReaders&) = delete;
  FeedReaders& operator=(const FeedReaders&) = delete;

 private:
  std::vector<std::pair<TensorArg*, void*>> copies_;
};

StreamRun::StreamRun(const Plan& plan, const Runtime& runtime, std::span<TensorArg> args)
    : plan_(plan),
      runtime_(runtime),
      args_(args),
      is_staged_(args.size(), false),
      is_skipped_(plan.device_calls.size(), false) {
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
  for (std::uint32_t i = 0; i < plan_.segments.size(); ++i) bodies_.push_back(make_body(i, i + 1));
  replayed_.resize(plan_.segments.size());
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

StreamRun::Body StreamRun::make_body(std::uint32_t first, std::uint32_t end) const {
  Body body;
  body.first = first;
  body.end = end;
  const auto segments = std::span(plan_.segments).subspan(first, end - first);
  body.records = std::ranges::all_of(
      segments, [](const Segment& segment) { return segment.records && !segment.streams.empty(); });
  if (!body.records) return body;
  const auto add = [&](std::uint32_t stream) {
    if (std::ranges::find(body.streams, stream) == body.streams.end()) body.streams.push_back(stream);
  };
  for (const Segment& segment : segments) std::ranges::for_each(segment.streams, add);
  if (segments.size() > 1 && decision_ != nullptr) {  // the gate joins them
    for (const Block& block : blocks_) add(static_cast<std::uint32_t>(block.stream));
  }
  body.records = std::ranges::all_of(body.streams, [this](std::uint32_t stream) {
    return static_cast<bool>(device_of(stream).can_record());
  });
  if (!body.records) return body;
  body.variables.reserve(plan_.variables.size());  // a commit allocates nothing
  body.copies = find_feed_copies(body);
  body.takes.reserve(kFeedSets + 1);
  for (std::vector<void*>* feeds : {&body.feeds, &body.seen[0], &body.seen[1], &body.seen[2], &body.seen[3]})
    feeds->reserve(body.copies.size());
  body.over = device_of(body.streams[0]).make_event();
  for (const std::uint32_t stream : std::span(body.streams).subspan(1))
    body.before.push_back(device_of(stream).make_event());

  find_waits_inside(body);
  std::vector<bool> inside(plan_.device_calls.size(), false);
  for (const Segment& segment : segments)
    std::fill(inside.begin() + segment.body_begin, inside.begin() + segment.body_end, true);
  for (std::uint32_t at = 0; at < inside.size(); ++at) {
    const DeviceCall& call = plan_.device_calls[at];
    for (std::uint32_t i = call.first_wait; i < call.end_wait && !inside[at]; ++i)
      body.is_awaited = body.is_awaited || is_in(body, plan_.device_waits[i]);
  }
  for (const PlannedPhase& phase : plan_.phases) {
    if (phase.awaits && phase.event >= 0)
      body.is_awaited = body.is_awaited || is_in(body, static_cast<std::uint32_t>(phase.event));
  }
  return body;
}

// A recording begins as a whole. So that what reads no feed need not wait for feeds, the waits for their copies are part of it,
// unless there is nothing in front of them.
void StreamRun::find_waits_inside(Body& body) const {
  body.waits_inside.assign(plan_.device_waits.size(), false);
  const bool may_wait = std::ranges::all_of(
      body.streams, [this](std::uint32_t stream) { return device_of(stream).recordings_wait(); });
  if (!may_wait) return;
  const Segment& first = plan_.segments[body.first];
  std::vector<bool> of_front(plan_.events.size(), false);
  for (std::uint32_t at = first.begin; at < first.body_begin; ++at) {
    if (const std::int32_t event = plan_.device_calls[at].event; event >= 0)
      of_front[static_cast<std::size_t>(event)] = true;
  }
  for (const Segment& segment : std::span(plan_.segments).subspan(body.first, body.end - body.first)) {
    for (std::uint32_t at = segment.body_begin; at < segment.body_end; ++at) {
      if (at == first.body_begin && body.streams.size() == 1) continue;
      const DeviceCall& call = plan_.device_calls[at];
      for (std::uint32_t i = call.first_wait; i < call.end_wait; ++i)
        body.waits_inside[i] = of_front[plan_.device_waits[i]];
    }
  }
}

std::vector<StreamRun::FeedCopy> StreamRun::find_feed_copies(const Body& body) const {
  std::vector<FeedCopy> copies;
  const Segment& first = plan_.segments[body.first];
  for (std::uint32_t at = first.begin; at < first.body_begin; ++at) {
    const PlannedPhase& phase = plan_.phases[plan_.device_calls[at].phase];
    if (phase.outputs != 1) continue;
    const std::int32_t feed = plan_.args[phase.first_arg + phase.inputs].copy_of;
    if (feed >= 0) copies.push_back({static_cast<std::uint32_t>(feed), at, {}});
  }
  if (copies.empty()) return copies;
  std::vector<bool> inside(plan_.phases.size(), false);
  for (std::uint32_t i = body.first; i < body.end; ++i) {
    const Segment& segment = plan_.segments[i];
    for (std::uint32_t at = segment.body_begin; at < segment.body_end; ++at)
      inside[plan_.device_calls[at].phase] = true;
  }
  for (std::uint32_t p = 0; p < plan_.phases.size(); ++p) {
    const PlannedPhase& phase = plan_.phases[p];
    for (std::uint32_t i = phase.first_arg; i < phase.first_arg + phase.inputs; ++i) {
      const auto found = std::ranges::find_if(copies, [&](const FeedCopy& copy) {
        return plan_.args[i].copy_of == static_cast<std::int32_t>(copy.feed);
      });
      if (found == copies.end()) continue;
      if (!inside[p]) {
        copies.erase(found);
      } else if (std::ranges::find(found->args, i) ==
                 found->args.end()) {  // a phase that finishes has the same
        found->args.push_back(i);
      }
    }
  }
  return copies;
}

// May a recording read the feeds of this run where they are? Kernels count on what pools align, and what the step changes would be
// read too late.
bool StreamRun::may_read_feeds(const Body& body) const {
  if (body.copies.empty()) return false;
  for (std::size_t i = 0; i < body.copies.size(); ++i) {
    const auto begin = reinterpret_cast<std::uintptr_t>(body.feeds[i]);
    const auto end = begin + static_cast<std::uintptr_t>(num_bytes(plan_.feeds[body.copies[i].feed].spec));
    if (begin % kAlignment != 0) return false;
    for (const PlannedArg& arg : plan_.args) {
      if (arg.location.kind != Location::Kind::kVariable) continue;
      const auto variable = reinterpret_cast<std::uintptr_t>(variables_[arg.location.index]);
      if (begin < variable + static_cast<std::uintptr_t>(num_bytes(*arg.spec)) && variable < end)
        return false;
    }
  }
  return true;
}

// Is the event of the plan set in the body?
bool StreamRun::is_in(const Body& body, std::uint32_t event) const {
  const std::int32_t segment = plan_.events[event].body_of;
  return segment >= static_cast<std::int32_t>(body.first) && segment < static_cast<std::int32_t>(body.end);
}

void StreamRun::join() {
  for (std::uint32_t i = 0; i < plan_.segments.size(); ++i) {
    if (!plan_.segments[i].joins) continue;
    const Segment& commit = plan_.segments[i + 1];
    Body both = make_body(i, i + 2);
    if (!both.records || plan_.segments[i].body_end != plan_.segments[i].end ||
        commit.begin != commit.body_begin)
      continue;
    bodies_[i] = std::move(both);
    bodies_[i + 1].records = false;  // by itself
  }
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
  feeds_ = feeds;
  variables_ = variables;
  info_ = &info;
  began_ = is_gated_ = fetched_ = false;
  waiting_ = {};
  std::ranges::fill(replayed_, nullptr);
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
  if (segment.commit && decision_ != nullptr && !std::exchange(is_gated_, true))
    put_gate([this](std::uint32_t stream) { return streams_[stream]; });
  Body& body = bodies_[index];
  Take* const take = find_take(body);
  for (const FeedCopy& copy : body.copies) is_skipped_[copy.call] = take != nullptr && !take->feeds.empty();
  put_calls(segment.begin, segment.body_begin);
  if (take == nullptr) {
    if (replayed_[index] == nullptr) put_calls(segment.body_begin, segment.body_end);
  } else if (body.end > index + 1) {
    waiting_ = {&body, take};
  } else {
    replay(body, *take);
  }
  if (body.records && !is_timed_ && !info_->synchronous) ++body.runs;
  put_calls(segment.body_end, segment.end);
}

void StreamRun::pass_gate() {
  if (waiting_.body == nullptr) return;
  reached_ = plan_.device_calls[plan_.segments[waiting_.body->first].body_begin].phase;
  replay(*waiting_.body, *waiting_.take);
  is_gated_ = fetched_ = decision_ != nullptr;
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

// One decision for all devices, from the words of all of them. `on` gives the stream for one of the plan; null: it takes no part.
template <class On>
void StreamRun::put_gate(const On& on) {
  const auto at = [&](const Block& block) { return on(static_cast<std::uint32_t>(block.stream)); };
  Stream& first = *at(blocks_[0]);
  const void* words = blocks_[0].refusal.raw();
  if (blocks_.size() > 1) {
    auto* const gathered = static_cast<std::uint64_t*>(gathered_.raw());
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if (i > 0) {
        at(blocks_[i])->record(*arrived_[i - 1]);
        first.wait(*arrived_[i - 1]);
      }
      const Tensor& word = blocks_[i].refusal;
      first.copy(gathered + i, gathered_.memory(), word.raw(), word.memory(), kWord);
    }
    words = gathered;
  }
  const Tensor& made = decision_->word(0);
  first.latch(const_cast<void*>(made.raw()), words, blocks_.size());
  for (std::size_t i = 1; i < blocks_.size(); ++i) {
    const Tensor& told = decision_->word(i);
    first.copy(const_cast<void*>(told.raw()), told.memory(), made.raw(), made.memory(), kWord);
  }
  bool is_set = false;
  for (std::uint32_t i = 0; i < streams_.size(); ++i) {
    Stream* const stream = on(i);
    if (stream == nullptr || stream == &first) continue;
    if (!std::exchange(is_set, true)) first.record(*decided_);
    stream->wait(*decided_);
  }
}

void StreamRun::fetch_decision(Stream& first) {
  const Tensor& made = decision_->word(0);
  first.copy(blocks_[0].staged_refusal.raw(), kHostMemory, made.raw(), made.memory(), kWord);
}

void StreamRun::fetch_refusals() {
  if (!plan_.refuses || !began_ || std::exchange(fetched_, true)) return;
  if (is_gated_) {
    fetch_decision(*streams_[blocks_[0].stream]);
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
  const std::int32_t segment = plan_.events[event].body_of;
  const Body* const body = segment < 0 ? nullptr : replayed_[static_cast<std::size_t>(segment)];
  return body != nullptr ? *body->over : *events_[event];
}

void StreamRun::put_calls(std::uint32_t begin, std::uint32_t end) {
  for (std::uint32_t at = begin; at < end; ++at) {
    const DeviceCall& call = plan_.device_calls[at];
    KernelContext& context = contexts_[at];
    reached_ = call.phase;
    for (std::uint32_t i = call.first_wait; i < call.end_wait; ++i)
      context.stream()->wait(event_at(plan_.device_waits[i]));
    if (is_timed_) context.stream()->record(*timings_[at].begin);
    if (!is_skipped_[at]) plan_.kernels[plan_.phases[call.phase].kernel](context);
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
// the memory of the run around it. Null: call by call.
StreamRun::Take* StreamRun::find_take(Body& body) {
  if (!body.records || is_timed_ || info_->synchronous)
    return nullptr;  // each call of a recording has no time
  if (!std::ranges::equal(body.variables, variables_)) {
    body.variables.assign(variables_.begin(), variables_.end());
    body.takes.clear();
    body.runs = 0;
  }
  body.feeds.clear();
  for (const FeedCopy& copy : body.copies) body.feeds.push_back(feeds_[copy.feed]);
  const auto find = [&body](std::span<void* const> feeds) -> Take* {
    const auto found = std::ranges::find_if(
        body.takes, [&](const Take& take) { return std::ranges::equal(take.feeds, feeds); });
    return found == body.takes.end() ? nullptr : &*found;
  };
  Take* take = find(body.feeds);
  if (take == nullptr && body.runs > 0) {
    // A recording is worth its while for feeds that come again: others are copied.
    const bool comes_again = std::ranges::find(body.seen, body.feeds) != body.seen.end();
    if (comes_again && may_read_feeds(body)) take = make_take(body, true);
    if (take == nullptr) take = find({});
    if (take == nullptr) take = make_take(body, false);
  }
  if (take == nullptr || take->feeds != body.feeds) body.seen[body.runs % kFeedSets] = body.feeds;
  if (take != nullptr) take->used = body.runs;
  return take;
}

// Null: there are enough, all of them in use, or there is no memory for it.
StreamRun::Take* StreamRun::make_take(Body& body, bool reads_feeds) {
  std::vector<void*> feeds;
  if (reads_feeds) feeds = body.feeds;
  std::erase_if(body.takes, [&](const Take& take) {
    return reads_feeds && !take.feeds.empty() && take.used + kStale < body.runs;
  });
  const auto others = std::ranges::count_if(body.takes, [](const Take& take) { return !take.feeds.empty(); });
  if (reads_feeds && static_cast<std::size_t>(others) >= kFeedSets) return nullptr;
  try {
    std::unique_ptr<Recording> recording = record(body, feeds);
    body.takes.push_back({std::move(feeds), std::move(recording)});
    return &body.takes.back();
  } catch (const std::exception& error) {  // nothing of it has run: call by call it needs no memory
    if (code_of(error, ErrorCode::kInternal) != ErrorCode::kOutOfMemory) throw;
    return nullptr;
  }
}

std::unique_ptr<Recording> StreamRun::record(const Body& body, std::span<void* const> feeds) {
  std::vector<std::unique_ptr<Stream>> own;  // by stream of the body
  for (const std::uint32_t stream : body.streams) own.push_back(device_of(stream).make_stream());
  const auto on = [&](std::uint32_t stream) -> Stream* {
    const auto found = std::ranges::find(body.streams, stream);
    return found == body.streams.end() ? nullptr
                                       : own[static_cast<std::size_t>(found - body.streams.begin())].get();
  };
  std::unique_ptr<Stream> beside;
  std::vector<std::unique_ptr<Event>> events;
  const auto mark = [&](Stream& at, std::uint32_t stream) {  // `stream`: one of the same device
    events.push_back(device_of(stream).make_event());
    at.record(*events.back());
    return events.back().get();
  };
  std::map<std::uint32_t, Event*> set;  // of the plan
  const FeedReaders readers(args_, body.copies, feeds);
  Stream& first = *own[0];
  first.begin_recording();
  try {
    if (own.size() > 1) {
      const Event* const fork = mark(first, body.streams[0]);
      for (std::size_t i = 1; i < own.size(); ++i) own[i]->wait(*fork);
    }
    for (std::uint32_t i = body.first; i < body.end; ++i) {
      const Segment& segment = plan_.segments[i];
      if (i > body.first && decision_ != nullptr) {
        put_gate(on);
        // The commit does not wait for the copy: it has a branch of its own.
        const auto gate = static_cast<std::uint32_t>(blocks_[0].stream);
        beside = device_of(gate).make_stream();
        beside->wait(*mark(*on(gate), gate));
        fetch_decision(*beside);
      }
      for (std::uint32_t at = segment.body_begin; at < segment.body_end; ++at) {
        const DeviceCall& call = plan_.device_calls[at];
        const auto stream = static_cast<std::uint32_t>(plan_.phases[call.phase].stream);
        reached_ = call.phase;
        for (std::uint32_t w = call.first_wait; w < call.end_wait; ++w) {
          const std::uint32_t event = plan_.device_waits[w];
          if (is_in(body, event)) {
            on(stream)->wait(*set.at(event));
          } else if (body.waits_inside[w]) {
            on(stream)->wait_in_replays(*events_[event]);
          }  // for others the whole waits
        }
        KernelContext context = contexts_[at];
        context.set_stream(on(stream), context.blocks());
        plan_.kernels[plan_.phases[call.phase].kernel](context);
        if (call.event >= 0) set[static_cast<std::uint32_t>(call.event)] = mark(*on(stream), stream);
      }
    }
    for (std::size_t i = 1; i < own.size(); ++i) first.wait(*mark(*own[i], body.streams[i]));
    if (beside != nullptr) first.wait(*mark(*beside, static_cast<std::uint32_t>(blocks_[0].stream)));
  } catch (...) {
    try {
      static_cast<void>(first.end_recording());
    } catch (const std::exception&) {  // the first error says more
    }
    throw;
  }
  return first.end_recording();
}

// As one piece of work of the first stream, with the order of all streams that take part.
void StreamRun::replay(const Body& body, Take& take) {
  Stream& first = *streams_[body.streams[0]];
  const auto further = std::span(body.streams).subspan(1);
  for (std::size_t i = 0; i < further.size(); ++i) {
    streams_[further[i]]->record(*body.before[i]);
    first.wait(*body.before[i]);
  }
  for (std::uint32_t i = body.first; i < body.end; ++i) {
    const Segment& segment = plan_.segments[i];
    for (std::uint32_t at = segment.body_begin; at < segment.body_end; ++at) {
      const DeviceCall& call = plan_.device_calls[at];
      for (std::uint32_t w = call.first_wait; w < call.end_wait; ++w) {
        const std::uint32_t event = plan_.device_waits[w];
        if (!is_in(body, event) && !body.waits_inside[w]) first.wait(event_at(event));
      }
    }
  }
  take.recording->replay(first);
  for (std::uint32_t i = body.first; i < body.end; ++i) replayed_[i] = &body;
  if (further.empty() && !body.is_awaited) return;  // what comes on this stream comes after it
  first.record(*body.over);
  for (const std::uint32_t stream : further) streams_[stream]->wait(*body.over);
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
