// graph/passes/constant_folding.h - computes now what never changes.
//
//   constant 2 --+
//                +--> add --> mul --> y            constant 5 --> mul --> y
//   constant 3 --+             |             -->                   |
//                      x ------+                           x ------+
//
// A pure node whose inputs are all constants becomes the constant that its CPU kernel computes, shard by
// shard as it would run, under the node's name, on its device. A node that only folded nodes read is erased.
// A node stays if it has control inputs, regions or values that differ between replicas, if its outputs would
// take more than max_bytes, if shapes that are still unknown follow from it, or if its kernel throws: that
// error belongs to the run. Constants that lost their readers are left to dead-node-elimination. Regions are
// included. Linear, plus the cost of the kernels.
// Thread safety: as any Pass.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

struct ConstantFoldingOptions {
  // A node whose outputs together are larger than this is computed at run time.
  std::int64_t max_bytes = std::int64_t{1} << 20;
};

LOCKSTEP_API std::unique_ptr<Pass> make_constant_folding(ConstantFoldingOptions options = {});

}  // namespace lockstep
