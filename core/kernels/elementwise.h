// core/kernels/elementwise.h - arithmetic element by element, on plain memory.
//
// Every function computes the elements [begin, end) of its output, counted row-major, so that a large tensor can be
// cut anywhere: the result does not depend on the cuts. Pointers are those of whole dense row-major tensors.
// f16 and bf16 compute in f32 and round once; integers wrap around on overflow.
//
// Thread safety: any thread, any number at once, on ranges of the output that do not overlap.
#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/core/dtype.h"
#include "lockstep/core/export.h"
#include "lockstep/core/shape.h"

namespace lockstep::kernels {

enum class BinaryOp : std::uint8_t { kAdd, kSub, kMul, kDiv, kLess };
LOCKSTEP_API std::string_view to_string(BinaryOp op);  // "add", "sub", "mul", "div", "less"

// out = a op b with NumPy broadcasting to out_shape, for every dtype but bool; kLess takes
// bool too, and gives bool. Integer division truncates toward zero;
// a zero divisor throws InvalidArgument, and leaves the range partly written. `out` may be `a` or `b` where that
// operand has out_shape. Throws InvalidArgument where an operand does not broadcast to out_shape.
LOCKSTEP_API void binary(BinaryOp op, DType dtype, const Shape& out_shape, const void* a,
                         const Shape& a_shape, const void* b, const Shape& b_shape, void* out,
                         std::int64_t begin, std::int64_t end);

// out = in where in is not below zero, else 0: NaN stays NaN, and -0 stays -0. Every dtype but bool; `out` may be `in`.
LOCKSTEP_API void relu(DType dtype, const void* in, void* out, std::int64_t begin, std::int64_t end);

// out = in, bit for bit. `out` may be `in`.
LOCKSTEP_API void copy(DType dtype, const void* in, void* out, std::int64_t begin, std::int64_t end);

// Every element becomes *value, an element of dtype.
LOCKSTEP_API void fill(DType dtype, const void* value, void* out, std::int64_t begin, std::int64_t end);

}  // namespace lockstep::kernels
