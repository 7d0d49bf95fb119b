// core/kernels/chain.h - several cheap steps on one value, with no memory in between.
//
//   y = max(x * 1.5 + b, 0)      is   {kMul, kRightScalar, &1.5}, {kAdd, kRight, b}, {kRelu}
//
// A loop over single ops loads and stores each element once per op. A chain loads a block of vectors, takes
// it through all steps in the machine's registers, and stores it. The bits are those of the loops of
// elementwise.h, whose arithmetic it uses. For f32 and f64.
//
// Thread safety: any thread, any number at once, on outputs that do not overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "lockstep/core/base/export.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/kernels/elementwise.h"

namespace lockstep::kernels {

enum class ChainOp : std::uint8_t {
  // one operand
  kNeg,
  kAbs,
  kSquare,
  kRelu,
  kSqrt,
  kReciprocal,
  kStore,  // the value as it is now goes to `operand`
  // two operands
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMaximum,
  kMinimum,
  kReluGrad,
};
// The step that does what the op does; none if the op is not a cheap one.
LOCKSTEP_API std::optional<ChainOp> chain_op_of(UnaryOp op);
LOCKSTEP_API std::optional<ChainOp> chain_op_of(BinaryOp op);

// On which side of the value the other operand stands, and whether it is one element or as many as the value
// has.
enum class ChainForm : std::uint8_t { kRight, kRightScalar, kLeft, kLeftScalar };

struct ChainLink {
  ChainOp op = ChainOp::kNeg;
  ChainForm form = ChainForm::kRight;  // kRight if there is no other operand
  void* operand = nullptr;             // only kStore writes there
};

// Takes `count` elements of `in` through the steps and writes them to `out`. `out`, and what kStore writes
// to, may be `in` or an operand, exactly; an operand must have been read by the time it is written over.
using ChainLoop = void (*)(const void* in, const ChainLink* steps, std::size_t num_steps, void* out,
                           std::int64_t count);
LOCKSTEP_API ChainLoop chain_loop(DType dtype);  // null for dtypes other than f32 and f64

}  // namespace lockstep::kernels
