// core/kernels/random.h - random tensors on plain memory.
//
// Element i depends on the stream and on i only, so that any cut of the range, on any thread, gives the same
// tensor:
//   f16, bf16, f32   word i % 4 of block i / 4 (normal: that word and its neighbour, which together make two elements)
//   f64, integers    words 2 * (i % 2) and the next of block i / 2 (normal, f64: all of block i / 2 makes two elements)
// f16 and bf16 round an f32. Only basic arithmetic is used: another compiler or processor gives the same
// bits.
//
// Thread safety: any thread, any number at once, on ranges of the output that do not overlap.
#pragma once

#include <cstdint>

#include "lockstep/core/base/export.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/random.h"

namespace lockstep::kernels {

// Elements [begin, end) of a tensor that is uniform in [low, high); the bounds are rounded to dtype first,
// and a value that rounds up to `high` becomes the one below it. Floating dtypes. Throws InvalidArgument for
// another dtype, if low < high does not hold after rounding, and if high - low is not finite.
LOCKSTEP_API void uniform(DType dtype, const RandomStream& stream, double low, double high, void* out,
                          std::int64_t begin, std::int64_t end);

// Whether uniform(), or integers(), accepts these bounds. False for a dtype that the function does not
// accept.
LOCKSTEP_API bool is_uniform_range(DType dtype, double low, double high);
LOCKSTEP_API bool is_integer_range(DType dtype, std::int64_t low, std::int64_t high);

// Elements [begin, end) of a tensor that is normal with this mean and standard deviation, by Box and Muller's
// method. Floating dtypes; an f32 is accurate to about 1e-6 standard deviations, and at most 6.7 of them from
// the mean (f64: 8.6). Throws InvalidArgument for another dtype, and if mean or stddev is not finite or
// stddev < 0.
LOCKSTEP_API void normal(DType dtype, const RandomStream& stream, double mean, double stddev, void* out,
                         std::int64_t begin, std::int64_t end);

// Elements [begin, end) of a tensor of integers from low to high - 1, equally likely up to 1 in 2^64 / (high
// - low). i32, i64 and u8. Throws InvalidArgument for another dtype, if low < high does not hold, and for
// bounds that dtype cannot hold (high - 1 must fit).
LOCKSTEP_API void integers(DType dtype, const RandomStream& stream, std::int64_t low, std::int64_t high,
                           void* out, std::int64_t begin, std::int64_t end);

// The numbers 0 to n-1 in random order (Fisher and Yates's shuffle); all at once.
LOCKSTEP_API void permutation(const RandomStream& stream, std::int64_t n, std::int64_t* out);

// Elements [begin, end) of x, each kept and divided by 1 - rate or, with probability `rate`, set to 0. For
// element i, word i % 4 of block i / 4 decides, whatever the dtype. Floating dtypes; `out` may be `x`. rate
// must lie in [0, 1], and 1 gives zeros.
LOCKSTEP_API void dropout(DType dtype, const RandomStream& stream, double rate, const void* x, void* out,
                          std::int64_t begin, std::int64_t end);
// The same, if only these elements are there: x and out begin with element `begin`.
LOCKSTEP_API void dropout_part(DType dtype, const RandomStream& stream, double rate, const void* x, void* out,
                               std::int64_t begin, std::int64_t end);

}  // namespace lockstep::kernels
