#include "lockstep/core/kernels/chain.h"

#include "lockstep/core/kernels/simd/internal/vector_table.h"

namespace lockstep::kernels {

std::optional<StepOp> step_of(UnaryOp op) {
  switch (op) {
    case UnaryOp::kNeg: return StepOp::kNeg;
    case UnaryOp::kAbs: return StepOp::kAbs;
    case UnaryOp::kSquare: return StepOp::kSquare;
    case UnaryOp::kRelu: return StepOp::kRelu;
    case UnaryOp::kSqrt: return StepOp::kSqrt;
    case UnaryOp::kReciprocal: return StepOp::kReciprocal;
    default: return std::nullopt;
  }
}

std::optional<StepOp> step_of(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd: return StepOp::kAdd;
    case BinaryOp::kSub: return StepOp::kSub;
    case BinaryOp::kMul: return StepOp::kMul;
    case BinaryOp::kDiv: return StepOp::kDiv;
    case BinaryOp::kMaximum: return StepOp::kMaximum;
    case BinaryOp::kMinimum: return StepOp::kMinimum;
    case BinaryOp::kReluGrad: return StepOp::kReluGrad;
    default: return std::nullopt;
  }
}

ChainLoop chain_loop(DType dtype) {
  if (dtype == DType::kF32) return vector_table().chain[0];
  if (dtype == DType::kF64) return vector_table().chain[1];
  return nullptr;
}

}  // namespace lockstep::kernels
