// graph/passes/accumulate_gradients.h - variables change once in k steps, by the mean of the gradients of all
// k.
//
//                               g --> assign_add[w/accumulated] --+
//   g --> sgd[w]       -->                                        cond --> in every k-th step: sgd[w](sum / k), and
//                               steps % k == k - 1 ---------------+        the sum starts again from 0
//
// For all updates by gradients (OpTraits::Update::gradient) of one level, a graph or a region. k steps with
// small batches of one size then do what one step with the joined batch does, if the loss is a mean. Inside a
// replicated region each replica accumulates for itself (synchronization on read); insert-all-reduce then
// puts the reduction into the branch, so that replicas communicate once in k steps. Gradients that replicas
// have already reduced are accumulated in variables that stay equal.
//
// New variables, none trainable: "<variable>/accumulated_<tag>" for each update (f32 for 16-bit gradients),
// for rows also "<variable>/accumulated_rows_<tag>", and one counter of steps for each level,
// "accumulate_gradients/steps_<tag>". The tag stands for k and the names of the variables that are updated
// there: functions on one store that train different variables accumulate and count separately, and functions
// that train the same variables do so together.
//
// The branch also holds counters, so that they advance once each time the variables change. A counter is the
// addition of a constant to an integer scalar that the other inputs of an update (learning rate, step number)
// depend on, or that is declared as optimizers declare `iterations` (not trainable, aggregation
// only_first_replica). Those other inputs are computed in every step, and used in every k-th.
//
// A reader of a variable's new value gets the current one in steps that do not change it. Rows are summed in
// a variable as large as the table; rows that none of the k steps named stay as they are, slots included, as
// with the joined batch. Updates whose gradients depend on other updates get a branch of their own. To clip
// what is applied, run clip-by-global-norm after this pass. k = 1 changes nothing; a second run accumulates
// again. Linear. Thread safety: as any Pass.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

struct AccumulateGradientsOptions {
  std::int64_t steps = 1;  // k, 1 or more
};

// Throws BadOptionValue if steps is below 1.
LOCKSTEP_API std::unique_ptr<Pass> make_accumulate_gradients(AccumulateGradientsOptions options);

}  // namespace lockstep
