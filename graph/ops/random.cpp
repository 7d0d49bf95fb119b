// graph/ops/random.cpp - random draws.
#include "lockstep/graph/ops/random.h"

#include "lockstep/graph/internal/builtin_ops.h"

namespace lockstep {

void register_random_ops(OpRegistry&) {}

}  // namespace lockstep
