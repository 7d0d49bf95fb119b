// graph/ops/reductions.h - reductions over axes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/graph/builder.h"
#include "lockstep/graph/value.h"

namespace lockstep {

// Over the given axes (all where empty), which may count from the end; keepdims leaves them with extent 1.
LOCKSTEP_API Value sum(const Operand& x, std::vector<std::int64_t> axes = {}, bool keepdims = false);

}  // namespace lockstep
