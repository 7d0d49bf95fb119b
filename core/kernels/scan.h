// core/kernels/scan.h - running sums and products along an axis, on plain memory.
//
// A tensor [..., n, ...] is seen as items of n elements, `inner` of them side by side: element j of item i
// lies at (i / inner) * n * inner + j * inner + i % inner. The items [begin, end) are computed; the result
// does not depend on the cuts. Elements are added one after another; f16 and bf16 in f32, each result rounded
// once; integers wrap around.
//
// Thread safety: any thread, any number at once, on ranges of items that do not overlap.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/core/base/export.h"
#include "lockstep/core/dtype.h"

namespace lockstep::kernels {

// out[j] = the sum of all elements up to j, j included unless `exclusive`; `reverse` counts from the end.
// `out` may be `in`. Every dtype but bool, for which it throws InvalidArgument.
LOCKSTEP_API void cumsum(DType dtype, const void* in, void* out, std::int64_t n, std::int64_t inner,
                         bool exclusive, bool reverse, std::int64_t begin, std::int64_t end);

// out[j] = the product of all elements but j: of those before it, one after another, times those after it,
// likewise. Floating dtypes; `out` must not be `in`. f16 and bf16 multiply in f32 and round once; they need
// `products`, room for as many floats as `out` has elements.
LOCKSTEP_API void prod_of_others(DType dtype, const void* in, void* out, float* products, std::int64_t n,
                                 std::int64_t inner, std::int64_t begin, std::int64_t end);
// The bytes of `products` that it needs.
constexpr std::size_t prod_of_others_scratch(DType dtype, std::int64_t elements) {
  const bool half = dtype == DType::kF16 || dtype == DType::kBF16;
  return half ? static_cast<std::size_t>(elements) * sizeof(float) : 0;
}

}  // namespace lockstep::kernels
