// core/communicators/in_process_group.h - a Communicator between threads of one process, through their own
// memory.
//
//   InProcessGroup group(4);
//   std::jthread worker([comm = group.join(1)] { ... comm->all_reduce(...).wait(); ... });
//
// join(rank) hands out each participant once, to any thread. An operation begins when all have called it;
// then it is cut into chunks of at most 64 KiB, and every participant inside wait() takes chunks until none
// is left, its own share first. So every participant that waits makes progress for all, one that does other
// work meanwhile only has to have made its call, and there are no threads besides the callers'. In a small
// collective (at most 4 KiB in all arrays together; 32 KiB if there are more participants than processors)
// every participant leaves a copy of its input when it calls, and computes its own result from all copies in
// wait() or done().
//
// Memory traffic for N participants and arrays of B bytes, except in small collectives; nothing is read
// twice, and there are no buffers in between:
//   all_reduce       reads N B, writes N B      reduce           reads N B, writes B
//   reduce_scatter   reads N B, writes B        all_gather       reads B, writes N B     (B: of the whole array)
//   broadcast        reads B, writes (N-1) B    send, receive    reads B, writes B
//   barrier          none
// Apart from that, an operation costs less than a microsecond if all participants run at the same time:
// arriving is one atomic addition, and no lock is taken. A participant that waits spins for a few
// microseconds (not at all if there are more participants than processors), then yields to other threads for
// 50 us, then sleeps, which costs a wake-up by the kernel: tens of microseconds.
//
// Results have the bits of kernels::reduce_replicas() in the order of the ranks, whatever the timing, and are
// equal on all participants.
//
// Failures are as core/communicators/communicator.h describes. A participant is lost when its Communicator is
// closed or destroyed, when one of its Pendings is dropped before the operation began, when declare_lost()
// says so, and when the group is destroyed before it joined. An operation that has begun no longer depends on
// any one participant: those that wait for it complete it.
//
// Thread safety: InProcessGroup may be used by any thread at any time, and be destroyed before its
// participants and before their Pendings.
#pragma once

#include <memory>
#include <string>

#include "lockstep/core/base/export.h"
#include "lockstep/core/communicators/communicator.h"

namespace lockstep {

namespace internal {
class InProcessRoom;
}  // namespace internal

class LOCKSTEP_API InProcessGroup {
 public:
  // Throws InvalidArgument for fewer than one participant, or more than 65,535.
  explicit InProcessGroup(int participants);
  ~InProcessGroup();
  InProcessGroup(const InProcessGroup&) = delete;
  InProcessGroup& operator=(const InProcessGroup&) = delete;

  int size() const;
  // Throws InvalidArgument for a rank outside [0, size()), FailedPrecondition for one that has joined before.
  std::unique_ptr<Communicator> join(int rank);
  // Breaks the group for everyone and names `rank` as the cause; for a caller that knows that the
  // participant's thread will not come back.
  void declare_lost(int rank, const std::string& why);

 private:
  std::shared_ptr<internal::InProcessRoom> room_;
};

}  // namespace lockstep
