// graph/ops/softmax.h - softmax and its losses.
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

// exp(x) / sum(exp(x)) along an axis, without overflow; and its logarithm.
LOCKSTEP_API Value softmax(const Operand& x, std::int64_t axis = -1);
LOCKSTEP_API Value log_softmax(const Operand& x, std::int64_t axis = -1);

// The loss of each example, logits [..., classes] -> [...]: -sum(labels * log_softmax(logits)) along the last
// axis. The labels are class numbers (i32 or i64, [...]), or weights of all classes (the shape and dtype of
// the logits; they need not add up to 1, and a zero weight contributes nothing, whatever its logit). A class
// number outside of [0, classes) is an error when the step runs, which names row and number. The gradient is
// one kernel.
LOCKSTEP_API Value softmax_cross_entropy(const Operand& logits, const Value& labels);

}  // namespace lockstep
