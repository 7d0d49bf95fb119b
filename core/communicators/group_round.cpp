// core/communicators/group_round.cpp - a round of a group outside of programs.
#include "lockstep/core/communicators/group_round.h"

#include <exception>
#include <utility>

#include "lockstep/core/awaited_completion.h"

namespace lockstep {

void GroupRound::call(const CommunicatorCall& call) {
  AwaitedCompletion ended;
  group_.start(call, ended, round_);
  ended.wait();
}

void GroupRound::all_gather(DType dtype, const void* in, void* out, std::int64_t count) {
  CommunicatorCall call;
  call.kind = CommunicatorCall::Kind::kAllGather;
  call.dtype = dtype;
  call.count = count;
  call.in = in;
  call.out = out;
  this->call(call);
}

void GroupRound::broadcast(DType dtype, void* data, std::int64_t count, int root) {
  CommunicatorCall call;
  call.kind = CommunicatorCall::Kind::kBroadcast;
  call.dtype = dtype;
  call.count = count;
  call.peer = root;
  call.in = data;
  call.out = data;
  this->call(call);
}

void run_round(Group& group, const std::function<void(GroupRound&)>& body) {
  GroupRound round(group);
  try {
    body(round);
    if (!group.votes()) return;
    AwaitedCompletion ended;
    group.vote(round.round_, ended);
    ended.wait();
  } catch (const std::exception& error) {
    group.give_up(round.round_, code_of(error, ErrorCode::kFailedPrecondition), error.what());
    throw;
  }
}

}  // namespace lockstep
