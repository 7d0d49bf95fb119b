// core/kernels/random.h - random tensors on plain memory.
//
// Element i depends on the stream and on i only: word i % 4 of block i / 4 (f64: words 2 * (i % 2) and the next of
// block i / 2). So any cut of the range, on any thread, gives the same tensor. f16 and bf16 round an f32.
//
// Thread safety: any thread, any number at once, on ranges of the output that do not overlap.
#pragma once

#include <cstdint>

#include "lockstep/core/dtype.h"
#include "lockstep/core/export.h"
#include "lockstep/core/random.h"

namespace lockstep::kernels {

// Elements [begin, end) of a tensor that is uniform in [low, high); the bounds are rounded to dtype first, and a value
// that rounds up to `high` becomes the one below it. Floating dtypes. Throws InvalidArgument for another dtype, and
// where low < high does not hold after rounding or high - low is not finite.
LOCKSTEP_API void uniform(DType dtype, const RandomStream& stream, double low, double high, void* out,
                          std::int64_t begin, std::int64_t end);

}  // namespace lockstep::kernels
