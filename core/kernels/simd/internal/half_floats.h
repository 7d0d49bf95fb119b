// core/kernels/simd/internal/half_floats.h - converts runs of 16-bit floats to f32 and back, through the
// vector table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "lockstep/core/dtype.h"
#include "lockstep/core/kernels/simd/internal/vector_table.h"

namespace lockstep::kernels {

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, F16> || std::is_same_v<T, BF16>;

// Loops over 16-bit floats work in pieces of this many f32 on the stack.
inline constexpr std::int64_t kHalfPiece = 512;

inline void to_f32(const F16* in, float* out, std::int64_t count) {
  vector_table().f16_to_f32(in, out, count);
}
inline void to_f32(const BF16* in, float* out, std::int64_t count) {
  vector_table().bf16_to_f32(in, out, count);
}
inline void from_f32(const float* in, F16* out, std::int64_t count) {
  vector_table().f32_to_f16(in, out, count);
}
inline void from_f32(const float* in, BF16* out, std::int64_t count) {
  vector_table().f32_to_bf16(in, out, count);
}

// Calls f(begin, count) for one piece after another.
template <class F>
void by_pieces(std::int64_t count, const F& f) {
  for (std::int64_t at = 0; at < count; at += kHalfPiece) f(at, std::min(kHalfPiece, count - at));
}

}  // namespace lockstep::kernels
