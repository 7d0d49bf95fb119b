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
#include <thread>
#include <utility>
#include <vector>

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
constexpr std::chrono::seconds kReason{
    1};  // for the reason of a loss to come, behind which the connection ended

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

// What participants tell each other beside their calls.
struct Notice {
  enum class Kind : std::uint32_t {
    kLeaves,  // it has completed the collectives before `number`, and makes no others
    kHas,     // the receiver's last collectives are complete here: it may go
    kFails,   // the group is over
  };
  Kind kind = Kind::kLeaves;
  std::uint32_t code = 0;
  std::uint32_t has_place = 0;
  Place place = {};
  std::uint64_t number = 0;
  std::array<char, 448> why = {};
};

class Member;

class Operation final : public PendingState, public internal::GlooProgress {
 public:
  enum class Phase : std::uint8_t { kQueued, kGathering, kRunning, kOver };

  Operation(std::shared_ptr<Member> member, const CommunicatorCall& call, const Place& place)
      : member_(std::move(member)), call_(call), place_(place) {}

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
  const CommunicatorCall call_;
  const Place place_;
  std::shared_ptr<Operation> self_;  // while the caller has it
  // Under the member's mutex.
  Phase phase_ = Phase::kQueued;
  int awaited_ = -1;
  Clock::time_point since_ = {};  // it waits for that
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
  // In a child that fork() made there are no threads, and what they left may be in any state: nothing touches it again.
  void stay() { stays_ = shared_from_this(); }

 private:
  friend class Operation;
  using Phase = Operation::Phase;

  struct Lane {
    std::deque<std::shared_ptr<Operation>> queue;
    std::uint64_t started = 0;
    bool runs = false;  // its thread, which may touch arrays
    std::thread thread;
  };
  struct Peer {
    std::optional<std::uint64_t> leaves_before;  // the number of the first collective that it does not make
    bool was_told = false;                       // that it may go
    bool has_all = false;                        // it says so, or has left
    bool is_gone = false;                        // its connection has ended
    std::thread listener;
  };

  using Lock = std::unique_lock<std::mutex>;
  Lane& lane_of(const CommunicatorCall& call);
  void serve(Lane& lane);
  std::optional<Failure> perform(Operation& operation);
  void wind_up(Lock& lock);
  void set_failure(Lock& lock, Failure failure) noexcept;
  void end_operation(Operation& operation);
  void listen(int rank);
  void hear(int rank, const Notice& notice);
  void tell(int rank, const Notice& notice) noexcept;
  void let_go(Lock& lock);
  void check_time(Lock& lock, const Operation& operation);
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
  std::uint64_t completed_ = 0;  // collectives
  std::optional<Failure> failure_;
  bool is_leaving_ = false, is_left_ = false, is_closed_ = false;
  std::mutex telling_;
  struct Told {
    Notice notice;
    std::unique_ptr<GlooBuffer> buffer;
  };
  std::deque<Told> told_;  // until the end: Gloo sends from there
};

// --- calls

bool Operation::done(int /*rank*/) {
  std::unique_lock<std::mutex> lock(member_->mutex_);
  member_->check_time(lock, *this);
  return phase_ == Phase::kOver;
}

void Operation::wait(int /*rank*/) {
  std::unique_lock<std::mutex> lock(member_->mutex_);
  while (phase_ != Phase::kOver) {
    if (member_->failure_) {
      member_->changed_.wait(lock);
    } else if (phase_ == Phase::kRunning || !call_.deadline) {
      member_->changed_.wait_for(lock, member_->spec_.patience);
    } else {
      member_->changed_.wait_until(lock, std::min(*call_.deadline, Clock::now() + member_->spec_.patience));
    }
    member_->check_time(lock, *this);
  }
  if (failure_) throw_error(failure_->code, failure_->why);
}

void Operation::release(int /*rank*/) noexcept {
  {
    std::unique_lock<std::mutex> lock(member_->mutex_);
    if (phase_ == Phase::kQueued || phase_ == Phase::kGathering)
      member_->set_failure(lock, {.why = str("participant ", member_->spec_.rank, " gave up ",
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
  since_ = Clock::now();
}

Member::Lane& Member::lane_of(const CommunicatorCall& call) {
  if (call.is_collective()) return collectives_;
  Lane& lane = messages_[{call.peer, call.kind == Kind::kSend}];
  if (!lane.thread.joinable() && !failure_ && !is_leaving_) {
    const internal::SignalsBlocked quiet;
    lane.thread = std::thread([this, &lane] { serve(lane); });
    lane.runs = true;
  }
  return lane;
}

Pending Member::start(const CommunicatorCall& call) {
  Lock lock(mutex_);
  Lane& lane = lane_of(call);
  const Place place{call.is_collective() ? -1 : call.peer, call.kind == Kind::kSend ? 1 : 0, lane.started};
  auto operation = std::make_shared<Operation>(shared_from_this(), call, place);
  lane.queue.push_back(operation);
  ++lane.started;
  operation->self_ = operation;
  for (int rank = 0; rank < spec_.size; ++rank) {
    if ((call.is_collective() || rank == call.peer) && peers_[static_cast<std::size_t>(rank)].leaves_before)
      set_failure(lock, {.why = str(of_group(rank), " has left the group")});
  }
  if (failure_ && !lane.runs) {
    lane.queue.pop_back();
    end_operation(*operation);
  } else {
    lock.unlock();
    changed_.notify_all();
  }
  return {operation.get(), spec_.rank};
}

// The failure of the group, as this operation's.
void Member::end_operation(Operation& operation) {
  operation.phase_ = Phase::kOver;
  operation.failure_ = {.code = failure_->at == operation.place_ ? failure_->code : ErrorCode::kUnavailable,
                        .why = str(operation.name(), ": ", failure_->why)};
}

// Whoever waits or asks looks at the clock.
void Member::check_time(Lock& lock, const Operation& operation) {
  if (failure_ || operation.phase_ == Phase::kOver) return;
  // The call that keeps it waiting may be an earlier one.
  const Operation* first = &operation;
  if (operation.place_.peer == -1 && !collectives_.queue.empty()) first = collectives_.queue.front().get();
  const Clock::time_point now = Clock::now();
  if (first->phase_ == Phase::kRunning && now - first->since_ > spec_.patience) {
    set_failure(lock, {.why = str(first->awaited_ >= 0 ? of_group(first->awaited_) : "another participant",
                                  " did not go on with it for ", spec_.patience.count(), " ms"),
                       .at = first->place_});
    return;
  }
  const Deadline& deadline = operation.call_.deadline;
  if (operation.phase_ == Phase::kRunning || !deadline || now < *deadline) return;
  const int missing = first->place_.peer != -1             ? first->place_.peer
                      : first->phase_ == Phase::kGathering ? first->awaited_
                                                           : -1;
  set_failure(
      lock, {.code = ErrorCode::kDeadlineExceeded,
             .why = str("the deadline passed before ", missing >= 0 ? of_group(missing) : std::string("all"),
                        " had called ", first == &operation ? std::string("it") : first->name(),
                        "; the group is broken, make a new one"),
             .at = operation.place_});
}

// --- threads

void Member::start_threads() {
  const internal::SignalsBlocked quiet;
  for (int rank = 0; rank < spec_.size; ++rank) {
    if (rank != spec_.rank)
      peers_[static_cast<std::size_t>(rank)].listener = std::thread([this, rank] { listen(rank); });
  }
  collectives_.thread = std::thread([this] { serve(collectives_); });
}

void Member::serve(Lane& lane) {
  Lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return failure_ || is_left_ || !lane.queue.empty(); });
    if (failure_ || lane.queue.empty()) break;
    Operation& operation = *lane.queue.front();
    operation.phase_ = Phase::kGathering;
    lock.unlock();
    std::optional<Failure> failure = perform(operation);
    lock.lock();
    if (failure) {
      set_failure(lock, std::move(*failure));
      break;
    }
    const std::shared_ptr<Operation> over = std::move(lane.queue.front());
    lane.queue.pop_front();
    over->phase_ = Phase::kOver;
    if (&lane == &collectives_) {
      ++completed_;
      let_go(lock);
    }
    changed_.notify_all();
  }
  // Nothing touches the arrays of this lane any more.
  if (failure_) {
    for (const std::shared_ptr<Operation>& operation : lane.queue) end_operation(*operation);
    lane.queue.clear();
  }
  lane.runs = false;
  changed_.notify_all();
  if (&lane == &collectives_) wind_up(lock);
}

std::optional<Failure> Member::perform(Operation& operation) {
  const CommunicatorCall& call = operation.call_;
  try {
    if (call.is_collective()) {
      exchange_.collective(call, operation.place_.number, operation);
    } else if (call.kind == Kind::kSend) {
      exchange_.send(call, operation);
    } else {
      exchange_.receive(call, operation);
    }
    return {};
  } catch (const GlooInterrupted&) {
    return Failure{.why = "it was interrupted"};  // the reason is known already
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
  if (!peer.leaves_before) {
    set_failure(lock, {.why = str(of_group(rank), " was lost: ", how)});
  }
  peer.has_all = true;
  changed_.notify_all();
}

void Member::hear(int rank, const Notice& notice) {
  Lock lock(mutex_);
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  switch (notice.kind) {
    case Notice::Kind::kLeaves: {
      peer.leaves_before = notice.number;
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
  std::vector<int> ready;
  for (int rank = 0; rank < spec_.size; ++rank) {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (!peer.leaves_before) continue;
    if (completed_ >= *peer.leaves_before && !peer.was_told) {
      peer.was_told = true;
      ready.push_back(rank);
    }
    const bool waits_for_it = collectives_.started > *peer.leaves_before ||
                              std::ranges::any_of(messages_, [rank](const auto& lane) {
                                return lane.first.first == rank && !lane.second.queue.empty() &&
                                       lane.second.queue.front()->phase_ != Phase::kRunning;
                              });
    if (waits_for_it) set_failure(lock, {.why = str(of_group(rank), " has left the group")});
  }
  if (ready.empty()) return;
  lock.unlock();
  for (const int rank : ready) tell(rank, {.kind = Notice::Kind::kHas});
  lock.lock();
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
  changed_.notify_all();
}

// The last thing that the thread of the collectives does.
void Member::wind_up(Lock& lock) {
  changed_.wait(lock, [this] {
    return std::ranges::none_of(messages_, [](const auto& lane) { return lane.second.runs; });
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
  Lock lock(mutex_);
  if (is_leaving_) return;
  is_leaving_ = true;
  const auto is_idle = [this] {
    return collectives_.queue.empty() &&
           std::ranges::all_of(messages_, [](const auto& lane) { return lane.second.queue.empty(); });
  };
  const auto runs = [](const Lane& lane) {
    return lane.queue.empty() || (lane.queue.size() == 1 && lane.queue.front()->phase_ == Phase::kRunning);
  };
  if (!runs(collectives_) ||
      !std::ranges::all_of(messages_, [&](const auto& lane) { return runs(lane.second); }))
    set_failure(lock, {.why = str(of_group(spec_.rank), " has left the group")});
  changed_.wait(lock, [&] { return failure_ || is_idle(); });
  if (!failure_) {
    const Notice notice{.kind = Notice::Kind::kLeaves, .number = completed_};
    lock.unlock();
    for (int rank = 0; rank < spec_.size; ++rank) {
      if (rank != spec_.rank) tell(rank, notice);
    }
    lock.lock();
    changed_.wait_for(lock, kLeaving, [this] {
      return failure_ || std::ranges::count_if(peers_, &Peer::has_all) == spec_.size - 1;
    });
  }
  is_left_ = true;
  changed_.notify_all();
  changed_.wait(lock, [this] { return is_closed_; });
}

void Member::end_threads() noexcept {
  if (!collectives_.thread.joinable()) return;
  leave();
  collectives_.thread.join();
  for (auto& [key, lane] : messages_) {
    if (lane.thread.joinable()) lane.thread.join();
  }
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
  auto member = std::make_shared<Member>(spec, rendezvous, deadline, stop);
  member->start_threads();
  return std::make_unique<GlooCommunicator>(std::move(member));
}

}  // namespace lockstep
