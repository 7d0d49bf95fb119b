// graph/passes/constant_folding.h - computes now what never changes.
//
//   constant 2 --+
//                +--> add --> mul --> y            constant 5 --> mul --> y
//   constant 3 --+             |             -->                   |
//                      x ------+                           x ------+
//
// A pure node whose inputs are all constants becomes the constant that its CPU kernel computes, shard by
// shard as it would run, under the node's name, on its device. One that is read by folded nodes alone is
// gone. A node stays that has control inputs, regions or values that differ between replicas, whose outputs
// would take more than max_bytes, that shapes follow from although they are not known yet, or whose kernel throws:
// that error belongs to the run. Constants that lost their readers are left to dead-node-elimination. Regions are
// included. Linear, plus what the kernels cost.
// Thread safety: as any Pass.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/core/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

struct ConstantFoldingOptions {
  // A node whose outputs are larger together is computed at run time.
  std::int64_t max_bytes = std::int64_t{1} << 20;
};

LOCKSTEP_API std::unique_ptr<Pass> make_constant_folding(ConstantFoldingOptions options = {});

}  // namespace lockstep
