// graph/ops/fused/internal/step_tile.h - a tile function that says which step of a chain it is.
//
// Tile programs look for it in a TileFn (std::function::target) and make one chain of several of them.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/core/kernels/chain.h"
#include "lockstep/core/kernels/elementwise.h"

namespace lockstep::internal {

struct StepTile {
  std::optional<kernels::ChainOp> step;  // none: only the loop
  kernels::UnaryLoop unary = nullptr;    // one of the two is set
  kernels::BinaryLoop binary = nullptr;

  void operator()(const void* const* inputs, void* output, std::int64_t count) const {
    if (unary != nullptr) {
      unary(inputs[0], output, count);
    } else {
      binary(inputs[0], true, inputs[1], true, output, count);
    }
  }
};

}  // namespace lockstep::internal
