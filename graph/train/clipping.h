// graph/train/clipping.h - gradients kept within bounds.
//
//   GradientsAndVariables grads = adam.compute_gradients(loss, variables);
//   const ClippedGradients clipped = clip_by_global_norm(grads, 1.0);
//   adam.apply_gradients(clipped.gradients);
//   b.result(clipped.norm);                     // to watch it
//
// Each function takes dense gradients and IndexedSlices, and gives what it was given: slices stay slices.
// They are clipped by their rows as they stand: if a row is named twice, its two parts count as two rows, and
// the norm is that of the list of rows, not of the sum (call to_dense() first if that matters).
//
// Norms are Euclidean, computed in f32, or in f64 if a gradient is f64. Gradients within the bound keep their
// bits. If a norm is NaN so are all gradients; if it is infinite they are NaN or 0.
//
// In the code of a replica a gradient of global_mean or global_sum is that replica's share: clipping there
// bounds the shares, not their sum. Add them up first (replica_context().all_reduce), or clip with the pass
// clip-by-global-norm, which a strategy takes among its step_passes and which sees the sums.
//
// Errors (InvalidArgument): a bound that is not above 0, no gradients, gradients that are empty or not
// floating. Thread safety: as the builder.
#pragma once

#include <span>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/source_site.h"
#include "lockstep/graph/build/value.h"
#include "lockstep/graph/train/gradients.h"
#include "lockstep/graph/train/optimizer.h"

namespace lockstep {

// Every element brought into [low, high].
LOCKSTEP_API Gradient clip_by_value(const Gradient& gradient, double low, double high,
                                    SourceSite site = SourceSite::current());
// The gradient times min(1, max_norm / its norm).
LOCKSTEP_API Gradient clip_by_norm(const Gradient& gradient, double max_norm,
                                   SourceSite site = SourceSite::current());

// sqrt of the sum of all squares of all gradients, a scalar.
LOCKSTEP_API Value global_norm(std::span<const Gradient> gradients, SourceSite site = SourceSite::current());
LOCKSTEP_API Value global_norm(std::span<const GradientAndVariable> gradients,
                               SourceSite site = SourceSite::current());

// All gradients times min(1, max_norm / global_norm): their direction stays.
struct ClippedGradients {
  GradientsAndVariables gradients;
  Value norm;  // before
};
LOCKSTEP_API ClippedGradients clip_by_global_norm(std::span<const GradientAndVariable> gradients,
                                                  double max_norm, SourceSite site = SourceSite::current());
LOCKSTEP_API std::vector<Gradient> clip_by_global_norm(std::span<const Gradient> gradients, double max_norm,
                                                       SourceSite site = SourceSite::current());

}  // namespace lockstep
