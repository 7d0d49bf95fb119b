// graph/ir/internal/plain_call.h - a function without data as a kernel, which the executor recognises and
// calls directly.
#pragma once

#include <functional>

#include "lockstep/graph/ir/kernel.h"

namespace lockstep::internal {

struct PlainCall {
  std::function<void()> function;
  void operator()(KernelContext&) const { function(); }
};

}  // namespace lockstep::internal
