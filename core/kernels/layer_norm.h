// core/kernels/layer_norm.h - rows brought to mean 0 and variance 1, scaled and shifted, on plain memory.
//
// Rows of d consecutive elements. mean and rstd (1 / sqrt(variance + epsilon)) are floats for f16 and bf16,
// which compute in f32 and round once; else they have the dtype. A row's sums are in the order of
// core/kernels/reduce.h, the variance is the mean of the squared distances from the mean, computed in a
// second pass.
//
// Thread safety: any thread, any number at once, on ranges of rows that do not overlap.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/core/base/export.h"
#include "lockstep/core/dtype.h"

namespace lockstep::kernels {

// y = (x - mean) * rstd * gamma + beta for the rows [begin, end). `y` may be `x`.
LOCKSTEP_API void layer_norm(DType dtype, const void* x, const void* gamma, const void* beta, double epsilon,
                             std::int64_t d, void* y, void* mean, void* rstd, std::int64_t begin,
                             std::int64_t end);

// The gradient with respect to x for the rows [begin, end), given the gradient g with respect to y. Writes to
// `partial`, layer_norm_partial_bytes() long, what these rows add to the gradients of gamma and beta; rows
// are added one after another. `dx` may be `x` or `g`.
LOCKSTEP_API void layer_norm_grad(DType dtype, const void* x, const void* gamma, const void* mean,
                                  const void* rstd, const void* g, std::int64_t d, void* dx, void* partial,
                                  std::int64_t begin, std::int64_t end);
constexpr std::size_t layer_norm_partial_bytes(std::int64_t d) {
  return static_cast<std::size_t>(d) * 2 * sizeof(double);
}
// Adds up the partials, one after another.
LOCKSTEP_API void layer_norm_join(DType dtype, const void* partials, std::int64_t count, std::int64_t d,
                                  void* dgamma, void* dbeta);

}  // namespace lockstep::kernels
