// graph/passes/accumulate_gradients.h - variables change once in k steps, by the mean of the gradients of all
// k.
//
//                               g --> assign_add[w/accumulated] --+
//   g --> sgd[w]       -->                                        cond --> in every k-th step: sgd[w](sum / k), and
//                               steps % k == k - 1 ---------------+        the sum starts again from 0
//
// For all updates by gradients (OpTraits::Update::gradient) of one level, a graph or a region. k steps with
// small batches of one size then do what one step with the joined batch does, for a loss that is a mean.
// Inside a replicated region what is gathered stays with its replica (synchronization on read);
// insert-all-reduce then puts the reduction into the branch, so that replicas talk once in k steps. Gradients
// that replicas have reduced before are gathered in variables that stay equal.
//
// New variables, none trainable: "<variable>/accumulated_<tag>" for each update (f32 for 16-bit gradients),
// for rows also "<variable>/accumulated_rows_<tag>", and one counter of steps for each level,
// "accumulate_gradients/steps_<tag>". The tag stands for k and the names of the variables that are updated
// there: functions with one store that train different variables gather and count by themselves, and those
// that train the same ones do it together.
//
// What else the branch holds, so that it happens once for each time the variables change: counters, that is
// additions of a constant to an integer scalar which the other inputs of an update (learning rate, number of
// the step) depend on, or which is declared as optimizers declare `iterations` (not trainable, aggregation
// only_first_replica). Those other inputs are computed in every step, and used in every k-th.
//
// Whoever reads the new value of a variable reads the current one in steps that do not change it. Rows are
// summed in a variable as large as the table; those that no step of the k named stay as they are, slots
// included, as with the joined batch. Updates that wait for others (their gradients depend on them) get a
// branch of their own. To clip what is applied, run clip-by-global-norm after this pass. k = 1 changes
// nothing; a second run accumulates again. Linear. Thread safety: as any Pass.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/core/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

struct AccumulateGradientsOptions {
  std::int64_t steps = 1;  // k, 1 or more
};

// Throws BadOptionValue for less than one step.
LOCKSTEP_API std::unique_ptr<Pass> make_accumulate_gradients(AccumulateGradientsOptions options);

}  // namespace lockstep
