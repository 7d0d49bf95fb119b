// core/kernels/elementwise.h - arithmetic element by element, on plain memory.
//
// Two levels. A *loop* computes consecutive elements of one dtype and is found once, by op and dtype; a
// Broadcast (core/kernels/broadcast.h) says for which runs to call it. The functions below the loops do both
// at once: they compute the elements [begin, end) of an output, counted row-major, from pointers to whole
// dense row-major tensors.
//
// The result does not depend on where the work is cut. f16 and bf16 compute in f32 and round once; integers
// wrap around on overflow. An output may be exactly an input, but must not overlap one partially.
//
// Accuracy of f32 and f64, in units in the last place (ulp), with subnormal results as good as their spacing
// allows:
//   add sub mul div sqrt square reciprocal   exact up to one rounding
//   rsqrt 2, exp 2, log 4, log1p 4, tanh 5, sigmoid 4, softplus 4, erf 4, pow 1
//   sin and cos 4, near their zeros half an epsilon; gelu 2 epsilon * max(1, |x|), its
//   derivative 8 epsilon
// NaN gives NaN; infinities and zeros give what <cmath> gives.
//
// Thread safety: any thread, any number at once, on ranges of the output that do not overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/core/base/export.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/error.h"
#include "lockstep/core/shape.h"

namespace lockstep::kernels {

// --- loops

enum class UnaryOp : std::uint8_t {
  // numbers
  kNeg,
  kAbs,
  kSquare,
  kSign,  // -1, 0 or 1; NaN stays NaN
  kRelu,  // 0 if below zero: NaN stays NaN, and -0 stays -0
  // floating
  kExp,
  kLog,
  kLog1p,
  kSqrt,
  kRsqrt,
  kReciprocal,
  kSin,
  kCos,
  kTanh,
  kSigmoid,
  kGelu,  // x * (1 + erf(x / sqrt(2))) / 2
  kErf,
  kSoftplus,  // log(1 + exp(x))
  kFloor,
  kCeil,
  kRound,     // half to even
  kIsFinite,  // gives bool
  // bool
  kLogicalNot,
};
inline constexpr std::size_t kNumUnaryOps = static_cast<std::size_t>(UnaryOp::kLogicalNot) + 1;

enum class BinaryOp : std::uint8_t {
  // numbers
  kAdd,
  kSub,
  kMul,
  kDiv,       // integers truncate toward zero
  kFloorDiv,  // rounds down
  kMod,       // a - floor_div(a, b) * b: has the sign of b
  kPow,
  kMaximum,   // NaN if either is
  kMinimum,   // NaN if either is
  kReluGrad,  // a if b > 0, else 0
  kGeluGrad,  // a times the derivative of gelu at b; floating
  // anything; give bool
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kEqual,
  kNotEqual,
  // bool
  kLogicalAnd,
  kLogicalOr,
};
inline constexpr std::size_t kNumBinaryOps = static_cast<std::size_t>(BinaryOp::kLogicalOr) + 1;

LOCKSTEP_API std::string_view to_string(UnaryOp op);   // "neg", "abs", ...
LOCKSTEP_API std::string_view to_string(BinaryOp op);  // "add", "sub", ...
// The dtype of the result on operands of this dtype.
constexpr DType result_dtype(UnaryOp op, DType operand) {
  return op == UnaryOp::kIsFinite ? DType::kBool : operand;
}
constexpr DType result_dtype(BinaryOp op, DType operand) {
  return op >= BinaryOp::kLess ? DType::kBool : operand;
}

// `count` elements of consecutive memory. In a binary or select loop each operand moves along or stands
// still.
using UnaryLoop = void (*)(const void* in, void* out, std::int64_t count);
using BinaryLoop = void (*)(const void* a, bool a_moves, const void* b, bool b_moves, void* out,
                            std::int64_t count);
using SelectLoop = void (*)(const void* condition, bool c_moves, const void* a, bool a_moves, const void* b,
                            bool b_moves, void* out, std::int64_t count);

// The loop, or null if the op has no meaning for the dtype. Loops of integers throw RefusedData for a
// zero divisor (div, floor_div, mod) and a negative exponent (pow), and leave their output partly written;
// all others never throw.
LOCKSTEP_API UnaryLoop unary_loop(UnaryOp op, DType dtype);
LOCKSTEP_API BinaryLoop binary_loop(BinaryOp op, DType dtype);
// out = condition ? a : b; the condition is bool.
LOCKSTEP_API SelectLoop select_loop(DType dtype);

// For a loop over the elements of a tensor from `begin` on: what it refuses has its position in the tensor.
template <class Loop>
void at_element(std::int64_t begin, const Loop& loop) {
  try {
    loop();
  } catch (const RefusedData& refused) {
    throw refused.within_piece(begin);
  }
}

// --- whole tensors

// out = a op b with NumPy broadcasting to out_shape. `out` may be `a` or `b` if that operand has out_shape.
// Throws InvalidArgument if an operand does not broadcast to out_shape, and if the loop does.
LOCKSTEP_API void binary(BinaryOp op, DType dtype, const Shape& out_shape, const void* a,
                         const Shape& a_shape, const void* b, const Shape& b_shape, void* out,
                         std::int64_t begin, std::int64_t end);

// As the loop kRelu.
LOCKSTEP_API void relu(DType dtype, const void* in, void* out, std::int64_t begin, std::int64_t end);

// out = in, bit for bit. `out` may be `in`.
LOCKSTEP_API void copy(DType dtype, const void* in, void* out, std::int64_t begin, std::int64_t end);

// Every element becomes *value, an element of dtype.
LOCKSTEP_API void fill(DType dtype, const void* value, void* out, std::int64_t begin, std::int64_t end);

}  // namespace lockstep::kernels
