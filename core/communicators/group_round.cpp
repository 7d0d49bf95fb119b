// core/communicators/group_round.cpp - a round of a group outside of programs.
#include "lockstep/core/communicators/group_round.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include "lockstep/core/completion.h"

namespace lockstep {

namespace {

class Ended final : public Completion {
 public:
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return ended_; });
    if (why_ != nullptr) std::rethrow_exception(why_);
  }

 private:
  void end(std::exception_ptr why) noexcept override {
    // Signalled under the lock: the waiting thread, which owns this object, cannot go on before it is released.
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    why_ = std::move(why);
    changed_.notify_one();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::exception_ptr why_;
};

}  // namespace

void GroupRound::call(const CommunicatorCall& call) {
  Ended ended;
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
    Ended ended;
    group.vote(round.round_, ended);
    ended.wait();
  } catch (const std::exception& error) {
    group.give_up(round.round_, code_of(error, ErrorCode::kFailedPrecondition), error.what());
    throw;
  }
}

}  // namespace lockstep
