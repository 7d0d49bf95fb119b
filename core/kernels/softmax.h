// core/kernels/softmax.h - softmax, its logarithm, and the cross entropy of both, on plain memory.
//
// A tensor [..., n, ...] is seen as `inner` columns side by side: element j of item i lies at
// (i / inner) * n * inner + j * inner + i % inner. Each function computes the items [begin, end); the result
// does not depend on the cuts. Exponentials are of distances from the largest element, so that nothing
// overflows; they are added in the order of core/kernels/reduce.h. An item of -inf alone, or with +inf or NaN
// in it, gives NaN. Floating dtypes; f16 and bf16 compute in f32 and round once.
//
// Thread safety: any thread, any number at once, on ranges of items that do not overlap.
#pragma once

#include <cstdint>

#include "lockstep/core/base/export.h"
#include "lockstep/core/dtype.h"

namespace lockstep::kernels {

// out = exp(x) / sum(exp(x)), or its logarithm. `out` may be `in`.
LOCKSTEP_API void softmax(DType dtype, bool log, const void* in, void* out, std::int64_t n,
                          std::int64_t inner, std::int64_t begin, std::int64_t end);

// The gradient of y = softmax(x) with respect to x: out = y * (g - sum(y * g)). `out` may be `y` or `g`.
LOCKSTEP_API void softmax_grad(DType dtype, const void* y, const void* g, void* out, std::int64_t n,
                               std::int64_t inner, std::int64_t begin, std::int64_t end);

// loss[i] = -sum(labels * log(softmax(row i of x))) and probabilities = softmax(x), for rows of n classes.
// The labels are either class numbers (i32 or i64, one per row), or weights of every class (x's dtype, n per
// row), where a zero contributes nothing. A class number outside [0, n) throws RefusedData naming row and
// number. `probabilities` may be `x`.
LOCKSTEP_API void softmax_cross_entropy(DType dtype, const void* x, DType label_dtype, const void* labels,
                                        std::int64_t n, void* loss, void* probabilities, std::int64_t begin,
                                        std::int64_t end);

// out = (probabilities * sum(labels) - labels) * g[i]: the gradient with respect to x, given the gradient g
// with respect to the losses. `out` may be `probabilities`, or labels that are weights.
LOCKSTEP_API void softmax_cross_entropy_grad(DType dtype, const void* probabilities, DType label_dtype,
                                             const void* labels, const void* g, std::int64_t n, void* out,
                                             std::int64_t begin, std::int64_t end);

}  // namespace lockstep::kernels
