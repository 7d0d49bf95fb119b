// core/gloo/gloo_group.cpp - a participant of a group over Gloo: its calls, its threads, and how it ends.
#include "lockstep/core/gloo/gloo_group.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/base/thread_guards.h"
#include "lockstep/core/error.h"
#include "lockstep/core/gloo/internal/exchange.h"
#include "lockstep/core/gloo/internal/mesh.h"
#include "lockstep/core/process_mark.h"

namespace lockstep {
namespace {

using internal::GlooBuffer;
using internal::GlooExchange;
using internal::GlooInterrupted;
using internal::GlooLost;
using internal::GlooMesh;
using Clock = std::chrono::steady_clock;
using Kind = CommunicatorCall::Kind;

constexpr std::chrono::seconds kLeaving{2};        // for the others to get what was sent to them
constexpr std::chrono::milliseconds kTelling{50};  // for the others to hear why the group ends
constexpr std::chrono::seconds kReason{1};     // for the reason of a loss to come, after the connection ended
constexpr std::chrono::milliseconds kLook{1};  // between two looks of a lane's thread
constexpr int kLooks = 10;                     // without anything new, before it sleeps until it is woken
constexpr int kEager = 64;  // operations that it takes at once, after one that nobody came for
constexpr std::chrono::milliseconds kMostPatience = std::chrono::hours(24 * 365);
constexpr Clock::time_point kNever = Clock::time_point::max();

// Where there may be no memory for it, no text.
template <class... Parts>
std::string text(const Parts&... parts) noexcept {
  try {
    return str(parts...);
  } catch (...) {
    return {};
  }
}

// Which call: collectives are counted, and so are the messages in each direction.
struct Place {
  std::int32_t peer = -1;  // -1: a collective
  std::int32_t sends = 0;
  std::uint64_t number = 0;

  bool operator==(const Place&) const = default;
  // What another participant calls its place, as this one calls it.
  Place told_by(int other, int self) const {
    return peer == -1 ? *this : Place{peer == self ? other : -2, 1 - sends, number};
  }
};

// Why the group is over. The call at fault gets the code; all others, and later ones, kUnavailable.
struct Failure {
  ErrorCode code = ErrorCode::kUnavailable;
  std::string why;
  std::optional<Place> at = {};
};

// What one that leaves has completed: collectives, and messages with the one that is told.
struct Completed {
  std::uint64_t collectives = 0, sends = 0, receives = 0;
};

// What participants tell each other beside their calls.
struct Notice {
  enum class Kind : std::uint32_t {
    kLeaves,  // it makes no calls any more
    kHas,     // the receiver's last collectives are complete here: it may go
    kFails,   // the group is over
  };
  Kind kind = Kind::kLeaves;
  std::uint32_t code = 0;
  std::uint32_t has_place = 0;
  Place place = {};
  Completed completed = {};
  std::array<char, 432> why = {};
};

class Member;
class Operation;

// Operations that are performed one after the other: by whoever waits for one of them, or else by the lane's thread. Under the
// member's mutex.
struct Lane {
  std::deque<std::shared_ptr<Operation>> queue;
  std::uint64_t started = 0, completed = 0;
  std::chrono::steady_clock::duration ran{0};  // operations that are over, since all had called them
  bool is_taken = false;                       // somebody performs the first of the queue
  bool runs = false;                           // its thread, so that arrays may be touched
  bool sleeps = false;                         // its thread, until it is woken
  int eager = 0;                               // its thread takes so many operations at once
  std::condition_variable wake;
  std::thread thread;
};

class Operation final : public PendingState, public internal::GlooProgress {
 public:
  enum class Phase : std::uint8_t { kQueued, kGathering, kRunning, kOver };

  Operation(std::shared_ptr<Member> member, Lane& lane, const CommunicatorCall& call, const Place& place)
      : member_(std::move(member)), lane_(lane), call_(call), place_(place) {}

  bool done(int rank) override;
  void wait(int rank) override;
  void release(int rank) noexcept override;
  void awaits(int rank) override;
  void begins() override;

 private:
  friend class Member;
  std::string name() const {
    return place_.peer == -1 ? str(to_string(call_), ", collective number ", place_.number)
                             : to_string(call_);
  }

  const std::shared_ptr<Member> member_;
  Lane& lane_;  // of the member
  const CommunicatorCall call_;
  const Place place_;
  std::shared_ptr<Operation> self_;  // while the caller has it
  // Under the member's mutex.
  Phase phase_ = Phase::kQueued;
  Clock::duration ran_before_{0};  // how long operations of the lane had run when it was started
  int awaited_ = -1;
  Clock::time_point began_ = {}, since_ = {};  // when all had called it; since when it waits for that
  std::optional<Failure> failure_;
};

// One participant. Operations under way keep it alive.
class Member : public std::enable_shared_from_this<Member> {
 public:
  Member(const GlooGroupSpec& spec, Rendezvous& rendezvous, Deadline deadline, const std::stop_token& stop)
      : spec_(spec),
        mesh_(spec, rendezvous, deadline, stop),
        exchange_(mesh_, spec.rank, spec.size),
        peers_(static_cast<std::size_t>(spec.size)) {}
  ~Member() { end_threads(); }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  const GlooGroupSpec& spec() const { return spec_; }
  void start_threads();
  Pending start(const CommunicatorCall& call);
  // The group ends, here and for those that can be told. The first reason counts.
  void fail(Failure failure) noexcept;
  void leave() noexcept;
  bool is_of_this_process() const { return process_.is_of_this_process(); }
  // Throws FailedPrecondition in a child that fork() made: the parent's connections are not its own.
  void check_process(const CommunicatorCall& call) const;
  // In such a child there are no threads, and what they left may be in any state: nothing touches it again.
  void stay() { stays_ = shared_from_this(); }

 private:
  friend class Operation;
  using Phase = Operation::Phase;

  struct Peer {
    std::optional<Completed> leaves;  // it has said so
    bool was_told = false;            // that it may go
    bool has_all = false;             // it says so, or has left
    bool is_gone = false;             // its connection has ended
    std::thread listener;
  };

  using Lock = std::unique_lock<std::mutex>;
  Lane& lane_of(const CommunicatorCall& call);
  template <class Use>
  void each_lane(const Use& use) {
    use(collectives_);
    for (auto& [key, lane] : messages_) use(lane);
  }
  void attend(Lane& lane);
  void advance(Lane& lane, Lock& lock) noexcept;
  std::optional<Failure> perform(Operation& operation) noexcept;
  void watch(Clock::time_point until);
  void keep();
  void judge(Lock& lock, const Lane& lane, Clock::time_point now);
  std::chrono::milliseconds patience_for(const Operation& operation) const;
  Clock::time_point deadline_of(const Operation& operation) const;
  Clock::time_point next_look(const Lane& lane) const;
  void wind_up(Lock& lock);
  void set_failure(Lock& lock, Failure failure) noexcept;
  void wake_all();
  void end_operation(Operation& operation);
  void listen(int rank);
  void hear(int rank, const Notice& notice);
  void tell(int rank, const Notice& notice) noexcept;
  void let_go(Lock& lock);
  Completed completed_with(int rank) const;
  std::string of_group(int rank) const { return str("participant ", rank, " of ", spec_.size); }
  void end_threads() noexcept;

  const GlooGroupSpec spec_;
  const ProcessMark process_;
  std::shared_ptr<Member> stays_;
  GlooMesh mesh_;
  GlooExchange exchange_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  Lane collectives_;
  std::map<std::pair<int, bool>, Lane> messages_;  // by the other end, and whether they are sent
  std::vector<Peer> peers_;
  int leavers_ = 0;  // of them
  std::optional<Failure> failure_;
  bool is_leaving_ = false, is_left_ = false, is_closed_ = false;
  bool is_busy_ = false;  // something has begun since the keeper's last look
  Clock::time_point kept_until_ = kNever;
  std::condition_variable keeper_wake_;
  std::thread keeper_;
  std::mutex telling_;
  struct Told {
    Notice notice;
    std::unique_ptr<GlooBuffer> buffer;
  };
  std::deque<Told> told_;  // until the end: Gloo sends from there
};

// --- calls

void Member::check_process(const CommunicatorCall& call) const {
  if (!is_of_this_process())
    throw FailedPrecondition(
        str(to_string(call), ": the group was made by the parent of this process, whose ",
            "connections a forked child does not share; give the child a group of its own"));
}

bool Operation::done(int /*rank*/) {
  member_->check_process(call_);
  const std::lock_guard<std::mutex> lock(member_->mutex_);
  if (phase_ != Phase::kOver && !lane_.is_taken) {  // so whoever asks makes progress
    lane_.eager = kEager;
    lane_.wake.notify_one();
  }
  return phase_ == Phase::kOver;
}

void Operation::wait(int /*rank*/) {
  member_->check_process(call_);
  std::unique_lock<std::mutex> lock(member_->mutex_);
  while (phase_ != Phase::kOver) {
    if (!member_->failure_ && !lane_.is_taken) {
      const internal::SigPipeBlocked quiet;
      member_->advance(lane_, lock);
    } else {
      member_->changed_.wait(lock);
    }
  }
  if (failure_) throw_error(failure_->code, failure_->why);
}

void Operation::release(int /*rank*/) noexcept {
  if (!member_->is_of_this_process()) return;  // it stays for ever: see Member::stay
  {
    std::unique_lock<std::mutex> lock(member_->mutex_);
    if (phase_ == Phase::kQueued || phase_ == Phase::kGathering)
      member_->set_failure(lock, {.why = text("participant ", member_->spec_.rank, " gave up ",
                                              to_string(call_), " before all had called it")});
    while (phase_ != Phase::kOver) member_->changed_.wait(lock);
  }
  const std::shared_ptr<Operation> last = std::move(self_);
}

void Operation::awaits(int rank) {
  const std::lock_guard<std::mutex> lock(member_->mutex_);
  awaited_ = rank;
  since_ = Clock::now();
}

void Operation::begins() {
  const std::lock_guard<std::mutex> lock(member_->mutex_);
  phase_ = Phase::kRunning;
  since_ = began_ = Clock::now();
  if (member_->is_leaving_) member_->changed_.notify_all();
}

Lane& Member::lane_of(const CommunicatorCall& call) {
  if (call.is_collective()) return collectives_;
  Lane& lane = messages_[{call.peer, call.kind == Kind::kSend}];
  if (!lane.thread.joinable() && !failure_ && !is_leaving_) {
    const internal::SignalsBlocked quiet;
    lane.thread = std::thread([this, &lane] { attend(lane); });
    lane.runs = true;
  }
  return lane;
}

Pending Member::start(const CommunicatorCall& call) {
  check_process(call);
  Lock lock(mutex_);
  Lane& lane = lane_of(call);
  const Place place{call.is_collective() ? -1 : call.peer, call.kind == Kind::kSend ? 1 : 0, lane.started};
  auto operation = std::make_shared<Operation>(shared_from_this(), lane, call, place);
  const bool is_first = lane.queue.empty();
  lane.queue.push_back(operation);
  ++lane.started;
  operation->self_ = operation;
  let_go(lock);
  if (failure_ && !lane.runs) {
    if (operation->phase_ != Phase::kOver) {
      lane.queue.pop_back();
      end_operation(*operation);
    }
  } else {
    is_busy_ = true;
    const Clock::time_point now = Clock::now();
    const Operation& first = *lane.queue.front();
    operation->ran_before_ =
        lane.ran + (first.phase_ == Phase::kRunning ? now - first.began_ : Clock::duration(0));
    watch(std::min(call.deadline.value_or(kNever), now + spec_.patience));
    if (lane.sleeps || (is_first && lane.eager > 0)) lane.wake.notify_one();
  }
  return {operation.get(), spec_.rank};
}

// The failure of the group, as this operation's.
void Member::end_operation(Operation& operation) {
  operation.phase_ = Phase::kOver;
  operation.failure_ = {.code = failure_->at == operation.place_ ? failure_->code : ErrorCode::kUnavailable,
                        .why = text(operation.name(), ": ", failure_->why)};
}

// --- time

// The keeper need not be woken for what it sees in time anyway.
void Member::watch(Clock::time_point until) {
  if (until < kept_until_) keeper_wake_.notify_one();
}

// The thread that looks at the clock, since those who perform are held up inside Gloo. It sleeps while nothing begins.
void Member::keep() {
  Lock lock(mutex_);
  while (!failure_ && !is_left_) {
    const Clock::time_point now = Clock::now();
    kept_until_ = is_busy_ ? now + spec_.patience : kNever;
    is_busy_ = false;
    each_lane([&](const Lane& lane) {
      judge(lock, lane, now);
      if (!lane.queue.empty()) is_busy_ = true;
      kept_until_ = std::min(kept_until_, next_look(lane));
    });
    if (failure_) break;
    if (kept_until_ == kNever) {
      keeper_wake_.wait(lock);
    } else {
      keeper_wake_.wait_until(lock, kept_until_);
    }
  }
  wind_up(lock);
}

// Twice as long for what any participant may hold up: by then the one that is held up itself has said who it is.
std::chrono::milliseconds Member::patience_for(const Operation& operation) const {
  return operation.awaited_ >= 0 ? spec_.patience : 2 * spec_.patience;
}

// Of a queue whose first operation is not running. Time in which earlier ones ran does not count.
Clock::time_point Member::deadline_of(const Operation& operation) const {
  const Clock::duration behind = operation.lane_.ran - operation.ran_before_;
  const Deadline& deadline = operation.call_.deadline;
  return !deadline || *deadline > kNever - behind ? kNever : *deadline + behind;
}

Clock::time_point Member::next_look(const Lane& lane) const {
  if (lane.queue.empty()) return kNever;
  const Operation& first = *lane.queue.front();
  if (first.phase_ == Phase::kRunning) return first.since_ + patience_for(first);
  Clock::time_point next = kNever;
  for (const std::shared_ptr<Operation>& operation : lane.queue)
    next = std::min(next, deadline_of(*operation));
  return next;
}

void Member::judge(Lock& lock, const Lane& lane, Clock::time_point now) {
  if (failure_ || next_look(lane) > now) return;
  const Operation& first = *lane.queue.front();
  if (first.phase_ == Phase::kRunning) {
    set_failure(lock, {.why = text(first.awaited_ >= 0 ? of_group(first.awaited_) : "another participant",
                                   " did not go on with it for ", patience_for(first).count(), " ms"),
                       .at = first.place_});
    return;
  }
  const auto late =
      std::ranges::find_if(lane.queue, [&](const auto& operation) { return deadline_of(*operation) <= now; });
  const int missing = first.place_.peer != -1             ? first.place_.peer
                      : first.phase_ == Phase::kGathering ? first.awaited_
                                                          : -1;
  set_failure(
      lock, {.code = ErrorCode::kDeadlineExceeded,
             .why = text("the deadline passed before ", missing >= 0 ? of_group(missing) : std::string("all"),
                         " had called ", late->get() == &first ? std::string("it") : first.name(),
                         "; the group is broken, make a new one"),
             .at = (*late)->place_});
}

// --- threads

void Member::start_threads() {
  const internal::SignalsBlocked quiet;
  keeper_ = std::thread([this] { keep(); });
  collectives_.thread = std::thread([this] { attend(collectives_); });
  for (int rank = 0; rank < spec_.size; ++rank) {
    if (rank != spec_.rank)
      peers_[static_cast<std::size_t>(rank)].listener = std::thread([this, rank] { listen(rank); });
  }
}

// The thread of a lane, which performs what nobody waits for. While operations follow each other it looks now and then, so that
// starting one wakes nobody.
void Member::attend(Lane& lane) {
  Lock lock(mutex_);
  lane.runs = true;
  std::optional<std::uint64_t> free;  // the number of the operation that nobody had come for
  std::uint64_t completed = 0;
  int looks = 0;
  while (!failure_ && !is_left_) {
    const bool is_free = !lane.queue.empty() && !lane.is_taken;
    if (is_free && (lane.eager > 0 || free == lane.completed)) {
      if (lane.eager == 0) lane.eager = kEager;
      advance(lane, lock);
      continue;
    }
    free = is_free ? std::optional(lane.completed) : std::nullopt;
    looks = is_free || completed != lane.completed ? 0 : looks + 1;
    completed = lane.completed;
    lane.sleeps = looks >= kLooks;
    if (lane.sleeps) {
      lane.wake.wait(lock);
    } else {
      lane.wake.wait_for(lock, kLook);
    }
    lane.sleeps = false;
  }
  changed_.wait(lock, [&lane] { return !lane.is_taken; });
  // Nothing touches the arrays of this lane any more.
  if (failure_) {
    for (const std::shared_ptr<Operation>& operation : lane.queue) end_operation(*operation);
    lane.queue.clear();
  }
  lane.runs = false;
  changed_.notify_all();
}

// Performs the first operation of a lane.
void Member::advance(Lane& lane, Lock& lock) noexcept {
  const std::shared_ptr<Operation> operation = lane.queue.front();
  operation->phase_ = Phase::kGathering;
  lane.is_taken = true;
  if (lane.eager > 0) --lane.eager;
  watch(next_look(lane));
  lock.unlock();
  std::optional<Failure> failure = perform(*operation);
  lock.lock();
  lane.is_taken = false;
  if (failure) {
    set_failure(lock, std::move(*failure));  // the lane's thread ends the operation
  } else {
    operation->phase_ = Phase::kOver;
    lane.queue.pop_front();
    ++lane.completed;
    lane.ran += Clock::now() - operation->began_;
    if (lane.sleeps && !lane.queue.empty()) lane.wake.notify_one();
    let_go(lock);
  }
  changed_.notify_all();
}

std::optional<Failure> Member::perform(Operation& operation) noexcept {
  const CommunicatorCall& call = operation.call_;
  try {
    try {
      const internal::DefaultFloats floats;  // the same bits on all participants
      if (call.is_collective()) {
        exchange_.collective(call, operation.place_.number, operation);
      } else if (call.kind == Kind::kSend) {
        exchange_.send(call, operation);
      } else {
        exchange_.receive(call, operation);
      }
      return {};
    } catch (const GlooInterrupted&) {
      return Failure{.why = "interrupted"};  // the reason is known already
    } catch (const GlooLost& lost) {
      // The listener of that participant hears what it said last, or that it is gone.
      Lock lock(mutex_);
      changed_.wait_for(lock, kReason, [&] { return failure_.has_value(); });
      const int who = operation.awaited_;
      return Failure{
          .why = str(who >= 0 && operation.phase_ == Phase::kGathering ? of_group(who) : "a participant",
                     " was lost: ", lost.what())};
    } catch (const Error& error) {
      return Failure{.code = error.code(), .why = error.message(), .at = operation.place_};
    } catch (const std::exception& error) {
      return Failure{
          .code = code_of(error, ErrorCode::kInternal), .why = message_of(error), .at = operation.place_};
    }
  } catch (...) {
    return Failure{.code = ErrorCode::kOutOfMemory, .why = "out of memory", .at = operation.place_};
  }
}

// --- the others

void Member::listen(int rank) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  std::string how = "its connection ended";
  try {
    Notice notice;
    GlooBuffer buffer(mesh_, GlooMesh::Use::kControl, &notice, sizeof notice);
    for (;;) {
      buffer.receive(rank, internal::kControlSlot, 0, sizeof notice);
      buffer.await_received();
      hear(rank, notice);
    }
  } catch (const GlooInterrupted&) {
  } catch (const GlooLost& lost) {
    how = lost.what();
  } catch (const std::exception& error) {
    how = error.what();
  }
  Lock lock(mutex_);
  peer.is_gone = true;
  if (!peer.leaves) set_failure(lock, {.why = text(of_group(rank), " was lost: ", how)});
  peer.has_all = true;
  changed_.notify_all();
}

void Member::hear(int rank, const Notice& notice) {
  Lock lock(mutex_);
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  switch (notice.kind) {
    case Notice::Kind::kLeaves: {
      if (!peer.leaves) ++leavers_;
      peer.leaves = notice.completed;
      peer.has_all = true;
      let_go(lock);
      break;
    }
    case Notice::Kind::kHas: peer.has_all = true; break;
    case Notice::Kind::kFails: {
      const auto length = static_cast<std::size_t>(std::find(notice.why.begin(), notice.why.end(), '\0') -
                                                   notice.why.begin());
      Failure failure{.code = static_cast<ErrorCode>(std::min<std::uint32_t>(
                          notice.code, static_cast<std::uint32_t>(ErrorCode::kOutOfMemory))),
                      .why = std::string(notice.why.data(), length)};
      if (notice.has_place != 0) failure.at = notice.place.told_by(rank, spec_.rank);
      set_failure(lock, std::move(failure));
      break;
    }
  }
  changed_.notify_all();
}

void Member::tell(int rank, const Notice& notice) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(telling_);
    Told& told = told_.emplace_back();
    told.notice = notice;
    told.buffer =
        std::make_unique<GlooBuffer>(mesh_, GlooMesh::Use::kControl, &told.notice, sizeof told.notice);
    told.buffer->send(rank, internal::kControlSlot, 0, sizeof told.notice);
  } catch (...) {  // it is gone: its listener knows
  }
}

// Tells those that leave, and whose collectives are complete here, that they may. An operation that would wait for them fails.
void Member::let_go(Lock& lock) {
  if (leavers_ == 0) return;
  for (int rank = 0; rank < spec_.size; ++rank) {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (!peer.leaves) continue;
    if (collectives_.completed >= peer.leaves->collectives && !peer.was_told) {
      peer.was_told = true;
      lock.unlock();
      tell(rank, {.kind = Notice::Kind::kHas});
      lock.lock();
    }
    const auto waits_in_vain = [](const Lane& lane, std::uint64_t completed) {
      return !lane.queue.empty() && lane.queue.front()->place_.number >= completed;
    };
    bool is_in_vain = waits_in_vain(collectives_, peer.leaves->collectives);
    for (const auto& [key, lane] : messages_) {
      if (key.first == rank)
        is_in_vain =
            is_in_vain || waits_in_vain(lane, key.second ? peer.leaves->receives : peer.leaves->sends);
    }
    if (is_in_vain) set_failure(lock, {.why = text(of_group(rank), " has left the group")});
  }
}

Completed Member::completed_with(int rank) const {
  const auto of = [&](bool sends) {
    const auto found = messages_.find({rank, sends});
    return found == messages_.end() ? 0 : found->second.completed;
  };
  return {.collectives = collectives_.completed, .sends = of(true), .receives = of(false)};
}

// --- the end

void Member::fail(Failure failure) noexcept {
  Lock lock(mutex_);
  set_failure(lock, std::move(failure));
}

void Member::set_failure(Lock& /*lock*/, Failure failure) noexcept {
  if (failure_ || is_left_) return;
  failure_ = std::move(failure);
  mesh_.interrupt(GlooMesh::Use::kWork);
  wake_all();
}

void Member::wake_all() {
  changed_.notify_all();
  keeper_wake_.notify_one();
  each_lane([](Lane& lane) { lane.wake.notify_one(); });
}

// The last thing that the keeper does.
void Member::wind_up(Lock& lock) {
  changed_.wait(lock, [this] {
    bool runs = false;
    each_lane([&runs](const Lane& lane) { runs = runs || lane.runs; });
    return !runs;
  });
  if (failure_) {
    Notice notice{.kind = Notice::Kind::kFails, .code = static_cast<std::uint32_t>(failure_->code)};
    if (failure_->at) {
      notice.has_place = 1;
      notice.place = *failure_->at;
    }
    failure_->why.copy(notice.why.data(), notice.why.size() - 1);
    lock.unlock();
    for (int rank = 0; rank < spec_.size; ++rank) {
      if (rank != spec_.rank) tell(rank, notice);
    }
    lock.lock();
    changed_.wait_for(lock, kTelling,
                      [this] { return std::ranges::count_if(peers_, &Peer::is_gone) == spec_.size - 1; });
  }
  lock.unlock();
  mesh_.close();
  lock.lock();
  is_closed_ = true;
  changed_.notify_all();
}

void Member::leave() noexcept {
  const internal::SigPipeBlocked quiet;
  Lock lock(mutex_);
  if (is_leaving_) return;
  is_leaving_ = true;
  // All may have called an operation, and this participant does not know it yet.
  const auto is_decided = [this] {
    bool all_are = true;
    each_lane([&](const Lane& lane) {
      all_are = all_are && (lane.queue.size() != 1 || lane.queue.front()->phase_ == Phase::kRunning);
    });
    return all_are;
  };
  changed_.wait_for(lock, kTelling, [&] { return failure_ || is_decided(); });
  bool waits_for_others = false;
  each_lane([&](const Lane& lane) {
    waits_for_others = waits_for_others || lane.queue.size() > 1 ||
                       (lane.queue.size() == 1 && lane.queue.front()->phase_ != Phase::kRunning);
  });
  if (waits_for_others) set_failure(lock, {.why = text(of_group(spec_.rank), " has left the group")});
  changed_.wait(lock, [this] {
    bool is_idle = true;
    each_lane([&](const Lane& lane) { is_idle = is_idle && lane.queue.empty(); });
    return failure_ || is_idle;
  });
  if (!failure_) {
    for (int rank = 0; rank < spec_.size; ++rank) {
      if (rank == spec_.rank) continue;
      const Notice notice{.kind = Notice::Kind::kLeaves, .completed = completed_with(rank)};
      lock.unlock();
      tell(rank, notice);
      lock.lock();
    }
    changed_.wait_for(lock, kLeaving, [this] {
      return failure_ || std::ranges::count_if(peers_, &Peer::has_all) == spec_.size - 1;
    });
  }
  is_left_ = true;
  wake_all();
  changed_.wait(lock, [this] { return is_closed_; });
}

void Member::end_threads() noexcept {
  if (!keeper_.joinable()) return;
  leave();
  keeper_.join();
  each_lane([](Lane& lane) {
    if (lane.thread.joinable()) lane.thread.join();
  });
  for (Peer& peer : peers_) {
    if (peer.listener.joinable()) peer.listener.join();
  }
}

class GlooCommunicator final : public Communicator {
 public:
  explicit GlooCommunicator(std::shared_ptr<Member> member) : member_(std::move(member)) {}
  ~GlooCommunicator() override { GlooCommunicator::close(); }

  int rank() const override { return member_->spec().rank; }
  int size() const override { return member_->spec().size; }
  void close() override {
    is_closed_ = true;
    if (member_->is_of_this_process()) {
      member_->leave();
    } else {
      member_->stay();
    }
  }
  void abort(const Error& why) override {
    if (!member_->is_of_this_process()) return;
    member_->fail({.why = str("participant ", rank(), " of ", size(), " ended the group: ", why.message())});
  }

 protected:
  Pending start(const CommunicatorCall& call) override {
    if (is_closed_) throw FailedPrecondition(str(to_string(call), ": this communicator is closed"));
    return member_->start(call);
  }

 private:
  std::shared_ptr<Member> member_;
  bool is_closed_ = false;
};

}  // namespace

std::unique_ptr<Communicator> connect_gloo(const GlooGroupSpec& spec, Rendezvous& rendezvous,
                                           Deadline deadline, const std::stop_token& stop) {
  if (spec.size < 1 || spec.rank < 0 || spec.rank >= spec.size)
    throw InvalidArgument(str("connect_gloo: there is no member ", spec.rank, " of ", spec.size));
  if (spec.patience <= std::chrono::milliseconds(0))
    throw InvalidArgument("connect_gloo: the patience is not positive");
  GlooGroupSpec own = spec;
  own.patience = std::min(spec.patience, kMostPatience);
  const internal::SigPipeBlocked quiet;
  const auto failed = [&spec](const std::exception& error) {
    return Error(ErrorCode::kUnavailable, str("group '", spec.name, "' cannot be built: ", error.what()));
  };
  std::shared_ptr<Member> member;
  try {
    member = std::make_shared<Member>(own, rendezvous, deadline, stop);
    member->start_threads();
  } catch (const GlooLost& lost) {  // somebody has gone already
    throw failed(lost);
  } catch (const std::system_error& error) {
    if (member != nullptr) member->fail({.why = text(error.what())});
    throw failed(error);
  }
  return std::make_unique<GlooCommunicator>(std::move(member));
}

}  // namespace lockstep
