// core/kernels/simd/internal/span_math.h - conversions and exponentials of whole spans, for kernels that work
// on rows.
//
// An element's bits do not depend on where in the span it stands.
#pragma once

#include <cstdint>
#include <type_traits>

#include "lockstep/core/dtype.h"
#include "lockstep/core/kernels/elementwise.h"
#include "lockstep/core/kernels/simd/internal/half_floats.h"

namespace lockstep::kernels {

// out[i] = exp(in[i]); `out` may be `in`. f32 and f64.
template <class S>
inline void exp_span(const S* in, S* out, std::int64_t count) {
  unary_loop(UnaryOp::kExp, dtype_of<S>)(in, out, count);
}

// The elements as numbers to compute with: in place, or converted into the buffer.
template <class T, class S>
inline const S* wide_span(const T* in, S* buffer, std::int64_t count) {
  if constexpr (std::is_same_v<T, S>) {
    return in;
  } else {
    to_f32(in, buffer, count);
    return buffer;
  }
}

// The other way round, rounded once; `out` may be `in`.
template <class T, class S>
inline void narrow_span(const S* in, T* out, std::int64_t count) {
  if constexpr (std::is_same_v<T, S>) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = in[i];
  } else {
    from_f32(in, out, count);
  }
}

}  // namespace lockstep::kernels
