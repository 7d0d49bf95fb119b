// core/internal/in_process_room.h - where the participants of an InProcessGroup meet.
//
// The room's mutex guards who has called what. An operation is *gathering* while it waits for calls (the earliest
// deadline counts), then *running* (chunks are handed out by atomic counters, without the mutex), then *done*; or it
// *failed* while gathering. It is pooled, and goes back when nobody uses it: each participant that called does until
// release(), and the room does while it is gathering.
#pragma once

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

#include "lockstep/core/communicator.h"
#include "lockstep/core/error.h"
#include "lockstep/core/small_vector.h"

namespace lockstep {

class InProcessRoom;

class InProcessOperation final : public PendingState {
 public:
  enum class State : std::uint8_t { kGathering, kRunning, kDone, kFailed };

  explicit InProcessOperation(InProcessRoom& room);
  ~InProcessOperation() override = default;

  bool done(int rank) override;
  void wait(int rank) override;
  void release(int rank) noexcept override;

 private:
  friend class InProcessRoom;

  // The chunks [next, end), which belong to one participant until another has nothing left to do.
  struct alignas(64) Share {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
  };

  static constexpr auto kNoDeadline = std::chrono::steady_clock::time_point::max();

  void reset();
  std::string name() const;
  void cut();
  void compute(std::int64_t begin, std::int64_t end);
  // Takes chunks until there are none, or that many.
  void help(int rank, std::int64_t most = std::numeric_limits<std::int64_t>::max());
  void complete();
  // True where the state changed; false where it takes too long to go on looking.
  bool spin_while(State state) const;
  void look_at_clock();
  void await_begin();
  void await_end(int rank);
  void let_go();

  InProcessRoom& room_;
  std::shared_ptr<InProcessRoom> keeps_;  // while it is in use
  std::atomic<int> users_{0};

  // The earliest that anybody gave; max where nobody did. Written under the room's mutex, looked at without.
  std::atomic<std::chrono::steady_clock::time_point> deadline_{kNoDeadline};

  // Guarded by the room's mutex while gathering, and constant afterwards.
  CommunicatorCall call_;  // of the first who called
  int first_ = 0;          // its rank
  std::uint64_t number_ = 0;
  std::size_t sender_ = 0, receiver_ = 0;  // of messages
  std::size_t expected_ = 0;
  std::size_t arrivals_ = 0;
  std::vector<const void*> inputs_;  // by rank
  std::vector<void*> outputs_;
  std::vector<bool> arrived_;
  std::int64_t elements_ = 0;
  std::int64_t chunk_ = 1;  // elements of one
  bool small_ = false;
  ErrorCode failure_code_ = ErrorCode::kInternal;
  std::string failure_message_;

  std::condition_variable changed_;
  std::atomic<int> sleepers_{0};
  std::vector<Share> shares_;
  alignas(64) std::atomic<std::int64_t> left_{0};  // chunks not yet computed
  alignas(64) std::atomic<State> state_{State::kGathering};
};

class InProcessRoom : public std::enable_shared_from_this<InProcessRoom> {
 public:
  explicit InProcessRoom(int participants);
  ~InProcessRoom();

  int size() const { return size_; }
  Pending start(int rank, const CommunicatorCall& call);
  void claim(int rank);
  void lose(int rank, const std::string& why);
  void shut();

 private:
  friend class InProcessOperation;
  using State = InProcessOperation::State;

  std::size_t count() const { return static_cast<std::size_t>(size_); }
  std::unique_lock<std::mutex> enter();

  // With the mutex held:
  InProcessOperation& take();
  InProcessOperation& meet_all(int rank, const CommunicatorCall& call);
  InProcessOperation& meet_one(int rank, const CommunicatorCall& call);
  bool arrive(InProcessOperation& operation, int rank, const CommunicatorCall& call);  // whether it begins
  void break_up(ErrorCode code, const InProcessOperation* at_fault, const std::string& message);
  void pass_deadline(InProcessOperation& operation);

  // Without it:
  void withdraw(InProcessOperation& operation, int rank);
  void recycle(InProcessOperation& operation);

  const int size_;
  std::mutex mutex_;
  std::vector<bool> joined_;
  std::vector<std::uint64_t> next_number_;     // by rank: of its next collective
  std::uint64_t first_number_ = 0;             // of gathering_.front()
  std::deque<InProcessOperation*> gathering_;  // collectives, in order
  std::unordered_map<std::size_t, std::deque<InProcessOperation*>> messages_;  // by sender * size + receiver
  std::vector<std::unique_ptr<InProcessOperation>> all_;
  std::vector<InProcessOperation*> free_;
  std::atomic<InProcessOperation*> spare_{nullptr};  // a free one more, to be had without the mutex

  bool is_broken_ = false;
  ErrorCode broken_code_ = ErrorCode::kUnavailable;
  std::uint64_t broken_number_ = std::numeric_limits<std::uint64_t>::max();
  std::string broken_message_;
  const bool spins_;
};

}  // namespace lockstep
