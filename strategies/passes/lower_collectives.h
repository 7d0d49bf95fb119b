// strategies/passes/lower_collectives.h - all-reduces of one process become the nodes that compute them.
//
//   a0 --+                                    a0 --+
//        all_reduce[2] --> b0, b1      -->         reduce_replicas --> b0
//   a1 --+                                    a1 --+              `--> copy --> b1     (if b1 is read)
//
// Handles every joined all-reduce, in regions too, with the cross-device ops named
// (strategies/passes/cross_device_ops.h): `auto` asks choose_cross_device_ops for each. An all-reduce over a
// single replica becomes the value itself. If no replica reads a tensor, it is not computed. Edges that
// order-collectives made between the all-reduces are removed: nobody waits for anybody here. all_gather and
// broadcast_replica stay, as do collectives of other ops: their kernels do the work of all replicas.
//
// A collective over the replicas of several workers becomes calls of the group "world" (group_all_reduce, group_all_gather,
// group_broadcast), in the order of the collectives; run order-collectives behind. WorkersExchange says in which order values are
// combined, and in whose memory.
//
// Keeps every bit, except with hierarchical_copy, whose sums are grouped, and nccl, which has an order of its
// own. Linear.
// Thread safety: as any Pass.
#pragma once

#include <memory>
#include <string>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"
#include "lockstep/strategies/passes/cross_device_ops.h"

namespace lockstep {

struct LowerCollectivesOptions {
  std::string ops = "auto";            // by name: see strategies/passes/cross_device_ops.h
  std::string device = {};             // where reduction_to_one_device reduces; empty: replica 0's
  CrossDeviceOpsPtr custom = nullptr;  // instead of a name: the user's own
  // Of collectives over the replicas of several workers: as WorkersExchange (strategies/passes/workers_exchange.h).
  bool joins_first = false;
  std::string exchange = {};
};

LOCKSTEP_API std::unique_ptr<Pass> make_lower_collectives(LowerCollectivesOptions options = {});

}  // namespace lockstep
