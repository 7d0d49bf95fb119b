// strategies/passes/share_mirrored.h - values that are equal on all replicas are computed and kept once.
//
//   x0 -+             +-> t0 -> neg   -> assign @w                x0 -+
//       all_reduce[2]-+                                     -->       all_reduce[2] -> t0 -> neg -> assign @w
//   x1 -+             +-> t1 -> neg_1 -> assign @"w/replica_1"    x1 -+
//                                                                 var @"w/replica_1" [copy_of=@w, shares=true]
//
// If the values of several replicas are proven equal (strategies/proof/congruence.h) and lie in one memory
// (all CPUs of this process are one), readers move to the first of them, which then belongs to no replica in
// particular; the nodes of the others are erased. This applies to pure nodes, to reads, and to updates of
// variables whose copies stay equal: each update of a copy is merged into the update of the variable at the
// same point of its history, the copy then lies in the variable's memory, and nodes name the variable.
// Collectives keep their inputs; their outputs for other replicas are no longer read, which lower-collectives
// exploits. Regions that hold all replicas are treated alike.
//
// Results and variables keep their bits. Copies that cannot be shared (another memory, copies that drift
// apart or belong to their replica, updates that do not pair up) stay as they are. Needs no proof before it:
// variables that drift apart (allow-drift) are found and left alone.
//
// Option: variables=false leaves updates and copies alone. Linear.
// Thread safety: as any Pass.
#pragma once

#include <memory>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

struct ShareMirroredOptions {
  bool variables = true;
};

LOCKSTEP_API std::unique_ptr<Pass> make_share_mirrored(ShareMirroredOptions options = {});

}  // namespace lockstep
