// graph/passes/fuse_attention.h - scaled dot-product attention becomes one node, and its gradient another.
//
//   q --> mul(scale) --> matmul --> add(mask) --> softmax --> dropout --> matmul --> out
//   k ---------------------+                                                |
//   v ----------------------------------------------------------------------+
//
//   q, k, v, mask --> attention --> out, logs
//   q, k, v, mask, out, logs, what flows into out --> attention_grad --> what flows into q, k, v
//
// Scores, shares and what flows back through them, each of queries times keys elements, are then never in memory as a whole: not
// even between the forward and the backward part. The scale may be a product or a quotient by a constant of one element, of q, of
// k or of the scores; scale, mask and dropout may be missing. All q, k and v have the same heads of the same batches and known
// shapes; the mask is a value of their dtype that gets no gradient. Of what flows back, any part may be missing.
//
// All is left as it is if anything else reads one of the values that would be gone, if it is waited for or a result, or if the
// nodes of the forward part, or those of the backward part, differ in device, replica, control inputs, or (in the code of a
// replica) in being gradients that have yet to be summed.
//
// Then values that are transposed only for attention stay as they are. If q, k and v are each transpose({0,2,1,3}) of a value
// [batch, rows, heads, width], these values are read (layout="rows_first"); out and what flows back are written so, too. If they
// are the parts of transpose({2,0,3,1,4}) of a value [batch, rows, 3, heads, width], or its parts each transposed, that value is read
// (`packed`), and what flows back into it is written as one. Reshapes between are no obstacle.
//
// Nodes are joined on devices other than CPUs whose kernel set has both ops, for f16 and bf16, where both widths are equal,
// multiples of 8 and at most 128; f32 by an option. CPUs are left alone unless asked for: results would change by rounding. Run it
// before fuse-products. A fused node takes the name of the last node it replaces. Regions are included. Linear.
// Thread safety: as any Pass.
#pragma once

#include <memory>
#include <string>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

struct FuseAttentionOptions {
  // Where nodes without a device will run; empty: the first device of the topology.
  std::string device = {};
  // Join nodes of CPUs too, whatever the dtype and the widths.
  bool cpu = false;
  // Join nodes of f32 too, on devices other than CPUs.
  bool f32 = false;
};

LOCKSTEP_API std::unique_ptr<Pass> make_fuse_attention(FuseAttentionOptions options = {});

}  // namespace lockstep
