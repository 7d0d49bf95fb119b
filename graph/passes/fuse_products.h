// graph/passes/fuse_products.h - a product of matrices takes along what follows it.
//
//   x --> matmul --> add --> relu --> y        x --> fused_matmul[bias, then=relu] --> y
//   w ------+         |                  -->   w -----+  |
//                     b                        b --------+
//
//   g --> sum over rows --> db                 g --> fused_matmul[sums=b] --> dw
//   |                                    -->                        |
//   +---> matmul(x, g) --> dw                  x -----+             +-------> db
//
// A product takes a bias (a vector along its last axis), then a relu or the sum with another value of its shape and, by the
// option `cpu`, a relu_grad. Only the last of these nodes may have other readers. A product of two matrices takes the sum
// over the rows of one of them, if it sums over these rows itself: so the gradient of a weight takes the gradient of its
// bias, also if one of the two sees the flow reshaped.
//
// If element-wise nodes read the result, fuse-elementwise takes bias, relu and sum into theirs, which saves as much: they
// are left to it. So gelu, which no product takes (cuBLASLt computes another function), has its bias beside it if nothing else
// reads the sum; what trains reads it again.
//
// All nodes that become one are floating, have one device, one replica and the same control inputs, and nothing but the last
// one is waited for. Extents that decide have to be known: the last one, and of values of the product's shape all.
//
// Nodes are joined on devices other than CPUs whose kernel set has `fused_matmul`. On cards results are rounded once instead
// of after each op. CPUs are left alone unless asked for: their bits stay, and so does their time. Run it before
// fuse-elementwise. The fused node takes the name of the last node it replaces; of a product and a sum, the product's.
// Regions are included. Linear.
// Thread safety: as any Pass.
#pragma once

#include <memory>
#include <string>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

struct FuseProductsOptions {
  // Where nodes without a device will run; empty: the first device of the topology.
  std::string device = {};
  // Join nodes of CPUs too.
  bool cpu = false;
};

LOCKSTEP_API std::unique_ptr<Pass> make_fuse_products(FuseProductsOptions options = {});

}  // namespace lockstep
