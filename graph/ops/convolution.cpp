// graph/ops/convolution.cpp - convolution and pooling.
#include "lockstep/graph/ops/convolution.h"

#include "lockstep/graph/internal/builtin_ops.h"

namespace lockstep {

void register_convolution_ops(OpRegistry&) {}

}  // namespace lockstep
