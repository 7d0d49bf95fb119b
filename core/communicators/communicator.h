// core/communicators/communicator.h - participants that exchange arrays: all-reduce, broadcast, send and
// receive, ...
//
// A Communicator is one participant of a group of size(). Buffers are plain memory, a dtype and a count of
// elements.
//
//   Pending sum = comm.all_reduce(ReplicaReduce::kSum, DType::kF32, gradients, gradients, count, deadline_in(5s));
//   ...                 // other work
//   sum.wait();         // the sum is there, or this throws
//
// Contract
//   order     Every participant makes the same collective calls in the same order, with the same operation,
//             dtype, count and root. Calls that do not agree fail on every participant, and the error names
//             both sides. Messages between two participants are matched in order, apart from the
//             collectives.
//   memory    belongs to the operation from the call until wait() returns or throws. Input and output are the
//             same memory (for all_gather and reduce_scatter: the caller's own part of it) or do not overlap,
//             nor do they overlap with those of other participants.
//   waiting   Every call returns at once. A send completes when it has been received: two participants that
//             send to each other start both the send and the receive before they wait for either.
//   failure   A call with invalid arguments throws InvalidArgument and joins no operation. Everything else is
//             thrown by wait(): kInvalidArgument (calls disagree), kDeadlineExceeded (names who had not
//             arrived), kUnavailable (a participant left or was lost; names it). Each of the three breaks the
//             group: operations that had not begun fail, and later calls throw kUnavailable with the first
//             reason. Outputs are undefined after a failure. Nothing hangs, as long as there is a deadline,
//             or participants that leave are destroyed.
//   declining A participant that cannot make the collective that is next may decline it, if the group allows
//             that (can_decline()). Then nobody's is performed, whatever the others have called: wait() throws
//             Declined, with the same reason on every participant, and the group goes on with the next one.
//   deadline  applies to arrival: an operation that all have joined runs to its end. The earliest deadline
//             that any participant gave holds for all of them.
//
// Implementations: core/communicators/in_process_group.h, core/gloo/gloo_group.h, core/nccl/nccl_group.h for cards, and
// core/communicators/host_and_cards.h for both. Others derive from Communicator and PendingState; their headers say what they
// promise about bits and failures.
//
// Thread safety: one thread at a time per Communicator and per Pending; different participants at the same
// time.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/core/base/export.h"
#include "lockstep/core/device.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/error.h"
#include "lockstep/core/kernels/reduce_replicas.h"

namespace lockstep {

// No value: wait for as long as it takes.
using Deadline = std::optional<std::chrono::steady_clock::time_point>;
inline Deadline deadline_in(std::chrono::nanoseconds time) { return std::chrono::steady_clock::now() + time; }

// One call, as an implementation sees it.
struct CommunicatorCall {
  enum class Kind : std::uint8_t {
    kAllReduce,
    kReduce,
    kBroadcast,
    kAllGather,
    kReduceScatter,
    kBarrier,
    kDecline,  // in the place of any other collective
    kSend,
    kReceive
  };
  Kind kind = Kind::kBarrier;
  ReplicaReduce op = ReplicaReduce::kSum;  // for the three kinds that reduce
  DType dtype = DType::kF32;
  std::int64_t count = 0;  // elements; for all_gather and reduce_scatter: of one participant
  int peer = -1;           // the root, or the other end; -1: none
  const void* in = nullptr;
  void* out = nullptr;
  Deadline deadline;
  // Of all_reduce: so many arrays of `count` elements, one behind the other, does each participant contribute; they are combined in
  // the order of the participants and, of each, of its arrays. The input is not the output then.
  std::int64_t parts = 1;
  ErrorCode reason = ErrorCode::kCancelled;  // of kDecline; `in` is a text of `count` bytes
  DeviceKind memory = DeviceKind::kCpu;  // where arrays lie, for communicators that take more than one kind
  // Of a collective: all find out that they make the same call, and no array is touched. Another communicator performs it.
  bool is_agreement = false;

  bool is_collective() const { return kind < Kind::kSend; }
};
LOCKSTEP_API std::string to_string(const CommunicatorCall& call);  // "all_reduce(sum, f32, 1024)"

// A participant declined a collective; it has the code of the reason. If several did, the first by rank.
class LOCKSTEP_API Declined : public Error {
 public:
  Declined(ErrorCode code, int participant, std::string_view reason);
  ~Declined() override;
  int participant() const { return participant_; }
  const std::string& reason() const { return reason_; }  // what it said

 private:
  int participant_;
  std::string reason_;
};

// A Declined that the exception is, or that is nested in it.
LOCKSTEP_API std::optional<Declined> find_declined(const std::exception_ptr& error);

// The operation that a Pending stands for; made by implementations.
class LOCKSTEP_API PendingState {
 public:
  // Whether wait() would return at once. May do a little of the work, so that polling makes progress.
  virtual bool done(int rank) = 0;
  // Blocks until the operation is complete; throws the reason if it failed. Called at most once per rank.
  virtual void wait(int rank) = 0;
  // The last call for a rank, after wait() or instead of it. Afterwards nobody touches the rank's buffers.
  virtual void release(int rank) noexcept = 0;

 protected:
  virtual ~PendingState();
};

// An operation under way. Dropping it without wait() withdraws the participant: an operation that has not
// begun fails for everyone and breaks the group, one that has begun is finished first.
class LOCKSTEP_API Pending {
 public:
  Pending() = default;
  Pending(PendingState* state, int rank) : state_(state), rank_(rank) {}
  Pending(Pending&& other) noexcept : state_(std::exchange(other.state_, nullptr)), rank_(other.rank_) {}
  Pending& operator=(Pending&& other) noexcept;
  ~Pending() { drop(); }

  bool valid() const { return state_ != nullptr; }  // wait() was not called
  // Whether wait() would return at once; never blocks, and does a little of the work.
  bool done();
  // At most once: throws FailedPrecondition if not valid().
  void wait();

 private:
  void drop() noexcept;
  PendingState* state_ = nullptr;
  int rank_ = 0;
};

class LOCKSTEP_API Communicator {
 public:
  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual int rank() const = 0;  // in [0, size())
  virtual int size() const = 0;

  // out = in of participant 0 op in of participant 1 op ..., on every participant.
  [[nodiscard]] Pending all_reduce(ReplicaReduce op, DType dtype, const void* in, void* out,
                                   std::int64_t count, Deadline deadline = {});
  // The same, on the root only; elsewhere `out` is ignored.
  [[nodiscard]] Pending reduce(ReplicaReduce op, DType dtype, const void* in, void* out, std::int64_t count,
                               int root, Deadline deadline = {});
  // `in` has size() * count elements; part r of the result goes to `out` of participant r. In place: out = in
  // + rank() * count elements.
  [[nodiscard]] Pending reduce_scatter(ReplicaReduce op, DType dtype, const void* in, void* out,
                                       std::int64_t count, Deadline deadline = {});
  // `out` has size() * count elements: those of participant 0, of participant 1, ... In place: in = out +
  // rank() * count elements.
  [[nodiscard]] Pending all_gather(DType dtype, const void* in, void* out, std::int64_t count,
                                   Deadline deadline = {});
  // The root's data, on every participant.
  [[nodiscard]] Pending broadcast(DType dtype, void* data, std::int64_t count, int root,
                                  Deadline deadline = {});
  // Complete when every participant has called it.
  [[nodiscard]] Pending barrier(Deadline deadline = {});
  [[nodiscard]] Pending send(DType dtype, const void* data, std::int64_t count, int to,
                             Deadline deadline = {});
  [[nodiscard]] Pending receive(DType dtype, void* data, std::int64_t count, int from,
                                Deadline deadline = {});

  // In the place of the collective that the others call. The text is the reason, of which kMostReason bytes are passed on. Throws
  // Unimplemented unless can_decline().
  [[nodiscard]] Pending decline(ErrorCode code, std::string_view text);
  static constexpr std::int64_t kMostReason = 4096;
  static constexpr std::int64_t kMostParts = 1024;  // CommunicatorCall::parts
  virtual bool can_decline() const { return false; }

  // Any of the calls above, stated by its parts.
  [[nodiscard]] Pending call(const CommunicatorCall& call) { return checked(call); }

  // For whom the oldest collective of this participant waits; -1: for nobody, or nobody knows. From any thread.
  virtual int awaited() const { return -1; }

  // May buffers lie in memory of this kind?
  virtual bool takes(DeviceKind memory) const { return memory == DeviceKind::kCpu; }
  // The group ends, for this participant at once and for the others as if it had left: from any thread, also while operations are
  // under way, any number of times. They fail with this reason, and so do later calls.
  virtual void abort(const Error& why) = 0;
  // Leaves the group, as the destructor does: operations that others wait for with this participant fail.
  // Later calls throw FailedPrecondition.
  virtual void close() = 0;

 protected:
  Communicator() = default;
  // The arguments of the call are valid already; the implementation has to find out whether all participants
  // agree on it.
  virtual Pending start(const CommunicatorCall& call) = 0;

 private:
  Pending checked(const CommunicatorCall& call);
};

}  // namespace lockstep
