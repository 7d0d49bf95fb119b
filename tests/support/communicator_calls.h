// tests/support/communicator_calls.h - calls of communicators that complete by themselves.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "lockstep/core/awaited_completion.h"
#include "lockstep/core/communicators/communicator.h"

namespace lockstep::testing {

// Waits for one call; says what it failed with.
class Waiter : public AwaitedCompletion {
 public:
  std::string wait() {
    try {
      AwaitedCompletion::wait();
      return "";
    } catch (const std::exception& error) {
      return error.what();
    }
  }
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
