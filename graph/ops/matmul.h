// graph/ops/matmul.h - products of matrices.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/graph/builder.h"
#include "lockstep/graph/value.h"

namespace lockstep {

// Rank 2 by rank 2: [m,k] x [k,n] -> [m,n].
LOCKSTEP_API Value matmul(const Operand& a, const Operand& b);

}  // namespace lockstep
