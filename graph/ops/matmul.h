// graph/ops/matmul.h - products of matrices.
//
// Thread safety: as the builder.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/value.h"

namespace lockstep {

// [..., m, k] x [..., k, n] -> [..., m, n], rank 2 or more; leading dimensions broadcast as in NumPy.
// transpose_a reads a as [..., k, m] and transpose_b reads b as [..., n, k], without making the transposed
// tensor.
LOCKSTEP_API Value matmul(const Operand& a, const Operand& b, bool transpose_a = false,
                          bool transpose_b = false);

}  // namespace lockstep
