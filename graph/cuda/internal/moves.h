// graph/cuda/internal/moves.h - bytes and elements that are moved as they are.
#pragma once

#include <cstddef>
#include <span>

#include "lockstep/core/compute_device.h"
#include "lockstep/graph/ir/op.h"

namespace lockstep::internal::cuda {

// Kernels of ops that only move elements (OpDef::moves).
KernelFn make_move_kernel(const ElementMoves& moves, std::span<const TensorSpec> outputs);

// Within the card, unless they lie there already.
void copy_bytes(Stream& stream, void* to, const void* from, std::size_t bytes);

}  // namespace lockstep::internal::cuda
