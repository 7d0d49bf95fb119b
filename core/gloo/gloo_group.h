// core/gloo/gloo_group.h - a Communicator between processes, over Gloo's TCP connections, or through memory on one machine.
//
//   FileRendezvous place("/shared/run-42");
//   std::unique_ptr<Communicator> comm = connect_gloo({.rank = 0, .size = 2}, place, deadline_in(60s));
//   Runtime runtime({.groups = {{"world", std::make_shared<Group>(std::move(comm))}}});
//
// Gloo connects each participant with each other and carries messages; what is sent when, and in which order values are combined,
// is decided here. Every collective begins with a message from each participant to each other that states the call, so that calls
// which do not agree are found before any array is touched. Up to 64 KiB the array itself is in that message, and everyone
// combines all of them. Beyond, each participant combines a part, in pieces, and sends the result to the others.
//
// On one machine, collectives go through memory that the participants share (GlooGroupSpec::shared_memory); messages, and word of how
// the group ends, go over the connections.
//
// Results have the bits of kernels::reduce_replicas() in the order of the ranks, whatever the timing, and are equal on all
// participants. Bytes that a participant of N sends, of an array of B bytes beyond 64 KiB:
//   all_reduce       2 B (N-1)/N         reduce           B, the root none
//   reduce_scatter   B (N-1)/N           all_gather       B (N-1)/N           (B: of the whole array)
//   broadcast        the root B (N-1)    send             B
//
// A call is performed by whoever waits for it. One that nobody waits for goes on by itself a millisecond or two later, and so do
// those that follow it, at once: on threads of the participant, one for collectives, one after the other, and one for each
// direction of messages with another participant. Contract and failures are as core/communicators/communicator.h describes. What
// is different:
//   deadline  that it names is the first participant, by rank, that had not come; the others need not have come either.
//             Time in which earlier calls ran, which all had made, does not count.
//   lost      A participant is lost when its connection ends. One that is cut off without a word is noticed by deadlines, and by
//             GlooGroupSpec::patience in the midst of an operation.
//   failure   whoever notices it tells the others, so that all have the same reason, if it reaches them.
//   leaving   close() waits up to two seconds, until the others have got all that this participant sent.
//
// A child that fork() makes can make no calls in the group of its parent, and leaves it alone; give it one of its own.
//
// The connections are neither encrypted nor do they ask who connects: use them in networks that you trust. No signal is delivered
// to the threads of the participant; a connection that ends raises no SIGPIPE in any thread.
//
// Thread safety: one thread at a time for a communicator, and for each of its Pendings; abort() from any thread.
#pragma once

#include <chrono>
#include <memory>
#include <stop_token>
#include <string>

#include "lockstep/core/base/export.h"
#include "lockstep/core/communicators/communicator.h"
#include "lockstep/core/communicators/rendezvous.h"

namespace lockstep {

struct GlooGroupSpec {
  std::string name = "world";  // of the group, for keys and messages
  int rank = 0, size = 1;
  // A name or an address of this machine, without a port, at which the others reach it; it chooses the network.
  std::string host = "127.0.0.1";
  int generation = 0;  // 1 for the group after the first one has failed, and so on
  // In the midst of an operation, for the next piece of another participant; twice that where it may be any of them.
  std::chrono::milliseconds patience = std::chrono::seconds(10);
  // all_reduce of more than 64 KiB goes round: a participant sends to the next one only. Sums are then in an order that depends on
  // where an element lies, and f16 and bf16 round at each step: their bits depend on the number of participants, and on what is
  // packed together.
  bool ring = false;
  // If all participants (at most 32) are processes of one user on one machine and in one of its networks, collectives go through memory
  // that they share: N times 256 KiB each. False on any of them: over the connections, as it is if the memory cannot be had.
  bool shared_memory = true;
};

// Waits for the other participants. Throws InvalidArgument for a rank or a host that does not exist, Unavailable if connecting
// fails, DeadlineExceeded, which names those that have not come, and Cancelled if `stop` asked it to give up.
LOCKSTEP_API std::unique_ptr<Communicator> connect_gloo(const GlooGroupSpec& spec, Rendezvous& rendezvous,
                                                        Deadline deadline = {},
                                                        const std::stop_token& stop = {});

}  // namespace lockstep
