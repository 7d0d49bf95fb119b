// graph/ops/elementwise.h - ops that work element by element.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/graph/builder.h"
#include "lockstep/graph/value.h"

namespace lockstep {

// With NumPy broadcasting; both operands of one dtype. Also as operators.
LOCKSTEP_API Value add(const Operand& a, const Operand& b);
LOCKSTEP_API Value sub(const Operand& a, const Operand& b);
LOCKSTEP_API Value mul(const Operand& a, const Operand& b);
LOCKSTEP_API Value div(const Operand& a, const Operand& b);
LOCKSTEP_API Value less(const Operand& a, const Operand& b);  // bool

LOCKSTEP_API Value identity(const Operand& x);
LOCKSTEP_API Value relu(const Operand& x);

}  // namespace lockstep
