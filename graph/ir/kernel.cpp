// graph/ir/kernel.cpp - checks of a kernel's context that are not on its fast path.
#include "lockstep/graph/ir/kernel.h"

#include "lockstep/core/error.h"
#include "lockstep/graph/ir/internal/deferral.h"

namespace lockstep {

void KernelContext::check_dtype(const TensorArg& arg, DType wanted) {
  if (arg.spec->dtype != wanted) {
    throw InvalidArgument(str("kernel asks for ", wanted, " elements of a ", arg.spec->dtype, " tensor"));
  }
}

Completion& KernelContext::defer() {
  if (deferral_ == nullptr) {
    throw FailedPrecondition(
        "the kernel defers its call, and its KernelDef does not allow it: set KernelDef::deferred");
  }
  deferral_->begin();
  return *deferral_;
}

void RunInfo::check_stop() const {
  if (cancel != nullptr && cancel->stop_requested()) {
    throw Error(ErrorCode::kCancelled,
                "the run was cancelled before its commit; no variable was changed by it");
  }
  if (deadline != nullptr && std::chrono::steady_clock::now() >= *deadline) {
    throw Error(ErrorCode::kDeadlineExceeded,
                "the deadline passed before the run could commit; no variable was changed by it");
  }
}

}  // namespace lockstep
