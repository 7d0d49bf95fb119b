// graph/ops/elementwise.h - ops that work element by element.
//
// Operands of one op have one dtype; a number becomes a constant of the other operand's dtype. Ops of two and
// more operands broadcast as NumPy does. f16 and bf16 compute in f32 and round once; integers wrap around.
// Accuracy: core/kernels/elementwise.h. Derivatives at corners: docs/ops.md.
// Thread safety: as the builder.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/value.h"

namespace lockstep {

// --- two operands. The first four also as operators, and -x for neg(x).
LOCKSTEP_API Value add(const Operand& a, const Operand& b);
LOCKSTEP_API Value sub(const Operand& a, const Operand& b);
LOCKSTEP_API Value mul(const Operand& a, const Operand& b);
LOCKSTEP_API Value div(const Operand& a, const Operand& b);  // integers truncate; dividing them by 0 fails
LOCKSTEP_API Value floor_div(const Operand& a, const Operand& b);  // rounds down
LOCKSTEP_API Value mod(const Operand& a, const Operand& b);      // a - floor_div(a, b) * b: has the sign of b
LOCKSTEP_API Value pow(const Operand& a, const Operand& b);      // integers: a negative exponent fails
LOCKSTEP_API Value maximum(const Operand& a, const Operand& b);  // NaN where either is
LOCKSTEP_API Value minimum(const Operand& a, const Operand& b);  // NaN where either is
// Give bool: false if either is NaN, except not_equal. Also as operators < <= > >= (== compares handles).
LOCKSTEP_API Value less(const Operand& a, const Operand& b);
LOCKSTEP_API Value less_equal(const Operand& a, const Operand& b);
LOCKSTEP_API Value greater(const Operand& a, const Operand& b);
LOCKSTEP_API Value greater_equal(const Operand& a, const Operand& b);
LOCKSTEP_API Value equal(const Operand& a, const Operand& b);
LOCKSTEP_API Value not_equal(const Operand& a, const Operand& b);
// Of bool.
LOCKSTEP_API Value logical_and(const Operand& a, const Operand& b);
LOCKSTEP_API Value logical_or(const Operand& a, const Operand& b);
LOCKSTEP_API Value logical_not(const Operand& x);

// --- choosing
// a where the condition (bool) holds, else b; all three broadcast.
LOCKSTEP_API Value where(const Operand& condition, const Operand& a, const Operand& b);
// x, but not below low nor above high; NaN stays NaN. Infinite bounds bound nothing.
LOCKSTEP_API Value clip(const Operand& x, double low, double high);
// x, of floating values; a step in which one of them is NaN, or infinite, fails (InvalidArgument) before it changes a variable.
// The pass check-finite puts it behind every node. With `infinite` false only NaN is refused.
LOCKSTEP_API Value check_finite(const Operand& x, bool infinite = true);

// --- one operand
LOCKSTEP_API Value identity(const Operand& x);
LOCKSTEP_API Value neg(const Operand& x);
LOCKSTEP_API Value abs(const Operand& x);
LOCKSTEP_API Value square(const Operand& x);
LOCKSTEP_API Value sign(const Operand& x);  // -1, 0 or 1
LOCKSTEP_API Value relu(const Operand& x);  // max(x, 0)
// Floating.
LOCKSTEP_API Value exp(const Operand& x);
LOCKSTEP_API Value log(const Operand& x);
LOCKSTEP_API Value log1p(const Operand& x);  // log(1 + x), exact for small x
LOCKSTEP_API Value sqrt(const Operand& x);
LOCKSTEP_API Value rsqrt(const Operand& x);       // 1 / sqrt(x)
LOCKSTEP_API Value reciprocal(const Operand& x);  // 1 / x
LOCKSTEP_API Value sin(const Operand& x);
LOCKSTEP_API Value cos(const Operand& x);
LOCKSTEP_API Value tanh(const Operand& x);
LOCKSTEP_API Value sigmoid(const Operand& x);  // 1 / (1 + exp(-x))
LOCKSTEP_API Value gelu(const Operand& x);     // x * (1 + erf(x / sqrt(2))) / 2
LOCKSTEP_API Value erf(const Operand& x);
LOCKSTEP_API Value softplus(const Operand& x);  // log(1 + exp(x))
LOCKSTEP_API Value floor(const Operand& x);
LOCKSTEP_API Value ceil(const Operand& x);
LOCKSTEP_API Value round(const Operand& x);     // half to even
LOCKSTEP_API Value isfinite(const Operand& x);  // bool

// --- dtypes
// x as another dtype (core/kernels/cast.h has the rules): to integers it truncates and saturates, NaN becomes
// 0; to bool it asks != 0. x itself if it already has the dtype.
LOCKSTEP_API Value cast(const Operand& x, DType dtype);

// --- for gradient rules
// gradient where x > 0, else 0; x may be relu's input or its output.
LOCKSTEP_API Value relu_grad(const Operand& gradient, const Operand& x);
// gradient times the derivative of gelu at x; floating.
LOCKSTEP_API Value gelu_grad(const Operand& gradient, const Operand& x);

}  // namespace lockstep
