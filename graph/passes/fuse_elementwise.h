// graph/passes/fuse_elementwise.h - element-wise neighbours become one node that goes over memory once.
//
//   x --> mul --> add --> relu --> y                x --> fused { mul, add, relu } --> y
//          |       |                          -->          |
//          2       b --------------+                b -----+
//
// Nodes are joined if they read one another, are pure, compute tiles (OpDef::tile), have one shape (their
// dtypes may differ), one device, one replica and the same control inputs, and if no path leads from one to
// another through other nodes. A value that is broadcast into such a group is an input of it; scalar
// constants are copied into it. A value that other nodes read too becomes one more output: it is written once
// and its readers inside need not load it, which is never worse than a node of its own. Nodes that a shape
// operand follows from (a size that is computed from another's) are not joined: shapes are worked out from
// them before anything runs.
//
// Unknown dimensions: shapes are inferred once more with a number in place of each. Unknown dimensions of
// parameters get the same number if they are at the same position (the batch, most often). If two dimensions
// turn out to differ at run time, this costs time and nothing else: `fused` infers its region again from the
// shapes that arrive, and every result gets its own shape.
//
// On devices other than CPUs, known from the topology, nodes are joined whose ops say what they compute as an expression
// (OpDef::source), if the device's kernel set has `fused`; so are nodes without a device, where there are such devices.
//
// Results keep their bits. The fused node takes the name of the last one it replaces; the nodes in its region
// keep theirs. Regions are included. Linear.
// Thread safety: as any Pass.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

struct FuseElementwiseOptions {
  // The most nodes in one group; 2 or more. With many more, registers no longer fit into the cache.
  std::int64_t max_nodes = 64;
};

LOCKSTEP_API std::unique_ptr<Pass> make_fuse_elementwise(FuseElementwiseOptions options = {});

}  // namespace lockstep
