// core/internal/span_math.h - transcendental functions over spans of f32 and f64, for kernels that compute rows.
//
// An element's bits do not depend on where in the span it stands.
#pragma once

#include <cmath>
#include <cstdint>

namespace lockstep::kernels {

// out[i] = e to the in[i]; `out` may be `in`.
template <class S>
inline void exp_span(const S* in, S* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = std::exp(in[i]);
}

}  // namespace lockstep::kernels
