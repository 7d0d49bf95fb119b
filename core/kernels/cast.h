// core/kernels/cast.h - converts elements from one dtype to another.
//
//   to floating          the nearest value, ties to even; too large becomes infinity; rounded once in total
//   floating to integer  truncates toward zero; a value that does not fit becomes the nearest that does; NaN
//                        becomes 0
//   integer to integer   keeps the low bits (wraps around)
//   to bool              is it not zero? (NaN is not)
//   from bool            0 or 1
//
// Thread safety: any thread.
#pragma once

#include "lockstep/core/base/export.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/kernels/elementwise.h"

namespace lockstep::kernels {

// `out` may be `in` only if both dtypes are the same. Never throws.
LOCKSTEP_API UnaryLoop cast_loop(DType from, DType to);

}  // namespace lockstep::kernels
