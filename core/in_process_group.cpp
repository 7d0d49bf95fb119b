#include "lockstep/core/in_process_group.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/internal/in_process_room.h"

namespace lockstep {
namespace {

using Kind = CommunicatorCall::Kind;
using std::chrono::steady_clock;

// Of a chunk, in one array: small ones end together, large ones are streams.
constexpr std::int64_t kLeastChunk = 16 << 10, kMostChunk = 64 << 10;
constexpr std::int64_t kSmallTraffic = 64 << 10;  // bytes read and written: less than waking somebody costs
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

bool agree(const CommunicatorCall& a, const CommunicatorCall& b) {
  return a.kind == b.kind && a.op == b.op && a.dtype == b.dtype && a.count == b.count && a.peer == b.peer;
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
      inputs_(room.count()),
      outputs_(room.count()),
      arrived_(room.count()),
      shares_(room.count()) {}

void InProcessOperation::reset() {
  std::fill(inputs_.begin(), inputs_.end(), nullptr);
  std::fill(outputs_.begin(), outputs_.end(), nullptr);
  std::fill(arrived_.begin(), arrived_.end(), false);
  arrivals_ = 0;
  failure_message_.clear();
  deadline_.store(kNoDeadline, std::memory_order_relaxed);
  state_.store(State::kGathering, std::memory_order_relaxed);
}

std::string InProcessOperation::name() const {
  if (call_.is_collective()) return str(to_string(call_), ", collective number ", number_);
  const bool sends = call_.kind == Kind::kSend;
  return str(sends ? "send" : "receive", "(", call_.dtype, ", ", call_.count, ") from participant ",
             sends ? first_ : call_.peer, " to ", sends ? call_.peer : first_);
}

// Chunks are whole cache lines where the arrays are.
void InProcessOperation::cut() {
  const auto size = static_cast<std::int64_t>(size_of(call_.dtype));
  const bool in_parts = call_.kind == Kind::kAllGather || call_.kind == Kind::kReduceScatter;
  elements_ = call_.kind == Kind::kBarrier ? 0 : call_.count * (in_parts ? room_.size() : 1);
  const std::int64_t arrays = call_.is_collective() ? 2 * room_.size() : 2;
  small_ = elements_ * size * arrays <= kSmallTraffic;
  if (small_) return;
  const std::int64_t fair = elements_ * size / (32 * static_cast<std::int64_t>(shares_.size()));
  chunk_ = (room_.spins_ ? std::clamp(fair, kLeastChunk, kMostChunk) : kMostChunk) / kLeastChunk *
           kLeastChunk / size;
  const std::int64_t chunks = (elements_ + chunk_ - 1) / chunk_;
  const auto shares = static_cast<std::int64_t>(shares_.size());
  for (std::int64_t s = 0; s < shares; ++s) {
    Share& share = shares_[static_cast<std::size_t>(s)];
    share.next.store(chunks * s / shares, std::memory_order_relaxed);
    share.end = chunks * (s + 1) / shares;
  }
  left_.store(chunks, std::memory_order_relaxed);
}

void InProcessOperation::compute(std::int64_t begin, std::int64_t end) {
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
      SmallVector<const void*, 16> inputs;
      for (const void* input : inputs_) inputs.push_back(offset(input, base));
      kernels::reduce_replicas(call_.op, call_.dtype, {inputs.data(), inputs.size()}, outputs_[owner],
                               begin - base, stop - base);
    }
    begin = stop;
  }
}

void InProcessOperation::help(int rank, std::int64_t most) {
  if (small_) return;  // done in a moment by the last who called
  std::int64_t mine = 0;
  for (std::size_t k = 0; k < shares_.size() && mine < most; ++k) {
    Share& share = shares_[(static_cast<std::size_t>(rank) + k) % shares_.size()];
    while (mine < most && share.next.load(std::memory_order_relaxed) < share.end) {
      const std::int64_t chunk = share.next.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= share.end) break;
      compute(chunk * chunk_, std::min(elements_, (chunk + 1) * chunk_));
      ++mine;
    }
  }
  if (mine > 0 && left_.fetch_sub(mine, std::memory_order_acq_rel) == mine) complete();
}

void InProcessOperation::complete() {
  state_.store(State::kDone);
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
    } else if (steady_clock::now() >= deadline) {
      room_.pass_deadline(*this);
    } else {
      changed_.wait_until(lock, deadline);
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

// Nobody may be waiting who would see the deadline pass.
void InProcessOperation::look_at_clock() {
  const auto deadline = deadline_.load(std::memory_order_relaxed);
  if (deadline == kNoDeadline || steady_clock::now() < deadline) return;
  const auto lock = room_.enter();
  if (state_.load() == State::kGathering) room_.pass_deadline(*this);
}

bool InProcessOperation::done(int rank) {
  if (state_.load(std::memory_order_acquire) == State::kGathering) look_at_clock();
  if (state_.load(std::memory_order_acquire) == State::kRunning) help(rank, 1);
  const State state = state_.load(std::memory_order_acquire);
  return state == State::kDone || state == State::kFailed;
}

void InProcessOperation::wait(int rank) {
  if (state_.load(std::memory_order_acquire) == State::kGathering) await_begin();
  if (state_.load(std::memory_order_acquire) == State::kRunning) await_end(rank);
  if (state_.load(std::memory_order_acquire) == State::kFailed) throw_error(failure_code_, failure_message_);
}

void InProcessOperation::release(int rank) noexcept {
  if (state_.load(std::memory_order_acquire) == State::kGathering) room_.withdraw(*this, rank);
  if (state_.load(std::memory_order_acquire) == State::kRunning) await_end(rank);
  let_go();
}

void InProcessOperation::let_go() {
  if (users_.fetch_sub(1, std::memory_order_acq_rel) == 1) room_.recycle(*this);
}

// --- the room

InProcessRoom::InProcessRoom(int participants)
    : size_(participants),
      joined_(count()),
      next_number_(count()),
      spins_(count() <= std::max(1U, std::thread::hardware_concurrency())) {}

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
  InProcessOperation* spare = spare_.exchange(nullptr, std::memory_order_acquire);
  if (spare == nullptr && free_.empty()) {
    all_.push_back(std::make_unique<InProcessOperation>(*this));
    free_.push_back(all_.back().get());
  }
  if (spare == nullptr) {
    spare = free_.back();
    free_.pop_back();
  }
  InProcessOperation& operation = *spare;
  operation.reset();
  operation.keeps_ = shared_from_this();
  operation.users_.store(1, std::memory_order_relaxed);
  return operation;
}

void InProcessRoom::recycle(InProcessOperation& operation) {
  // May be the last who keeps the room.
  const std::shared_ptr<InProcessRoom> keeps = std::move(operation.keeps_);
  InProcessOperation* none = nullptr;
  if (spare_.compare_exchange_strong(none, &operation, std::memory_order_acq_rel)) return;
  const auto lock = enter();
  free_.push_back(&operation);
}

Pending InProcessRoom::start(int rank, const CommunicatorCall& call) {
  InProcessOperation* operation = nullptr;
  bool begins = false;
  {
    const auto lock = enter();
    if (is_broken_) {
      operation = &take();
      const bool at_fault =
          call.is_collective() && next_number_[static_cast<std::size_t>(rank)]++ == broken_number_;
      operation->failure_code_ = at_fault ? broken_code_ : ErrorCode::kUnavailable;
      operation->failure_message_ = str(to_string(call), " by participant ", rank, ": ", broken_message_);
      operation->state_.store(State::kFailed, std::memory_order_release);
      return {operation, rank};
    }
    operation = call.is_collective() ? &meet_all(rank, call) : &meet_one(rank, call);
    begins = arrive(*operation, rank, call);
  }
  if (begins && operation->small_ && operation->elements_ > 0) {
    operation->compute(0, operation->elements_);
    operation->complete();
  }
  return {operation, rank};
}

// The operation that this participant's next collective belongs to.
InProcessOperation& InProcessRoom::meet_all(int rank, const CommunicatorCall& call) {
  const std::uint64_t number = next_number_[static_cast<std::size_t>(rank)]++;
  const std::size_t place = static_cast<std::size_t>(number - first_number_);
  if (place == gathering_.size()) {
    InProcessOperation& fresh = take();
    fresh.call_ = call;
    fresh.first_ = rank;
    fresh.number_ = number;
    fresh.expected_ = count();
    gathering_.push_back(&fresh);
  }
  return *gathering_[place];
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

bool InProcessRoom::arrive(InProcessOperation& operation, int rank, const CommunicatorCall& call) {
  const auto place = static_cast<std::size_t>(rank);
  operation.inputs_[place] = call.in;
  operation.outputs_[place] = call.out;
  operation.arrived_[place] = true;
  ++operation.arrivals_;
  // The last takes over the room's use. Until then users change under the mutex alone.
  if (operation.arrivals_ < operation.expected_)
    operation.users_.store(static_cast<int>(operation.arrivals_) + 1, std::memory_order_relaxed);
  const CommunicatorCall& first = operation.call_;
  const bool same = call.is_collective() ? agree(first, call)
                                         : operation.arrivals_ == 1 ||
                                               (first.dtype == call.dtype && first.count == call.count);
  if (!same) {
    break_up(ErrorCode::kInvalidArgument, &operation,
             str("the calls do not agree: participant ", operation.first_, " called ", to_string(first),
                 ", participant ", rank, " called ", to_string(call),
                 call.is_collective() ? str(" as collective number ", operation.number_) : std::string(),
                 "; all participants have to make the same calls in the same order"));
    return false;
  }
  if (call.deadline && *call.deadline < operation.deadline_.load()) {
    operation.deadline_.store(*call.deadline);
    if (operation.sleepers_.load() > 0) operation.changed_.notify_all();
  }
  if (operation.arrivals_ < operation.expected_) return false;

  // Participants come in order, so the first to be complete is the first of its row.
  if (call.is_collective()) {
    gathering_.pop_front();
    ++first_number_;
  } else {
    messages_[operation.sender_ * count() + operation.receiver_].pop_front();
  }
  operation.cut();
  operation.state_.store(operation.elements_ == 0 ? State::kDone : State::kRunning);
  if (operation.sleepers_.load() > 0 && (operation.elements_ == 0 || !operation.small_))
    operation.changed_.notify_all();
  return true;
}

void InProcessRoom::break_up(ErrorCode code, const InProcessOperation* at_fault, const std::string& message) {
  if (is_broken_) return;
  is_broken_ = true;
  broken_code_ = code;
  broken_message_ = message;
  // Those who have yet to make the call that broke the group learn of it as the others did.
  if (at_fault != nullptr && at_fault->call_.is_collective()) broken_number_ = at_fault->number_;
  std::vector<InProcessOperation*> waiting(gathering_.begin(), gathering_.end());
  gathering_.clear();
  for (auto& [ends, queue] : messages_) {
    waiting.insert(waiting.end(), queue.begin(), queue.end());
    queue.clear();
  }
  for (InProcessOperation* operation : waiting) {
    operation->failure_code_ = operation == at_fault ? code : ErrorCode::kUnavailable;
    operation->failure_message_ = str(operation->name(), ": ", message);
    operation->users_.store(static_cast<int>(operation->arrivals_), std::memory_order_relaxed);
    operation->state_.store(State::kFailed);
    operation->changed_.notify_all();
  }
}

void InProcessRoom::pass_deadline(InProcessOperation& operation) {
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    const auto place = static_cast<std::size_t>(rank);
    const bool expected =
        operation.call_.is_collective() || place == operation.sender_ || place == operation.receiver_;
    if (expected && !operation.arrived_[place]) missing.push_back(rank);
  }
  break_up(ErrorCode::kDeadlineExceeded, &operation,
           str("the deadline passed before ", list_of(missing), " of ", size_,
               missing.size() == 1 ? " had" : " had all", " called it; the group is broken, make a new one"));
}

void InProcessRoom::withdraw(InProcessOperation& operation, int rank) {
  const auto lock = enter();
  if (operation.state_.load() != State::kGathering) return;
  break_up(ErrorCode::kUnavailable, &operation,
           str("participant ", rank, " gave up ", to_string(operation.call_), " before all had called it"));
}

void InProcessRoom::lose(int rank, const std::string& why) {
  const auto lock = enter();
  break_up(ErrorCode::kUnavailable, nullptr, str("participant ", rank, " of ", size_, " ", why));
}

void InProcessRoom::claim(int rank) {
  const auto lock = enter();
  if (joined_[static_cast<std::size_t>(rank)]) {
    throw FailedPrecondition(str("InProcessGroup::join(", rank,
                                 "): this participant has joined before; make a new group to start again"));
  }
  joined_[static_cast<std::size_t>(rank)] = true;
}

// Those who have not joined never will.
void InProcessRoom::shut() {
  std::vector<int> absent;
  {
    const auto lock = enter();
    for (int rank = 0; rank < size_; ++rank) {
      if (!joined_[static_cast<std::size_t>(rank)]) absent.push_back(rank);
    }
  }
  if (!absent.empty()) lose(absent.front(), "never joined: its group was destroyed");
}

// --- the participants

namespace {

class InProcessCommunicator final : public Communicator {
 public:
  InProcessCommunicator(std::shared_ptr<InProcessRoom> room, int rank)
      : room_(std::move(room)), rank_(rank) {}
  ~InProcessCommunicator() override { leave("left the group: its communicator was destroyed"); }

  int rank() const override { return rank_; }
  int size() const override { return room_->size(); }
  void close() override { leave("left the group: it closed its communicator"); }

 protected:
  Pending start(const CommunicatorCall& call) override {
    if (is_closed_) throw FailedPrecondition(str(to_string(call), ": this communicator is closed"));
    return room_->start(rank_, call);
  }

 private:
  void leave(const char* why) {
    if (!is_closed_) room_->lose(rank_, why);
    is_closed_ = true;
  }

  std::shared_ptr<InProcessRoom> room_;
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
  room_ = std::make_shared<InProcessRoom>(participants);
}

InProcessGroup::~InProcessGroup() { room_->shut(); }

int InProcessGroup::size() const { return room_->size(); }

std::unique_ptr<Communicator> InProcessGroup::join(int rank) {
  check_rank("join", rank, size());
  room_->claim(rank);
  return std::make_unique<InProcessCommunicator>(room_, rank);
}

void InProcessGroup::declare_lost(int rank, const std::string& why) {
  check_rank("declare_lost", rank, size());
  room_->lose(rank, str("was declared lost: ", why));
}

}  // namespace lockstep
