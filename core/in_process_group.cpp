#include "lockstep/core/in_process_group.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/internal/in_process_room.h"

namespace lockstep {
namespace {

using Kind = CommunicatorCall::Kind;
using std::chrono::steady_clock;

// Of a chunk, in one array: small ones end together, large ones are streams.
constexpr std::int64_t kLineBytes = 64, kLeastChunk = 16 << 10, kMostChunk = 64 << 10;
// Of all inputs together, staged: where participants spin, less than meeting twice costs; else less than waking somebody.
constexpr std::int64_t kStagedBytes = 4 << 10, kMostStagedBytes = 32 << 10;
constexpr int kOperationsAtOnce = 4;            // made ready for the row
constexpr std::size_t kOperationsLookedAt = 8;  // for one that is free again
constexpr std::int64_t kCopyBlockBytes = 8
                                         << 10;  // of one source, copied to all its places while in the cache
constexpr int kSpins = 100;                      // a few microseconds
constexpr auto kYieldTime = std::chrono::microseconds(50);

void pause() {
#if defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // as long as pause is on x86; "yield" does nothing on most
#elif defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

constexpr int kMostParticipants = 0xFFFF;
// What has to be the same for all participants, in a word that is not 0. Of counts that do not fit in, see kMostCount.
constexpr std::int64_t kMostCount = 0xFFFF'FFFF;
std::uint64_t signature_of(const CommunicatorCall& call) {
  const auto count = static_cast<std::uint64_t>(std::min(call.count, kMostCount));
  return 1U | static_cast<std::uint64_t>(call.kind) << 1 | static_cast<std::uint64_t>(call.op) << 4 |
         static_cast<std::uint64_t>(call.dtype) << 8 | static_cast<std::uint64_t>(call.peer + 1) << 16 |
         count << 32;
}

std::string list_of(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "participant " : "participants ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

// Copies a range of bytes to several places, reading it from memory once.
template <class Places>
void copy_to_all(const std::byte* from, std::int64_t bytes, const Places& each_place) {
  for (std::int64_t at = 0; at < bytes; at += kCopyBlockBytes) {
    const auto block = static_cast<std::size_t>(std::min(kCopyBlockBytes, bytes - at));
    each_place([&](std::byte* to) {
      if (to != from) std::memcpy(to + at, from + at, block);
    });
  }
}

}  // namespace

// --- one operation

InProcessOperation::InProcessOperation(InProcessRoom& room)
    : room_(room),
      parts_(room.count()),
      inputs_(room.count()),
      outputs_(room.count()),
      shares_(room.count()),
      staging_(static_cast<std::size_t>(kMostStagedBytes) / sizeof(Line) + room.count()) {
  for (Part& part : parts_) part.reduced.resize(room.count());
}

void InProcessOperation::reset() {
  ++generation_;
  users_.store(0, std::memory_order_relaxed);
  failure_message_.clear();
  deadline_.store(kNoDeadline, std::memory_order_relaxed);
  next_.store(nullptr, std::memory_order_relaxed);
  signature_.store(0, std::memory_order_relaxed);
  arrivals_.store(0, std::memory_order_relaxed);
  state_.store(State::kGathering, std::memory_order_relaxed);
}

bool InProcessOperation::is_released() const {
  return std::ranges::all_of(parts_, [this](const Part& part) {
    return part.released.load(std::memory_order_acquire) == generation_;
  });
}

std::string InProcessOperation::name() const {
  if (in_row_) {
    std::size_t place = 0;
    while (place < parts_.size() && !has_arrived(place)) ++place;
    return str(place == parts_.size() ? "" : to_string(parts_[place].call) + ", ", "collective number ",
               number_);
  }
  const bool sends = call_.kind == Kind::kSend;
  return str(sends ? "send" : "receive", "(", call_.dtype, ", ", call_.count, ") from participant ",
             sends ? first_ : call_.peer, " to ", sends ? call_.peer : first_);
}

std::int64_t InProcessOperation::elements_of(const CommunicatorCall& call) const {
  const bool in_parts = call.kind == Kind::kAllGather || call.kind == Kind::kReduceScatter;
  return call.kind == Kind::kBarrier ? 0 : call.count * (in_parts ? room_.size() : 1);
}

bool InProcessOperation::is_small(const CommunicatorCall& call) const {
  if (call.count > kMostStagedBytes) return false;  // whose bytes may be more than a number can say
  const std::int64_t bytes = elements_of(call) * static_cast<std::int64_t>(size_of(call.dtype));
  return bytes * (call.is_collective() ? room_.size() : 1) <=
         (room_.spins_ ? kStagedBytes : kMostStagedBytes);
}

// --- small collectives

// What a participant leaves for all: whole cache lines, which nobody else writes.
std::byte* InProcessOperation::staged(std::size_t place, const CommunicatorCall& call) {
  const std::int64_t elements = call.kind == Kind::kAllGather ? call.count : elements_of(call);
  const std::size_t bytes = static_cast<std::size_t>(elements) * size_of(call.dtype);
  return staging_[place * ((bytes + sizeof(Line) - 1) / sizeof(Line))].bytes.data();
}

void InProcessOperation::stage(int rank) {
  const CommunicatorCall& call = part(rank).call;
  const std::int64_t elements = call.kind == Kind::kAllGather ? call.count : elements_of(call);
  if (elements == 0 || (call.kind == Kind::kBroadcast && call.peer != rank)) return;
  std::memcpy(staged(static_cast<std::size_t>(rank), call), call.in,
              static_cast<std::size_t>(elements) * size_of(call.dtype));
}

void InProcessOperation::compute_own(int rank) {
  Part& mine = part(rank);
  if (mine.is_computed) return;
  const CommunicatorCall& call = mine.call;
  const std::size_t bytes = static_cast<std::size_t>(call.count) * size_of(call.dtype);
  const auto reduce = [&](std::size_t offset) {
    for (std::size_t place = 0; place < parts_.size(); ++place)
      mine.reduced[place] = staged(place, call) + offset;
    kernels::reduce_replicas(call.op, call.dtype, mine.reduced, call.out, 0, call.count);
  };
  switch (call.kind) {
    case Kind::kAllReduce: reduce(0); break;
    case Kind::kReduce: {
      if (call.peer == rank) reduce(0);
      break;
    }
    case Kind::kReduceScatter: reduce(static_cast<std::size_t>(rank) * bytes); break;
    case Kind::kBroadcast: {
      if (call.peer != rank) std::memcpy(call.out, staged(static_cast<std::size_t>(call.peer), call), bytes);
      break;
    }
    case Kind::kAllGather: {
      auto* to = static_cast<std::byte*>(call.out);
      for (std::size_t place = 0; place < parts_.size(); ++place)
        std::memcpy(to + place * bytes, staged(place, call), bytes);
      break;
    }
    case Kind::kBarrier:
    case Kind::kSend:
    case Kind::kReceive: break;
  }
  mine.is_computed = true;
}

// --- the others

void InProcessOperation::begin(const CommunicatorCall& call) {
  call_ = call;
  elements_ = elements_of(call);
  if (elements_ == 0) return change_to(State::kDone);
  if (call.is_collective() && is_small(call)) return change_to(State::kStaged);
  cut();
  change_to(State::kRunning);
}

// Chunks are whole cache lines where the arrays are. Where participants spin, each has one of its own at least.
void InProcessOperation::cut() {
  const auto size = static_cast<std::int64_t>(size_of(call_.dtype));
  const auto shares = static_cast<std::int64_t>(shares_.size());
  const std::int64_t bytes = elements_ * size;
  const auto whole = [](std::int64_t some, std::int64_t unit) { return (some + unit - 1) / unit * unit; };
  std::int64_t chunk_bytes = kMostChunk;
  if (room_.spins_) {
    chunk_bytes =
        bytes <= kLeastChunk * shares
            ? whole((bytes + shares - 1) / shares, kLineBytes)
            : std::clamp(bytes / (32 * shares) / kLeastChunk * kLeastChunk, kLeastChunk, kMostChunk);
  }
  chunk_ = chunk_bytes / size;
  const std::int64_t chunks = (elements_ + chunk_ - 1) / chunk_;
  for (std::int64_t s = 0; s < shares; ++s) {
    Share& share = shares_[static_cast<std::size_t>(s)];
    share.next.store(chunks * s / shares, std::memory_order_relaxed);
    share.end = chunks * (s + 1) / shares;
  }
  left_.store(chunks, std::memory_order_relaxed);
}

void InProcessOperation::compute(int rank, std::int64_t begin, std::int64_t end) {
  const auto size = static_cast<std::int64_t>(size_of(call_.dtype));
  const auto root = static_cast<std::size_t>(std::max(call_.peer, 0));
  const auto offset = [size](const void* base, std::int64_t elements) {
    return static_cast<const std::byte*>(base) + elements * size;
  };
  const auto place = [size](void* base, std::int64_t elements) {
    return static_cast<std::byte*>(base) + elements * size;
  };
  switch (call_.kind) {
    case Kind::kAllReduce:
      return kernels::reduce_replicas(call_.op, call_.dtype, inputs_, outputs_, begin, end);
    case Kind::kReduce:
      return kernels::reduce_replicas(call_.op, call_.dtype, inputs_, outputs_[root], begin, end);
    case Kind::kBroadcast:
      return copy_to_all(offset(inputs_[root], begin), (end - begin) * size, [&](const auto& copy) {
        for (void* to : outputs_) copy(place(to, begin));
      });
    case Kind::kSend:
    case Kind::kReceive: {
      std::memcpy(place(outputs_[receiver_], begin), offset(inputs_[sender_], begin),
                  static_cast<std::size_t>((end - begin) * size));
      return;
    }
    case Kind::kBarrier: return;
    case Kind::kAllGather:
    case Kind::kReduceScatter: break;
  }
  // A range may reach over the parts of several participants.
  while (begin < end) {
    const std::int64_t part = begin / call_.count;
    const std::int64_t base = part * call_.count;
    const std::int64_t stop = std::min(end, base + call_.count);
    const auto owner = static_cast<std::size_t>(part);
    if (call_.kind == Kind::kAllGather) {
      copy_to_all(offset(inputs_[owner], begin - base), (stop - begin) * size, [&](const auto& copy) {
        for (void* to : outputs_) copy(place(to, begin));
      });
    } else {
      std::vector<const void*>& inputs = parts_[static_cast<std::size_t>(rank)].reduced;
      std::ranges::transform(inputs_, inputs.begin(), [&](const void* input) { return offset(input, base); });
      kernels::reduce_replicas(call_.op, call_.dtype, inputs, outputs_[owner], begin - base, stop - base);
    }
    begin = stop;
  }
}

void InProcessOperation::help(int rank, std::int64_t most) {
  std::int64_t mine = 0;
  for (std::size_t k = 0; k < shares_.size() && mine < most; ++k) {
    Share& share = shares_[(static_cast<std::size_t>(rank) + k) % shares_.size()];
    while (mine < most && share.next.load(std::memory_order_relaxed) < share.end) {
      const std::int64_t chunk = share.next.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= share.end) break;
      compute(rank, chunk * chunk_, std::min(elements_, (chunk + 1) * chunk_));
      ++mine;
    }
  }
  if (mine > 0 && left_.fetch_sub(mine, std::memory_order_acq_rel) == mine) change_to(State::kDone);
}

void InProcessOperation::change_to(State state) {
  state_.store(state);
  // Whoever counts itself as a sleeper after this sees the state.
  if (sleepers_.load() > 0) {
    { const std::lock_guard lock(room_.mutex_); }
    changed_.notify_all();
  }
}

// First at full speed, where everybody can have a processor; then giving way, since whoever is waited for may need this
// one.
bool InProcessOperation::spin_while(State state) const {
  for (int i = 0; i < (room_.spins_ ? kSpins : 1); ++i) {
    if (state_.load(std::memory_order_acquire) != state) return true;
    pause();
  }
  const auto begin = steady_clock::now();
  do {
    std::this_thread::yield();
    if (state_.load(std::memory_order_acquire) != state) return true;
  } while (steady_clock::now() - begin < kYieldTime);
  return false;
}

void InProcessOperation::await_begin() {
  if (spin_while(State::kGathering)) return;
  std::unique_lock lock(room_.mutex_);
  sleepers_.fetch_add(1);
  while (state_.load() == State::kGathering) {
    if (const auto deadline = deadline_.load(); deadline == kNoDeadline) {
      changed_.wait(lock);
    } else if (steady_clock::now() < deadline) {
      changed_.wait_until(lock, deadline);
    } else if (room_.pass_deadline(*this); state_.load() == State::kGathering) {
      // The last is arriving this very moment.
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
  }
  sleepers_.fetch_sub(1);
}

void InProcessOperation::await_end(int rank) {
  help(rank);
  if (spin_while(State::kRunning)) return;
  std::unique_lock lock(room_.mutex_);
  sleepers_.fetch_add(1);
  while (state_.load() == State::kRunning) changed_.wait(lock);
  sleepers_.fetch_sub(1);
}

// The earliest deadline holds, also for those who sleep until a later one.
void InProcessOperation::hasten(steady_clock::time_point deadline) {
  auto earliest = deadline_.load();
  while (deadline < earliest && !deadline_.compare_exchange_weak(earliest, deadline)) {
  }
  if (deadline >= earliest) return;
  if (sleepers_.load() > 0) {
    { const std::lock_guard lock(room_.mutex_); }
    changed_.notify_all();
  }
}

// Nobody may be waiting who would see the deadline pass.
void InProcessOperation::look_at_clock() {
  const auto deadline = deadline_.load(std::memory_order_relaxed);
  if (deadline == kNoDeadline || steady_clock::now() < deadline) return;
  const auto lock = room_.enter();
  if (state_.load() == State::kGathering) room_.pass_deadline(*this);
}

bool InProcessOperation::done(int rank) {
  if (state_.load(std::memory_order_acquire) == State::kGathering) look_at_clock();
  State state = state_.load(std::memory_order_acquire);
  if (state == State::kRunning) {
    help(rank, 1);
    state = state_.load(std::memory_order_acquire);
  } else if (state == State::kStaged) {
    compute_own(rank);
  }
  return state != State::kGathering && state != State::kRunning;
}

void InProcessOperation::wait(int rank) {
  if (state_.load(std::memory_order_acquire) == State::kGathering) {
    if (in_row_) room_.look_ahead(*this);
    await_begin();
  }
  const State state = state_.load(std::memory_order_acquire);
  if (state == State::kStaged) compute_own(rank);
  if (state == State::kRunning) await_end(rank);
  if (state == State::kFailed) throw_error(failure_code_, failure_message_);
}

void InProcessOperation::release(int rank) noexcept {
  if (state_.load(std::memory_order_acquire) == State::kGathering) {
    room_.withdraw(*this, rank);
    // Where that came too late it begins any moment.
    while (state_.load(std::memory_order_acquire) == State::kGathering) std::this_thread::yield();
  }
  const State state = state_.load(std::memory_order_acquire);
  if (state == State::kStaged) compute_own(rank);
  if (state == State::kRunning) await_end(rank);
  InProcessRoom& room = room_;
  if (in_row_) {
    part(rank).released.store(generation_, std::memory_order_release);
  } else if (users_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    room.recycle(*this);
  }
  room.leave(rank);
}

// --- the room

InProcessRoom::InProcessRoom(int participants)
    : size_(participants),
      seats_(count()),
      spins_(count() <= std::max(1U, std::thread::hardware_concurrency())) {
  InProcessOperation& first = fresh_for_row();
  for (Seat& seat : seats_) seat.next.store(&first, std::memory_order_relaxed);
}

InProcessRoom::~InProcessRoom() = default;

// Held for a few hundred instructions, so that it pays to try a while.
std::unique_lock<std::mutex> InProcessRoom::enter() {
  std::unique_lock lock(mutex_, std::defer_lock);
  for (int i = 0; spins_ && i < 64; ++i) {
    if (lock.try_lock()) return lock;
    pause();
  }
  lock.lock();
  return lock;
}

InProcessOperation& InProcessRoom::take() {
  if (free_.empty()) {
    all_.push_back(std::make_unique<InProcessOperation>(*this));
    free_.reserve(all_.size());  // for all to come back
    free_.push_back(all_.back().get());
  }
  InProcessOperation& operation = *free_.back();
  free_.pop_back();
  operation.reset();
  operation.in_row_ = false;
  return operation;
}

void InProcessRoom::recycle(InProcessOperation& operation) {
  const auto lock = enter();
  free_.push_back(&operation);
}

Pending InProcessRoom::start(int rank, const CommunicatorCall& call) {
  return call.is_collective() ? start_collective(rank, call) : start_message(rank, call);
}

// --- collectives

Pending InProcessRoom::start_collective(int rank, const CommunicatorCall& call) {
  Seat& mine = seat(rank);
  InProcessOperation& operation = *mine.next.load(std::memory_order_relaxed);
  if (is_broken_.load(std::memory_order_acquire)) return refuse_collective(rank, call);
  // All that may fail comes before the others can see this call.
  InProcessOperation* next = operation.next_.load(std::memory_order_acquire);
  if (next == nullptr) {
    const auto lock = enter();
    next = &next_of(operation);
  }
  if (!write_part(operation, rank, call)) {
    mine.users.fetch_add(1, std::memory_order_relaxed);
    mine.next.store(next);
    const auto lock = enter();
    disagree(operation, rank);
    return {&operation, rank};
  }
  const std::uint32_t before = operation.arrivals_.fetch_add(1);
  if ((before & InProcessOperation::kBroken) != 0) return refuse_collective(rank, call);
  mine.users.fetch_add(1, std::memory_order_relaxed);
  mine.next.store(next);
  if (before + 1 == operation.expected_) {
    operation.begin(call);
  } else if (is_broken_.load()) {
    // Who broke the group looked for operations to fail after saying so: it saw this arrival, or is seen here.
    const auto lock = enter();
    if (stop(operation)) tell(operation, ErrorCode::kUnavailable);
  }
  return {&operation, rank};
}

// Leaves what the operation needs of this participant; false where others have called something else.
bool InProcessRoom::write_part(InProcessOperation& operation, int rank, const CommunicatorCall& call) {
  InProcessOperation::Part& part = operation.part(rank);
  part.call = call;
  part.is_computed = false;
  part.arrived.store(operation.generation_);
  if (call.deadline) operation.hasten(*call.deadline);
  const std::uint64_t signature = signature_of(call);
  std::uint64_t seen = operation.signature_.load(std::memory_order_acquire);
  if (seen == 0 && operation.signature_.compare_exchange_strong(seen, signature)) seen = signature;
  if (seen != signature) return false;
  if (call.count >= kMostCount) {
    for (const InProcessOperation::Part& other : operation.parts_) {
      if (other.arrived.load() == operation.generation_ && other.call.count != call.count) return false;
    }
  }
  if (operation.is_small(call)) {
    operation.stage(rank);
  } else {
    operation.inputs_[static_cast<std::size_t>(rank)] = call.in;
    operation.outputs_[static_cast<std::size_t>(rank)] = call.out;
  }
  return true;
}

// The next in the row. At its end several are added at once: what it costs to make them ready is paid once for all of them.
InProcessOperation& InProcessRoom::next_of(InProcessOperation& operation) {
  if (InProcessOperation* next = operation.next_.load(std::memory_order_relaxed)) return *next;
  InProcessOperation* first = nullptr;
  InProcessOperation* last = nullptr;
  for (int i = 0; i < kOperationsAtOnce; ++i) {
    InProcessOperation& fresh = fresh_for_row();
    fresh.number_ = (last == nullptr ? operation : *last).number_ + 1;
    if (last == nullptr) {
      first = &fresh;
    } else {
      last->next_.store(&fresh, std::memory_order_relaxed);
    }
    last = &fresh;
  }
  operation.next_.store(first);
  return *first;
}

// The oldest that all have released, or one more. Those that somebody keeps for long are passed over until it is their turn again.
InProcessOperation& InProcessRoom::fresh_for_row() {
  const auto end = row_.begin() + static_cast<std::ptrdiff_t>(std::min(row_.size(), kOperationsLookedAt));
  const auto found =
      std::find_if(row_.begin(), end, [](const auto* operation) { return operation->is_released(); });
  if (found != end) {
    std::rotate(row_.begin(), found + 1, row_.end());
    row_.back()->reset();
    return *row_.back();
  }
  InProcessOperation& fresh = take();
  fresh.in_row_ = true;
  fresh.expected_ = static_cast<std::uint32_t>(size_);
  row_.push_back(&fresh);
  return fresh;
}

// Who waits has the time to see to it that the row goes on.
void InProcessRoom::look_ahead(InProcessOperation& operation) {
  InProcessOperation* next = operation.next_.load(std::memory_order_acquire);
  if (next->next_.load(std::memory_order_relaxed) != nullptr) return;
  const auto lock = enter();
  try {
    next_of(*next);
  } catch (const std::bad_alloc&) {
    // Whoever needs it tries again.
  }
}

// --- messages

Pending InProcessRoom::start_message(int rank, const CommunicatorCall& call) {
  InProcessOperation* operation = nullptr;
  bool begins = false;
  {
    const auto lock = enter();
    if (is_broken_.load(std::memory_order_relaxed)) return refuse(rank, call);
    operation = &meet_one(rank, call);
    seat(rank).users.fetch_add(1, std::memory_order_relaxed);
    operation->users_.fetch_add(1, std::memory_order_relaxed);
    operation->part(rank).call = call;
    operation->part(rank).arrived.store(operation->generation_);
    operation->inputs_[static_cast<std::size_t>(rank)] = call.in;
    operation->outputs_[static_cast<std::size_t>(rank)] = call.out;
    if (operation->call_.dtype != call.dtype || operation->call_.count != call.count) {
      disagree(*operation, rank);
      return {operation, rank};
    }
    begins = operation->arrivals_.fetch_add(1) + 1 == operation->expected_;
    if (begins) messages_[operation->sender_ * count() + operation->receiver_].pop_front();
  }
  if (begins) {
    operation->begin(operation->call_);
    if (operation->is_small(call)) operation->help(rank);  // not worth waking anybody
  } else if (call.deadline) {
    operation->hasten(*call.deadline);
  }
  return {operation, rank};
}

// Of the messages from one participant to another, either the sends are ahead or the receives.
InProcessOperation& InProcessRoom::meet_one(int rank, const CommunicatorCall& call) {
  const bool sends = call.kind == Kind::kSend;
  const auto sender = static_cast<std::size_t>(sends ? rank : call.peer);
  const auto receiver = static_cast<std::size_t>(sends ? call.peer : rank);
  std::deque<InProcessOperation*>& queue = messages_[sender * count() + receiver];
  if (queue.empty() || queue.front()->call_.kind == call.kind) {
    InProcessOperation& fresh = take();
    fresh.call_ = call;
    fresh.first_ = rank;
    fresh.sender_ = sender;
    fresh.receiver_ = receiver;
    fresh.expected_ = 2;
    queue.push_back(&fresh);
    return fresh;
  }
  return *queue.front();
}

// --- failures

// For a call that comes after the group broke: an operation that has failed already.
Pending InProcessRoom::refuse(int rank, const CommunicatorCall& call, ErrorCode code) {
  std::string message = str(to_string(call), " by participant ", rank, ": ", broken_message_);
  InProcessOperation& operation = take();
  operation.users_.store(1, std::memory_order_relaxed);
  operation.failure_code_ = code;
  operation.failure_message_ = std::move(message);
  operation.state_.store(State::kFailed, std::memory_order_release);
  seat(rank).users.fetch_add(1, std::memory_order_relaxed);
  return {&operation, rank};
}

// Those who have yet to make the collective call that broke the group learn of it as the others did.
Pending InProcessRoom::refuse_collective(int rank, const CommunicatorCall& call) {
  const auto lock = enter();
  Seat& mine = seat(rank);
  InProcessOperation& operation = *mine.next.load(std::memory_order_relaxed);
  const auto number = static_cast<std::int64_t>(operation.number_);
  if (number <= fault_number_) mine.next.store(&next_of(operation));
  return refuse(rank, call, number == fault_number_ ? broken_code_ : ErrorCode::kUnavailable);
}

void InProcessRoom::disagree(InProcessOperation& operation, int rank) {
  const CommunicatorCall& call = operation.part(rank).call;
  int other = 0;
  const auto agrees = [&] {
    const auto place = static_cast<std::size_t>(other);
    if (other == rank || !operation.has_arrived(place)) return true;
    const CommunicatorCall& its = operation.parts_[place].call;
    return operation.in_row_ && signature_of(its) == signature_of(call) && its.count == call.count;
  };
  while (agrees()) ++other;
  std::string message = "calls disagree";  // where there is no memory for more
  try {
    message = str("the calls do not agree: participant ", other, " called ",
                  to_string(operation.part(other).call), ", participant ", rank, " called ", to_string(call),
                  operation.in_row_ ? str(" as collective number ", operation.number_) : std::string(),
                  "; all participants have to make the same calls in the same order");
  } catch (const std::bad_alloc&) {
  }
  break_up(ErrorCode::kInvalidArgument, &operation, std::move(message));
  // Where the group was broken before.
  if (stop(operation)) tell(operation, ErrorCode::kUnavailable);
}

void InProcessRoom::break_up(ErrorCode code, InProcessOperation* at_fault, std::string message) {
  if (is_broken_.load(std::memory_order_relaxed)) return;
  if (at_fault != nullptr && !stop(*at_fault)) return;  // it has begun after all
  broken_code_ = code;
  broken_message_ = std::move(message);
  if (at_fault != nullptr && at_fault->in_row_) fault_number_ = static_cast<std::int64_t>(at_fault->number_);
  is_broken_.store(true);
  if (at_fault != nullptr) tell(*at_fault, code);
  const auto fail = [this](InProcessOperation& operation) {
    if (stop(operation)) tell(operation, ErrorCode::kUnavailable);
  };
  for (const Seat& seat : seats_) {
    for (InProcessOperation* operation = seat.next.load(); operation != nullptr;
         operation = operation->next_.load())
      fail(*operation);
  }
  for (auto& [ends, queue] : messages_) {
    for (InProcessOperation* operation : queue) fail(*operation);
    queue.clear();
  }
}

bool InProcessRoom::stop(InProcessOperation& operation) {
  return operation.arrivals_.fetch_or(InProcessOperation::kBroken) < operation.expected_;
}

void InProcessRoom::tell(InProcessOperation& operation, ErrorCode code) {
  operation.failure_code_ = code;
  try {
    operation.failure_message_ = str(operation.name(), ": ", broken_message_);
  } catch (const std::bad_alloc&) {
    operation.failure_message_.clear();  // better without words than not at all
  }
  operation.state_.store(State::kFailed);
  operation.changed_.notify_all();
}

void InProcessRoom::pass_deadline(InProcessOperation& operation) {
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    const auto place = static_cast<std::size_t>(rank);
    const bool expected = operation.in_row_ || place == operation.sender_ || place == operation.receiver_;
    if (expected && !operation.has_arrived(place)) missing.push_back(rank);
  }
  if (missing.empty()) return;
  break_up(ErrorCode::kDeadlineExceeded, &operation,
           str("the deadline passed before ", list_of(missing), " of ", size_,
               missing.size() == 1 ? " had" : " had all", " called it; the group is broken, make a new one"));
}

void InProcessRoom::withdraw(InProcessOperation& operation, int rank) {
  const auto lock = enter();
  if (operation.state_.load() != State::kGathering) return;
  break_up(ErrorCode::kUnavailable, &operation,
           str("participant ", rank, " gave up ", to_string(operation.part(rank).call),
               " before all had called it"));
}

void InProcessRoom::lose(int rank, const std::string& why) {
  const auto lock = enter();
  break_up(ErrorCode::kUnavailable, nullptr, str("participant ", rank, " of ", size_, " ", why));
}

// --- coming and going

void InProcessRoom::claim(int rank) {
  const auto lock = enter();
  Seat& mine = seat(rank);
  if (mine.joined) {
    throw FailedPrecondition(str("InProcessGroup::join(", rank,
                                 "): this participant has joined before; make a new group to start again"));
  }
  mine.joined = true;
  mine.keeps = shared_from_this();
  mine.users.store(1, std::memory_order_relaxed);
}

void InProcessRoom::leave(int rank) {
  Seat& mine = seat(rank);
  if (mine.users.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  const std::shared_ptr<InProcessRoom> last = std::move(mine.keeps);
}

// Those who have not joined never will.
void InProcessRoom::shut() {
  std::vector<int> absent;
  {
    const auto lock = enter();
    for (int rank = 0; rank < size_; ++rank) {
      if (!seat(rank).joined) absent.push_back(rank);
    }
  }
  if (!absent.empty()) lose(absent.front(), "never joined: its group was destroyed");
}

// --- the participants

namespace {

class InProcessCommunicator final : public Communicator {
 public:
  InProcessCommunicator(InProcessRoom& room, int rank) : room_(room), rank_(rank) { room.claim(rank); }
  ~InProcessCommunicator() override {
    leave("left the group: its communicator was destroyed");
    room_.leave(rank_);
  }

  int rank() const override { return rank_; }
  int size() const override { return room_.size(); }
  void close() override { leave("left the group: it closed its communicator"); }

 protected:
  Pending start(const CommunicatorCall& call) override {
    if (is_closed_) throw FailedPrecondition(str(to_string(call), ": this communicator is closed"));
    return room_.start(rank_, call);
  }

 private:
  void leave(const char* why) {
    if (!is_closed_) room_.lose(rank_, why);
    is_closed_ = true;
  }

  InProcessRoom& room_;  // which its seat keeps
  int rank_;
  bool is_closed_ = false;
};

void check_rank(const char* what, int rank, int size) {
  if (rank >= 0 && rank < size) return;
  throw InvalidArgument(
      str("InProcessGroup::", what, ": there is no participant ", rank, "; the group has ", size));
}

}  // namespace

InProcessGroup::InProcessGroup(int participants) {
  if (participants < 1)
    throw InvalidArgument(str("InProcessGroup: expected at least one participant, got ", participants));
  if (participants > kMostParticipants) {
    throw InvalidArgument(
        str("InProcessGroup: expected at most ", kMostParticipants, " participants, got ", participants));
  }
  room_ = std::make_shared<InProcessRoom>(participants);
}

InProcessGroup::~InProcessGroup() { room_->shut(); }

int InProcessGroup::size() const { return room_->size(); }

std::unique_ptr<Communicator> InProcessGroup::join(int rank) {
  check_rank("join", rank, size());
  return std::make_unique<InProcessCommunicator>(*room_, rank);
}

void InProcessGroup::declare_lost(int rank, const std::string& why) {
  check_rank("declare_lost", rank, size());
  room_->lose(rank, str("was declared lost: ", why));
}

}  // namespace lockstep
