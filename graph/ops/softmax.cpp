// graph/ops/softmax.cpp - softmax and its losses.
#include "lockstep/graph/ops/softmax.h"

#include "lockstep/graph/internal/builtin_ops.h"

namespace lockstep {

void register_softmax_ops(OpRegistry&) {}

}  // namespace lockstep
