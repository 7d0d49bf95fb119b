// core/nccl/nccl_group.h - a Communicator between processes, each with a card, over NCCL.
//
//   FileRendezvous place("/shared/run-42");
//   std::unique_ptr<Communicator> comm = connect_nccl({.rank = 0, .size = 2}, place, deadline_in(60s));
//   Runtime runtime({.groups = {{"world", std::make_shared<Group>(std::move(comm))}}});
//
// Buffers lie in the memory of the participant's card. Each participant makes the same calls in the same order, as
// core/communicators/communicator.h says; NCCL does not find out whether they agree, so that calls which do not agree end by
// their deadlines. What else is different:
//   bits      equal on all participants, and the same each time for one number of participants and one count; sums are not in
//             the order of the ranks, and those of f16 and bf16 round, and may overflow, at each step: cast to f32 first.
//   deadline  holds for the whole operation, and for this participant alone; the others see it leave.
//   failure   a participant that is lost is noticed by NCCL, in time or not, or by the deadline. Then the group is aborted:
//             what it had begun ends at once, and later calls say why. A new group can be made in the same process, under
//             another generation.
//   messages  those that were started before the first of them is waited for are exchanged together.
//   waiting   the first calls wait until NCCL has connected the participants; their deadlines hold for that too, and they may
//             throw what wait() would. A Pending that is dropped while its operation is under way ends the group.
//
// libnccl.so.2 is looked for when it is first needed, so that a program starts where there is none.
//
// Thread safety: one thread at a time for a communicator and all of its Pendings; abort() from any thread.
#pragma once

#include <memory>
#include <stop_token>
#include <string>

#include "lockstep/core/base/export.h"
#include "lockstep/core/communicators/communicator.h"
#include "lockstep/core/communicators/rendezvous.h"
#include "lockstep/core/error.h"

namespace lockstep {

struct NcclGroupSpec {
  std::string name = "world";  // of the group, for keys and messages
  int rank = 0, size = 1;
  int card = 0;        // of this machine
  int generation = 0;  // 1 for the group after the first one has failed, and so on
};

// Is the library there? The reason of a no says what was looked for.
LOCKSTEP_API Decision has_nccl();
// Waits for the other participants. Throws InvalidArgument for a rank or a card that does not exist, Unavailable if there is no
// NCCL or it fails, DeadlineExceeded, which names those that have not come, and Cancelled if `stop` asked it to give up.
LOCKSTEP_API std::unique_ptr<Communicator> connect_nccl(const NcclGroupSpec& spec, Rendezvous& rendezvous,
                                                        Deadline deadline = {},
                                                        const std::stop_token& stop = {});

}  // namespace lockstep
