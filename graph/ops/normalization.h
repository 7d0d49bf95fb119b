// graph/ops/normalization.h - statistics of values, and normalisation by them.
//
// Thread safety: as the builder.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/value.h"

namespace lockstep {

// The mean over the axes (all if empty), and the variance: the mean of the squared distances from it,
// computed in a second pass over the elements; if there are many, in parts that are joined without loss
// (core/kernels/reduce.h).
struct Moments {
  Value mean, variance;
};
LOCKSTEP_API Moments moments(const Operand& x, std::vector<std::int64_t> axes = {}, bool keepdims = false);

// (x - mean) / sqrt(variance + epsilon) * gamma + beta, with the mean and the variance over the last axes of
// x, those that gamma has; beta has the same. One kernel forward, one backward.
LOCKSTEP_API Value layer_norm(const Operand& x, const Value& gamma, const Value& beta, double epsilon = 1e-5);

}  // namespace lockstep
