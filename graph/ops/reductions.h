// graph/ops/reductions.h - reductions over axes.
//
// Over the given axes (all if empty), which may count from the end; keepdims leaves them with extent 1. The
// order of the arithmetic is fixed by the shape alone (core/kernels/reduce.h); f16 and bf16 compute in f32
// and round once. Thread safety: as the builder.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/value.h"

namespace lockstep {

LOCKSTEP_API Value sum(const Operand& x, std::vector<std::int64_t> axes = {}, bool keepdims = false);
// Floating values only; the mean of no elements is NaN.
LOCKSTEP_API Value mean(const Operand& x, std::vector<std::int64_t> axes = {}, bool keepdims = false);
// NaN if an element is NaN; an empty reduction is refused. The gradient is shared equally by equal elements.
LOCKSTEP_API Value max(const Operand& x, std::vector<std::int64_t> axes = {}, bool keepdims = false);
LOCKSTEP_API Value min(const Operand& x, std::vector<std::int64_t> axes = {}, bool keepdims = false);
// The product of no elements is 1. The gradient is right even if elements are zero; differentiating it a
// second time takes memory for the square of an axis.
LOCKSTEP_API Value prod(const Operand& x, std::vector<std::int64_t> axes = {}, bool keepdims = false);
// Of bool.
LOCKSTEP_API Value any_of(const Operand& x, std::vector<std::int64_t> axes = {}, bool keepdims = false);
LOCKSTEP_API Value all(const Operand& x, std::vector<std::int64_t> axes = {}, bool keepdims = false);
// log(sum(exp(x))) without overflow; no elements, or only -inf, give -inf.
LOCKSTEP_API Value logsumexp(const Operand& x, std::vector<std::int64_t> axes = {}, bool keepdims = false);

// How many elements of x lie along the axes: a scalar that follows from the shape alone, whose contents are
// not looked at.
LOCKSTEP_API Value num_elements(const Operand& x, std::vector<std::int64_t> axes = {},
                                DType dtype = DType::kI64);
// A value that a reduction over `axes` of x gave, with the shape that keepdims gives it.
LOCKSTEP_API Value with_kept_dims(const Value& reduced, const Value& x, std::span<const std::int64_t> axes);

}  // namespace lockstep
