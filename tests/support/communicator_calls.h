// tests/support/communicator_calls.h - calls of communicators that complete by themselves.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/communicators/communicator.h"
#include "lockstep/core/completion.h"

namespace lockstep::testing {

// Waits for one call; says what it failed with.
class Waiter : public Completion {
 public:
  std::string wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return ended_; });
    if (why_ == nullptr) return "";
    try {
      std::rethrow_exception(why_);
    } catch (const std::exception& error) {
      return error.what();
    }
  }

 private:
  void end(std::exception_ptr why) noexcept override {
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

inline CommunicatorCall sum_of(const std::vector<float>& in, std::vector<float>& out) {
  CommunicatorCall call;
  call.kind = CommunicatorCall::Kind::kAllReduce;
  call.dtype = DType::kF32;
  call.count = static_cast<std::int64_t>(in.size());
  call.in = in.data();
  call.out = out.data();
  return call;
}

}  // namespace lockstep::testing
