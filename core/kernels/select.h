// core/kernels/select.h - the positions of the largest and smallest elements, on plain memory.
//
// A tensor [..., n, ...] is seen as items of n elements, `inner` of them side by side: element j of item i
// lies at (i / inner) * n * inner + j * inner + i % inner. Each function computes the items [begin, end); the
// result does not depend on the cuts. NaN counts as the most extreme, as in NumPy; among equal elements the
// one with the lowest index is taken. Every dtype but bool, for which they throw InvalidArgument.
//
// Thread safety: any thread, any number at once, on ranges of items that do not overlap.
#pragma once

#include <cstdint>

#include "lockstep/core/base/export.h"
#include "lockstep/core/dtype.h"

namespace lockstep::kernels {

// out[i] = the index of the largest (or smallest) of item i. n > 0.
LOCKSTEP_API void arg_extreme(DType dtype, bool largest, const void* in, std::int64_t* out, std::int64_t n,
                              std::int64_t inner, std::int64_t begin, std::int64_t end);

// The k largest of each item of consecutive elements (inner == 1), largest first, and their indices. k <= n.
LOCKSTEP_API void top_k(DType dtype, const void* in, std::int64_t n, std::int64_t k, void* values,
                        std::int64_t* indices, std::int64_t begin, std::int64_t end);

}  // namespace lockstep::kernels
