// core/communicators/internal/in_process_room.h - where the participants of an InProcessGroup meet.
//
// Collectives stand in a row, each linked to the next, and every participant keeps its place in it (Seat):
// the first that comes to the end adds one more. To arrive is one atomic addition; the room's mutex is for
// those who sleep, for messages, for failures, and for the next operation of the row, which the first to
// arrive gets while it waits anyway.
//
// An operation is *gathering* while it waits for calls (the earliest deadline counts). Then a small
// collective is *staged*: each participant has left a copy of its input, and computes its own output from all
// copies, so that nobody waits for anybody again. Others are *running* (chunks are handed out by atomic
// counters), then *done*. Or an operation *failed* while it was gathering: whether the last arrival comes
// first or the failure, one word decides (InProcessOperation::arrivals_).
//
// Operations are pooled. A collective is used again when all participants have released it, a message when
// both ends have.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/core/communicators/communicator.h"
#include "lockstep/core/error.h"

namespace lockstep::internal {

class InProcessRoom;

class InProcessOperation final : public PendingState {
 public:
  enum class State : std::uint8_t { kGathering, kStaged, kRunning, kDone, kFailed };

  explicit InProcessOperation(InProcessRoom& room);
  ~InProcessOperation() override = default;

  bool done(int rank) override;
  void wait(int rank) override;
  void release(int rank) noexcept override;

 private:
  friend class InProcessRoom;

  // What one participant has to do with it, on cache lines of its own.
  struct alignas(64) Part {
    CommunicatorCall call;
    bool is_computed = false;                // its output, of a staged operation
    std::atomic<std::uint64_t> arrived{0};   // in which generation: then `call` may be read
    std::atomic<std::uint64_t> released{0};  // likewise: it will not touch the operation again
    std::vector<const void*> reduced;        // of all participants, while this one reduces them
  };
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes;
  };
  // The chunks [next, end), which belong to one participant until another has nothing left to do; or, where
  // participants share processors, to one of those: what it has in its cache since the last time is there
  // whoever runs on it now.
  struct alignas(64) Share {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
  };

  static constexpr auto kNoDeadline = std::chrono::steady_clock::time_point::max();
  static constexpr std::uint32_t kBroken = 1U << 31;  // in arrivals_

  void reset();
  std::string name() const;
  Part& part(int rank) { return parts_[static_cast<std::size_t>(rank)]; }
  bool has_arrived(std::size_t place) const {
    return parts_[place].arrived.load(std::memory_order_acquire) == generation_;
  }
  bool is_released() const;
  std::int64_t elements_of(const CommunicatorCall& call) const;
  bool is_small(const CommunicatorCall& call) const;
  std::byte* staged(std::size_t place, const CommunicatorCall& call);
  void stage(int rank);
  void compute_own(int rank);
  void begin(const CommunicatorCall& call);  // by the last who arrives
  void cut();
  void compute(int rank, std::int64_t begin, std::int64_t end);
  // Takes chunks until there are none, or that many.
  void help(int rank, std::int64_t most = std::numeric_limits<std::int64_t>::max());
  void change_to(State state);
  // True where the state changed; false where it takes too long to go on looking.
  bool spin_while(State state) const;
  void look_at_clock();
  void hasten(std::chrono::steady_clock::time_point deadline);
  void await_begin();
  void await_end(int rank);

  // Constant while it is in use.
  InProcessRoom& room_;
  std::vector<Part> parts_;          // by rank
  std::vector<const void*> inputs_;  // by rank, as are outputs; not of small collectives
  std::vector<void*> outputs_;
  std::vector<Share> shares_;
  std::vector<Line> staging_;  // the inputs of a small collective, one after the other
  std::uint64_t generation_ = 0;
  std::uint64_t number_ = 0;  // in the row
  std::uint32_t expected_ = 0;
  bool in_row_ = false;                    // a collective; else a message, or nothing but its failure
  int first_ = 0;                          // of a message: who called first
  std::size_t sender_ = 0, receiver_ = 0;  // likewise: its ends

  // Of a message: the call of its first; of a collective, once it has begun: what all called.
  alignas(64) CommunicatorCall call_;
  std::int64_t elements_ = 0;
  std::int64_t chunk_ = 1;  // elements of one
  ErrorCode failure_code_ = ErrorCode::kInternal;
  std::string failure_message_;
  std::atomic<int> users_{0};  // of what is not in the row
  // The earliest that anybody gave; max where nobody did.
  std::atomic<std::chrono::steady_clock::time_point> deadline_{kNoDeadline};
  std::condition_variable changed_;

  alignas(64) std::atomic<std::int64_t> left_{0};  // chunks not yet computed
  // How many have arrived, and whether it failed before all had; beside it what they call, as the first of
  // them says.
  alignas(64) std::atomic<std::uint32_t> arrivals_{0};
  std::atomic<std::uint64_t> signature_{0};
  alignas(64) std::atomic<State> state_{State::kGathering};
  std::atomic<int> sleepers_{0};
  std::atomic<InProcessOperation*> next_{nullptr};  // in the row
};

class InProcessRoom : public std::enable_shared_from_this<InProcessRoom> {
 public:
  static constexpr int kMostParticipants = 0xFFFF;  // whose ranks two bytes can say

  explicit InProcessRoom(int participants);
  ~InProcessRoom();

  int size() const { return size_; }
  void claim(int rank);
  Pending start(int rank, const CommunicatorCall& call);
  void lose(int rank, const std::string& why);
  // What joined or started is over; the last use of all may be the end of the room.
  void leave(int rank);
  void shut();

 private:
  friend class InProcessOperation;
  using State = InProcessOperation::State;

  // Of one participant. But for `users`, its own.
  struct alignas(64) Seat {
    std::atomic<InProcessOperation*> next{nullptr};  // its next collective
    std::shared_ptr<InProcessRoom> keeps;  // while there are users: the participant and its Pendings
    std::atomic<int> users{0};
    bool joined = false;  // guarded by the mutex
  };

  std::size_t count() const { return static_cast<std::size_t>(size_); }
  Seat& seat(int rank) { return seats_[static_cast<std::size_t>(rank)]; }
  std::unique_lock<std::mutex> enter();

  Pending start_collective(int rank, const CommunicatorCall& call);
  Pending start_message(int rank, const CommunicatorCall& call);
  static bool write_part(InProcessOperation& operation, int rank, const CommunicatorCall& call);
  Pending refuse_collective(int rank, const CommunicatorCall& call);
  void look_ahead(InProcessOperation& operation);
  void withdraw(InProcessOperation& operation, int rank);
  void recycle(InProcessOperation& operation);

  // With the mutex held:
  InProcessOperation& take();  // not in the row
  InProcessOperation& meet_one(int rank, const CommunicatorCall& call);
  Pending refuse(int rank, const CommunicatorCall& call, ErrorCode code = ErrorCode::kUnavailable);
  InProcessOperation& next_of(InProcessOperation& operation);
  InProcessOperation& fresh_for_row();
  void disagree(InProcessOperation& operation, int rank);
  void break_up(ErrorCode code, InProcessOperation* at_fault, std::string message);
  // Whether it was still gathering and never will begin now; then tell() says why.
  static bool stop(InProcessOperation& operation);
  void tell(InProcessOperation& operation, ErrorCode code);
  void pass_deadline(InProcessOperation& operation);

  const int size_;
  std::vector<Seat> seats_;
  std::mutex mutex_;
  std::vector<InProcessOperation*> row_;  // all that are for collectives, in the order of their links
  std::unordered_map<std::size_t, std::deque<InProcessOperation*>> messages_;  // by sender * size + receiver
  std::vector<std::unique_ptr<InProcessOperation>> all_;
  std::vector<InProcessOperation*> free_;

  std::atomic<bool> is_broken_{false};  // set under the mutex, after what says why
  ErrorCode broken_code_ = ErrorCode::kUnavailable;
  std::int64_t fault_number_ = -1;  // of the collective that broke it; -1: none
  std::string broken_message_;
  const std::size_t processors_;
  const bool spins_;  // every participant can have one of its own
};

}  // namespace lockstep::internal
