// graph/ops/shapes.h - ops that move elements and change shapes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/graph/builder.h"
#include "lockstep/graph/value.h"

namespace lockstep {

// A shape given as a Value is an i64 vector that must follow from constants and from shapes: see OpDef::shape_operands.

// The dimensions of x, i64[rank]; costs nothing, and does not look at the contents of x.
LOCKSTEP_API Value shape_of(const Operand& x);
// The same elements under another shape; one dimension may be -1 and is computed. Costs nothing.
LOCKSTEP_API Value reshape(const Operand& x, const Shape& shape);
LOCKSTEP_API Value reshape(const Operand& x, const Value& shape);
// x repeated along new axes and along those of extent 1, as NumPy broadcasts.
LOCKSTEP_API Value broadcast_to(const Operand& x, const Shape& shape);
LOCKSTEP_API Value broadcast_to(const Operand& x, const Value& shape);
// The other way round: the sum of x over what broadcasting a tensor of that shape to x's would repeat. Costs nothing where
// the shapes turn out equal.
LOCKSTEP_API Value sum_to(const Operand& x, const Shape& shape);
LOCKSTEP_API Value sum_to(const Operand& x, const Value& shape);
// Zeros / ones of the dtype and shape of x.
LOCKSTEP_API Value zeros_like(const Operand& x);
LOCKSTEP_API Value ones_like(const Operand& x);
// Joined along an axis, along which alone the shapes may differ.
LOCKSTEP_API Value concat(const std::vector<Value>& values, std::int64_t axis,
                          SourceSite site = SourceSite::current());

}  // namespace lockstep
