// core/communicators/internal/in_process_room.h - where the participants of an InProcessGroup meet.
//
// Collectives form a row, each linked to the next, and every participant keeps its place in it (Seat); the
// first one that comes to the end extends it. Arriving is one atomic addition. The room's mutex is for
// sleeping, for messages, for failures, and for extending the row, which the first to arrive does while it
// waits anyway.
//
// An operation is *gathering* while it waits for calls (the earliest deadline counts). Then a small
// collective is *staged*: each participant has left a copy of its input, and computes its own output from all
// copies, so that nobody waits for anybody again. Other operations are *running* (chunks are handed out by
// atomic counters), then *done*. An operation *fails* only while it is gathering: one word decides whether
// the last arrival or the failure comes first (InProcessOperation::arrivals_).
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

  // The data of one participant, on cache lines of its own.
  struct alignas(64) Part {
    CommunicatorCall call;
    bool is_computed = false;                // its output, if the operation is staged
    std::atomic<std::uint64_t> arrived{0};   // the generation it arrived in: then `call` may be read
    std::atomic<std::uint64_t> released{0};  // likewise: it will not touch the operation again
    std::vector<const void*> reduced;        // inputs of all participants, while this one reduces them
  };
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes;
  };
  // The chunks [next, end). They belong to one participant until another has nothing left to do. If
  // participants share processors, they belong to a processor instead: what its cache holds since the last
  // time is of use to any participant that runs on it now.
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
  void begin(const CommunicatorCall& call);  // by the last to arrive
  void end_declined();
  void cut();
  void compute(int rank, std::int64_t begin, std::int64_t end);
  // Takes chunks until none is left, or until it has taken `most`.
  void help(int rank, std::int64_t most = std::numeric_limits<std::int64_t>::max());
  void change_to(State state);
  // True if the state changed; false if that takes too long to keep polling.
  bool spin_while(State state) const;
  void look_at_clock();
  void hasten(std::chrono::steady_clock::time_point deadline);
  void await_begin();
  void await_end(int rank);

  // Constant while the operation is in use.
  InProcessRoom& room_;
  std::vector<Part> parts_;          // by rank
  std::vector<const void*> inputs_;  // by rank, as outputs_; not for small collectives
  std::vector<void*> outputs_;
  std::vector<Share> shares_;
  std::vector<Line> staging_;  // the inputs of a small collective, one after the other
  std::uint64_t generation_ = 0;
  std::uint64_t number_ = 0;  // in the row
  std::uint32_t expected_ = 0;
  bool in_row_ = false;                    // a collective; else a message, or a refused call
  int first_ = 0;                          // of a message: who called first
  std::size_t sender_ = 0, receiver_ = 0;  // likewise: its ends

  // For a message: its first call. For a collective, once it has begun: the call that all made.
  alignas(64) CommunicatorCall call_;
  std::int64_t elements_ = 0;
  std::int64_t chunk_ = 1;  // elements per chunk
  ErrorCode failure_code_ = ErrorCode::kInternal;
  std::string failure_message_;
  std::atomic<bool> is_declined_{false};
  int declined_by_ = -1;       // if it failed for that: by whom
  std::atomic<int> users_{0};  // if the operation is not in the row
  // The earliest deadline that any participant gave; max if none did.
  std::atomic<std::chrono::steady_clock::time_point> deadline_{kNoDeadline};
  std::condition_variable changed_;

  alignas(64) std::atomic<std::int64_t> left_{0};  // chunks not yet computed
  // How many have arrived, and kBroken if it failed before all had. Next to it the signature of the first
  // call, which the others have to match.
  alignas(64) std::atomic<std::uint32_t> arrivals_{0};
  std::atomic<std::uint64_t> signature_{0};
  alignas(64) std::atomic<State> state_{State::kGathering};
  std::atomic<int> sleepers_{0};
  std::atomic<InProcessOperation*> next_{nullptr};  // in the row
};

class InProcessRoom : public std::enable_shared_from_this<InProcessRoom> {
 public:
  static constexpr int kMostParticipants = 0xFFFF;  // ranks fit into two bytes

  explicit InProcessRoom(int participants);
  ~InProcessRoom();

  int size() const { return size_; }
  void claim(int rank);
  Pending start(int rank, const CommunicatorCall& call);
  void lose(int rank, const std::string& why);
  // Ends one use of the seat: a participant that joined, or an operation it started. The last use of all may
  // end the room.
  void leave(int rank);
  void shut();

 private:
  friend class InProcessOperation;
  using State = InProcessOperation::State;

  // The state of one participant, written by nobody else except for `users`.
  struct alignas(64) Seat {
    std::atomic<InProcessOperation*> next{nullptr};  // its next collective
    std::shared_ptr<InProcessRoom> keeps;  // set while there are users: the participant and its Pendings
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
  // Whether it was still gathering, and now never begins; then tell() says why.
  static bool stop(InProcessOperation& operation);
  void tell(InProcessOperation& operation, ErrorCode code);
  void pass_deadline(InProcessOperation& operation);

  const int size_;
  std::vector<Seat> seats_;
  std::mutex mutex_;
  std::vector<InProcessOperation*> row_;  // all operations for collectives, in the order of their links
  std::unordered_map<std::size_t, std::deque<InProcessOperation*>> messages_;  // by sender * size + receiver
  std::vector<std::unique_ptr<InProcessOperation>> all_;
  std::vector<InProcessOperation*> free_;

  std::atomic<bool> is_broken_{false};  // set under the mutex, after the fields that say why
  ErrorCode broken_code_ = ErrorCode::kUnavailable;
  std::int64_t fault_number_ = -1;  // of the collective that broke it; -1: none
  std::string broken_message_;
  const std::size_t processors_;
  const bool spins_;  // every participant can have a processor of its own
};

}  // namespace lockstep::internal
