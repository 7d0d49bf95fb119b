// graph/ops/updates.cpp - what optimizers do to variables.
#include "lockstep/graph/internal/builtin_ops.h"

namespace lockstep {

void register_updates_ops(OpRegistry&) {}

}  // namespace lockstep
