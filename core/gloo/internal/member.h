// core/gloo/internal/member.h - a participant of a group over Gloo: its calls, its threads, and how it ends.
//
// Calls wait in lanes: collectives in one, the messages of each direction with another participant in one. Whoever waits for a call
// performs what is first in its lane. Beside them there are the thread of each lane, for what nobody waits for; the keeper, which
// looks at the clock; and a listener for each other participant.
//
// Thread safety: as each function says; what is said to be under the mutex, under it.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/communicators/communicator.h"
#include "lockstep/core/error.h"
#include "lockstep/core/gloo/gloo_group.h"
#include "lockstep/core/gloo/internal/exchange.h"
#include "lockstep/core/gloo/internal/mesh.h"
#include "lockstep/core/process_mark.h"

namespace lockstep::internal::gloo_group {

using Clock = std::chrono::steady_clock;

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
  // Of one that was told of: who has noticed it, and what that participant calls the place. It is passed on so.
  int noticed_by = -1;
  Place told = {};
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
  int noticed_by = -1;  // who calls the place so
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

class Operation final : public PendingState, public GlooProgress {
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
  std::optional<Declined> declined_;
};

// One participant. Operations under way keep it alive.
class Member : public std::enable_shared_from_this<Member> {
 public:
  Member(const GlooGroupSpec& spec, Rendezvous& rendezvous, Deadline deadline, const std::stop_token& stop)
      : spec_(spec),
        mesh_(spec, rendezvous, deadline, stop),
        exchange_(mesh_, spec.rank, spec.size, spec.ring),
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
  int awaited();  // Communicator::awaited
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

}  // namespace lockstep::internal::gloo_group
