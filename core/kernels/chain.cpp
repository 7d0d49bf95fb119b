// core/kernels/chain.cpp - several cheap steps on one value, with no memory in between.
#include "lockstep/core/kernels/chain.h"

#include "lockstep/core/kernels/simd/internal/vector_table.h"

namespace lockstep::kernels {

std::optional<ChainOp> chain_op_of(UnaryOp op) {
  switch (op) {
    case UnaryOp::kNeg: return ChainOp::kNeg;
    case UnaryOp::kAbs: return ChainOp::kAbs;
    case UnaryOp::kSquare: return ChainOp::kSquare;
    case UnaryOp::kRelu: return ChainOp::kRelu;
    case UnaryOp::kSqrt: return ChainOp::kSqrt;
    case UnaryOp::kReciprocal: return ChainOp::kReciprocal;
    default: return std::nullopt;
  }
}

std::optional<ChainOp> chain_op_of(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd: return ChainOp::kAdd;
    case BinaryOp::kSub: return ChainOp::kSub;
    case BinaryOp::kMul: return ChainOp::kMul;
    case BinaryOp::kDiv: return ChainOp::kDiv;
    case BinaryOp::kMaximum: return ChainOp::kMaximum;
    case BinaryOp::kMinimum: return ChainOp::kMinimum;
    case BinaryOp::kReluGrad: return ChainOp::kReluGrad;
    default: return std::nullopt;
  }
}

ChainLoop chain_loop(DType dtype) {
  if (dtype == DType::kF32) return vector_table().chain[0];
  if (dtype == DType::kF64) return vector_table().chain[1];
  return nullptr;
}

}  // namespace lockstep::kernels
