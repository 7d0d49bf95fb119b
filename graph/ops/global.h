// graph/ops/global.h - reductions over the batches of all replicas.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/graph/builder.h"
#include "lockstep/graph/value.h"

namespace lockstep {}  // namespace lockstep
