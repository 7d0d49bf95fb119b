// graph/ops/global.cpp - reductions over the batches of all replicas.
#include "lockstep/graph/ops/global.h"

#include "lockstep/graph/internal/builtin_ops.h"

namespace lockstep {

void register_global_ops(OpRegistry&) {}

}  // namespace lockstep
