// core/communicators/in_process_room.cpp - which calls meet in one operation, and what happens if they do
// not.
#include "lockstep/core/communicators/internal/in_process_room.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/base/pause.h"
#include "lockstep/core/error.h"

namespace lockstep::internal {
namespace {

using Kind = CommunicatorCall::Kind;

constexpr int kOperationsAtOnce = 4;            // added to the row together
constexpr std::size_t kOperationsLookedAt = 8;  // when looking for one that is free again

// The arguments that have to be the same for all participants, packed into a word that is never 0. Counts
// from kMostCount on do not fit and are compared by write_part().
constexpr std::int64_t kMostCount = 0xFFFF'FFFF;
std::uint64_t signature_of(const CommunicatorCall& call) {
  const auto count = static_cast<std::uint64_t>(std::min(call.count, kMostCount));
  return 1U | static_cast<std::uint64_t>(call.kind) << 1 | static_cast<std::uint64_t>(call.op) << 4 |
         static_cast<std::uint64_t>(call.dtype) << 8 | static_cast<std::uint64_t>(call.memory) << 12 |
         static_cast<std::uint64_t>(call.is_agreement) << 13 |
         static_cast<std::uint64_t>(call.kind == Kind::kAllReduce ? call.parts : call.peer + 1) << 16 |
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

}  // namespace

InProcessRoom::InProcessRoom(int participants)
    : size_(participants),
      seats_(count()),
      processors_(std::max(1U, std::thread::hardware_concurrency())),
      spins_(count() <= processors_) {
  InProcessOperation& first = fresh_for_row();
  for (Seat& seat : seats_) seat.next.store(&first, std::memory_order_relaxed);
}

InProcessRoom::~InProcessRoom() = default;

// The mutex is held for a few hundred instructions only, so it pays to spin for a while.
std::unique_lock<std::mutex> InProcessRoom::enter() {
  std::unique_lock lock(mutex_, std::defer_lock);
  for (int i = 0; spins_ && i < 64; ++i) {
    if (lock.try_lock()) return lock;
    internal::pause_briefly();
  }
  lock.lock();
  return lock;
}

InProcessOperation& InProcessRoom::take() {
  if (free_.empty()) {
    all_.push_back(std::make_unique<InProcessOperation>(*this));
    free_.reserve(all_.size());  // room for all to come back
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
    // The participant that broke the group set is_broken_ before it looked for operations to fail: either it
    // saw this arrival, or is_broken_ is seen here.
    const auto lock = enter();
    if (stop(operation)) tell(operation, ErrorCode::kUnavailable);
  }
  return {&operation, rank};
}

// Records what the operation needs from this participant; false if others have called something else.
bool InProcessRoom::write_part(InProcessOperation& operation, int rank, const CommunicatorCall& call) {
  InProcessOperation::Part& part = operation.part(rank);
  part.call = call;
  part.is_computed = false;
  part.reduced.resize(operation.parts_.size() * static_cast<std::size_t>(call.parts));
  part.arrived.store(operation.generation_);
  if (call.deadline) operation.hasten(*call.deadline);
  if (call.kind == Kind::kDecline) {
    operation.is_declined_.store(true);
    return true;
  }
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

// The next operation in the row. At the end of the row several are added at once, so that the cost of
// preparing them is paid once for all of them.
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

// The oldest operation that all participants have released, or a new one. Operations that a participant keeps
// for long are skipped until it is their turn again.
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

// A participant that waits has the time to extend the row for the next ones.
void InProcessRoom::look_ahead(InProcessOperation& operation) {
  InProcessOperation* next = operation.next_.load(std::memory_order_acquire);
  if (next->next_.load(std::memory_order_relaxed) != nullptr) return;
  const auto lock = enter();
  try {
    next_of(*next);
  } catch (const std::bad_alloc&) {
    // The participant that needs it tries again.
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

// A participant that makes the collective call at fault only now gets the same code as the others did.
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
    if (its.kind == Kind::kDecline) return true;
    return operation.in_row_ && signature_of(its) == signature_of(call) && its.count == call.count;
  };
  while (agrees()) ++other;
  std::string message = "calls disagree";  // if there is no memory for more
  try {
    message = str("the calls do not agree: participant ", other, " called ",
                  to_string(operation.part(other).call), ", participant ", rank, " called ", to_string(call),
                  operation.in_row_ ? str(" as collective number ", operation.number_) : std::string(),
                  "; all participants have to make the same calls in the same order");
  } catch (const std::bad_alloc&) {
  }
  break_up(ErrorCode::kInvalidArgument, &operation, std::move(message));
  // If the group was broken before, break_up() did nothing.
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
    operation.failure_message_.clear();  // better without a message than not at all
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

// Participants that have not joined never will.
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

}  // namespace lockstep::internal
