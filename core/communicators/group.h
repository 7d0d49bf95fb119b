// core/communicators/group.h - a Communicator whose calls complete by themselves, for the nodes of graphs.
//
//   InProcessGroup threads(2);
//   auto group = std::make_shared<Group>(threads.join(0));
//   Runtime runtime({.groups = {{"world", group}}});      // nodes with the attribute group="world" use it
//
// A Communicator has to be waited for, and a node must not keep a thread waiting. So a Group has a thread of
// its own: it makes the calls in the order in which they were started, waits for them in the same order, and
// signals the Completion of each. The order is the contract of a Communicator: all participants start the
// same calls in the same order.
//
// Calls may belong to a round, such as those of one run of a program. All participants begin the same rounds one
// after the other. A round comes to the same end for all: each of them votes for it, when nothing of it can fail
// any more, or one gives it up and says why. Then the calls of the round that were not complete yet fail for all
// with Declined, and the group goes on with the next round. Where the communicator cannot decline calls, giving
// up ends the group, and there is nothing to vote for.
//
// Thread safety: start() may be called from any thread; calls that must keep an order are started one after
// another.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/core/base/export.h"
#include "lockstep/core/communicators/communicator.h"
#include "lockstep/core/completion.h"

namespace lockstep {

class LOCKSTEP_API Group {
 public:
  // Throws InvalidArgument without a communicator, std::system_error if there can be no thread.
  explicit Group(std::unique_ptr<Communicator> communicator);
  // Waits for the calls that were started, and leaves the group. In a child that fork() made it waits for
  // nothing.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  // Leaves several groups at the same time, as their destructors do one after the other: participants that take leave may wait
  // for each other. Nothing is started afterwards.
  static void leave_all(std::span<const std::unique_ptr<Group>> groups) noexcept;

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool takes(DeviceKind memory) const {
    return memory == DeviceKind::kCpu ? takes_host_ : takes_cards_;
  }                              // as Communicator's
  void abort(const Error& why);  // as Communicator's
  // Calls without a deadline of their own have one so long after they were begun; votes have none. 0, as at first: they wait.
  void set_timeout(std::chrono::milliseconds timeout) noexcept;

  // A new round, after those before. 0 stands for no round.
  using Round = std::uint64_t;
  Round begin_round() noexcept;
  // This participant can do no more for the round, for this reason. Waits for nobody. Without memory for that, the group ends.
  void give_up(Round round, ErrorCode code, std::string_view why) noexcept;
  // Completes when all have voted for the round, without a deadline. As start().
  void vote(Round round, Completion& done);
  bool votes() const { return votes_; }  // do rounds have an end here?
  // A wish to stop that goes with the votes: from any thread, or from a handler of signals. is_stop_wanted() is true on all
  // participants from the same vote on.
  void want_stop() noexcept;
  bool is_stop_wanted() const noexcept;

  // Queues the call; the memory belongs to it until `done` is signalled. Whatever goes wrong with the call
  // goes to `done`, except: throws std::bad_alloc, and FailedPrecondition in a child that fork() made; then
  // nothing was queued and `done` is not signalled.
  // `what` is for messages: who makes the call.
  void start(const CommunicatorCall& call, Completion& done, Round round = 0,
             std::shared_ptr<const std::string> what = nullptr);

  // What the group waits for at this moment, from any thread; nothing: it is idle.
  struct Waiting {
    std::string what;     // "group_all_reduce 'grads' at train.cpp:41"
    int for_member = -1;  // -1: for nobody, or nobody knows
    std::chrono::steady_clock::time_point since;
  };
  std::optional<Waiting> waiting() const;

 private:
  void quit() noexcept;
  void join() noexcept;

  struct State;
  struct Started;
  void queue(std::unique_ptr<Started> started);
  std::unique_ptr<State> state_;
  int rank_ = 0, size_ = 0;
  bool votes_ = false;
  bool takes_host_ = true, takes_cards_ = false;
};

}  // namespace lockstep
