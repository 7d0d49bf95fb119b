// core/communicators/in_process_operation.cpp - one operation of a group, from the first call to the last
// release.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

#include "lockstep/core/base/pause.h"
#include "lockstep/core/communicators/internal/in_process_room.h"
#include "lockstep/core/error.h"

namespace lockstep::internal {
namespace {

using Kind = CommunicatorCall::Kind;
using std::chrono::steady_clock;

// Bytes of a chunk in one array: small chunks let all participants end together, large ones are read as
// streams.
constexpr std::int64_t kLineBytes = 64, kLeastChunk = 16 << 10, kMostChunk = 64 << 10;
// Bytes of all inputs together up to which they are staged. If participants spin, staging costs less than
// meeting twice; otherwise less than waking a thread.
constexpr std::int64_t kStagedBytes = 4 << 10, kMostStagedBytes = 32 << 10;
// Bytes of one source that are copied to all destinations while they are in the cache.
constexpr std::int64_t kCopyBlockBytes = 8 << 10;
constexpr int kSpins = 100;  // a few microseconds
constexpr auto kYieldTime = std::chrono::microseconds(50);

// The processor that this thread runs on just now; `otherwise` if the system does not say. The numbers have
// gaps if the process may not use some processors.
std::size_t this_processor([[maybe_unused]] int otherwise) {
#if defined(__linux__)
  otherwise = sched_getcpu();
#endif
  return static_cast<std::size_t>(std::max(otherwise, 0));
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

InProcessOperation::InProcessOperation(InProcessRoom& room)
    : room_(room),
      parts_(room.count()),
      inputs_(room.count()),
      outputs_(room.count()),
      shares_(std::min(room.count(), room.processors_)),
      staging_(static_cast<std::size_t>(kMostStagedBytes) / sizeof(Line) + room.count()) {
  for (Part& part : parts_) part.reduced.resize(room.count());
}

void InProcessOperation::reset() {
  ++generation_;
  users_.store(0, std::memory_order_relaxed);
  failure_message_.clear();
  is_declined_.store(false, std::memory_order_relaxed);
  declined_by_ = -1;
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
  const bool is_empty = call.kind == Kind::kBarrier || call.kind == Kind::kDecline || call.is_agreement;
  return is_empty ? 0 : call.count * (in_parts ? room_.size() : 1);
}

bool InProcessOperation::is_small(const CommunicatorCall& call) const {
  if (call.count > kMostStagedBytes && !call.is_agreement) return false;  // its bytes might overflow an int64
  const std::int64_t bytes = elements_of(call) * call.parts * static_cast<std::int64_t>(size_of(call.dtype));
  return bytes * (call.is_collective() ? room_.size() : 1) <=
         (room_.spins_ ? kStagedBytes : kMostStagedBytes);
}

// --- small collectives

// The copy of its input that a participant leaves for all: whole cache lines, which nobody else writes.
std::byte* InProcessOperation::staged(std::size_t place, const CommunicatorCall& call) {
  const std::int64_t elements = call.kind == Kind::kAllGather ? call.count : elements_of(call) * call.parts;
  const std::size_t bytes = static_cast<std::size_t>(elements) * size_of(call.dtype);
  return staging_[place * ((bytes + sizeof(Line) - 1) / sizeof(Line))].bytes.data();
}

void InProcessOperation::stage(int rank) {
  const CommunicatorCall& call = part(rank).call;
  if (call.is_agreement) return;
  const std::int64_t elements = call.kind == Kind::kAllGather ? call.count : elements_of(call) * call.parts;
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
    const auto arrays = static_cast<std::size_t>(call.parts);
    for (std::size_t i = 0; i < mine.reduced.size(); ++i)
      mine.reduced[i] = staged(i / arrays, call) + offset + i % arrays * bytes;
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
    case Kind::kDecline:
    case Kind::kSend:
    case Kind::kReceive: break;
  }
  mine.is_computed = true;
}

// --- the others

void InProcessOperation::begin(const CommunicatorCall& call) {
  if (is_declined_.load()) return end_declined();
  call_ = call;
  elements_ = elements_of(call);
  if (elements_ == 0) return change_to(State::kDone);
  if (call.is_collective() && is_small(call)) return change_to(State::kStaged);
  cut();
  change_to(State::kRunning);
}

// Of the reasons, the first by rank.
void InProcessOperation::end_declined() {
  int rank = 0;
  while (part(rank).call.kind != Kind::kDecline) ++rank;
  const CommunicatorCall& call = part(rank).call;
  declined_by_ = rank;
  failure_code_ = call.reason;
  try {
    failure_message_.assign(static_cast<const char*>(call.in), static_cast<std::size_t>(call.count));
  } catch (const std::bad_alloc&) {
    failure_message_.clear();
  }
  change_to(State::kFailed);
}

// Chunks are whole cache lines if the arrays are, and every share has a chunk if there are enough lines.
void InProcessOperation::cut() {
  const auto size = static_cast<std::int64_t>(size_of(call_.dtype));
  const auto shares = static_cast<std::int64_t>(shares_.size());
  const std::int64_t bytes = elements_ * size;
  const auto whole = [](std::int64_t some, std::int64_t unit) { return (some + unit - 1) / unit * unit; };
  const std::int64_t chunk_bytes =
      bytes <= kLeastChunk * shares
          ? whole((bytes + shares - 1) / shares, kLineBytes)
          : std::clamp(bytes / (32 * shares) / kLeastChunk * kLeastChunk, kLeastChunk, kMostChunk);
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
    case Kind::kAllReduce: {
      if (call_.parts == 1)
        return kernels::reduce_replicas(call_.op, call_.dtype, inputs_, outputs_, begin, end);
      std::vector<const void*>& inputs = parts_[static_cast<std::size_t>(rank)].reduced;
      const auto arrays = static_cast<std::size_t>(call_.parts);
      for (std::size_t i = 0; i < inputs.size(); ++i)
        inputs[i] = offset(inputs_[i / arrays], static_cast<std::int64_t>(i % arrays) * call_.count);
      return kernels::reduce_replicas(call_.op, call_.dtype, inputs, outputs_, begin, end);
    }
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
    case Kind::kBarrier:
    case Kind::kDecline: return;
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
  const std::size_t first = room_.spins_ ? static_cast<std::size_t>(rank) : this_processor(rank);
  for (std::size_t k = 0; k < shares_.size() && mine < most; ++k) {
    Share& share = shares_[(first + k) % shares_.size()];
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
  // A thread that counts itself as a sleeper after this sees the new state.
  if (sleepers_.load() > 0) {
    { const std::lock_guard lock(room_.mutex_); }
    changed_.notify_all();
  }
}

// First at full speed, if every participant can have a processor; then yielding, since the participant that
// it waits for may need this processor.
bool InProcessOperation::spin_while(State state) const {
  for (int i = 0; i < (room_.spins_ ? kSpins : 1); ++i) {
    if (state_.load(std::memory_order_acquire) != state) return true;
    internal::pause_briefly();
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
      // The last participant is arriving at this very moment.
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

// The earliest deadline holds, also for participants that sleep until a later one.
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

// Perhaps no participant is inside wait(), where it would notice that the deadline has passed.
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
  if (state != State::kFailed) return;
  if (declined_by_ >= 0) throw Declined(failure_code_, declined_by_, failure_message_);
  throw_error(failure_code_, failure_message_);
}

void InProcessOperation::release(int rank) noexcept {
  if (state_.load(std::memory_order_acquire) == State::kGathering) {
    room_.withdraw(*this, rank);
    // If the withdrawal came too late, the operation begins any moment.
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

}  // namespace lockstep::internal
