// strategies/passes/order_collectives.h - collectives run in one fixed order.
//
//   a -> all_reduce -> x                 a -> all_reduce -> x
//                                  -->          |  (runs before)
//   b -> all_reduce_1 -> y               b -> all_reduce_1 -> y
//
// Participants that enter collectives in different orders wait for each other forever. So the collectives of
// each level (Effect::kCollective; a branch or loop that holds some counts as one) get control edges along
// their topological order, ties broken by id. The order follows from the graph alone: workers that build the
// same graph have the same order, and compare it by digest: a CollectiveSchedule in PassContext::records
// (strategies/proof/collective_schedule.h). lower-collectives drops the edges if nobody waits for anybody.
// Linear.
// Thread safety: as any Pass.
#pragma once

#include <memory>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

LOCKSTEP_API std::unique_ptr<Pass> make_order_collectives();

}  // namespace lockstep
