// graph/ops/ops.h - the op library as functions on values.
//
// Each function adds one node; its op has the function's name. What every op takes and gives is in
// docs/ops.md. Thread safety: as the builder; register_builtin_ops() as OpRegistry.
#pragma once

#include "lockstep/core/base/export.h"
#include "lockstep/graph/build/regions.h"
#include "lockstep/graph/ops/collectives.h"
#include "lockstep/graph/ops/convolution.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/global.h"
#include "lockstep/graph/ops/group_collectives.h"
#include "lockstep/graph/ops/indexing.h"
#include "lockstep/graph/ops/matmul.h"
#include "lockstep/graph/ops/normalization.h"
#include "lockstep/graph/ops/random.h"
#include "lockstep/graph/ops/reductions.h"
#include "lockstep/graph/ops/scans.h"
#include "lockstep/graph/ops/shapes.h"
#include "lockstep/graph/ops/softmax.h"
#include "lockstep/graph/ops/sources.h"
#include "lockstep/graph/ops/updates.h"

namespace lockstep {

class OpRegistry;

// Called once by OpRegistry::global().
LOCKSTEP_API void register_builtin_ops(OpRegistry& registry);

}  // namespace lockstep
