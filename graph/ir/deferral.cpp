// graph/ir/deferral.cpp - the end of one kernel call that may go on after the kernel has returned.
#include "lockstep/graph/ir/internal/deferral.h"

#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::internal {

void Deferral::begun_twice() { throw FailedPrecondition("the kernel defers one call twice"); }

void WaitingDeferral::begin() {
  if (begun_) begun_twice();
  begun_ = true;
}

void WaitingDeferral::wait() {
  if (begun_) ended_.wait();
}

void WaitingDeferral::end(std::exception_ptr why) noexcept {
  if (why == nullptr) {
    ended_.done();
  } else {
    ended_.failed(std::move(why));
  }
}

}  // namespace lockstep::internal
