// graph/ops/normalization.cpp - batch statistics and normalisation.
#include "lockstep/graph/ops/normalization.h"

#include "lockstep/graph/internal/builtin_ops.h"

namespace lockstep {

void register_normalization_ops(OpRegistry&) {}

}  // namespace lockstep
