// strategies/passes/register.h - the passes of this folder, by name.
//
// Thread safety: any thread, any number of times.
#pragma once

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass_registry.h"

namespace lockstep {

// Adds the passes to the registry, once: a second call changes nothing. Strategies call it for the global
// registry.
LOCKSTEP_API void register_strategy_passes(PassRegistry& registry = PassRegistry::global());

}  // namespace lockstep
