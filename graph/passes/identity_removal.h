// graph/passes/identity_removal.h - removes nodes that only pass their input on.
//
//   x --> identity --> y             x --> y
//            |                 -->   |
//            +---> result            +---> result
//
// An op with the trait `alias` whose output has the spec of its input is such a node. It stays if it does
// more: if it has control inputs, since its readers wait for them, or if it is placed on another device than
// its input. A result that was a removed node becomes that node's input. Regions are included.
// Linear. Thread safety: as any Pass.
#pragma once

#include <memory>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

LOCKSTEP_API std::unique_ptr<Pass> make_identity_removal();

}  // namespace lockstep
