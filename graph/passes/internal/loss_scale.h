// graph/passes/internal/loss_scale.h - gradients computed from a loss times a scale, for mixed-precision.
#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/graph/ir/graph.h"

namespace lockstep::internal {

struct LossScale {
  std::string_view pass;  // on whose behalf
  double scale = 1;       // a power of two
  std::int64_t growth_steps = 0;
};

// Scales what gradients() begins with, and takes the scale out of what it gives. Says whether it changed the graph: one
// that is scaled already, or has no gradients, stays. Throws PassError.
bool scale_gradients(Graph& graph, const LossScale& how);

}  // namespace lockstep::internal
