// strategies/passes/internal/flat_passes.h - registration of the passes over flat graphs, which run after `replicate`.
#pragma once

#include "lockstep/graph/transform/pass_registry.h"

namespace lockstep::internal {

void add_flat_passes(PassRegistry& registry);

}  // namespace lockstep::internal
