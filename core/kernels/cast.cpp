// core/kernels/cast.cpp - converts elements from one dtype to another.
#include "lockstep/core/kernels/cast.h"

#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "lockstep/core/kernels/simd/internal/half_floats.h"

namespace lockstep::kernels {
namespace {

using internal::to_odd_f32;

float to_odd_f32(std::int64_t x) {
  constexpr std::int64_t kLow = 0x7FF;  // f64 holds the 53 bits above these
  const std::int64_t high = x & ~kLow;
  const bool wide = x > (std::int64_t{1} << 53) || x < -(std::int64_t{1} << 53);
  if (!wide) return to_odd_f32(static_cast<double>(x));
  return to_odd_f32(static_cast<double>((x & kLow) != 0 ? high | (kLow + 1) : high));
}

template <class To, class From>
To cast_one(From x) {
  if constexpr (std::is_same_v<To, bool>) {
    return x != From{0};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    // 2^k, where To's largest number is 2^k - 1: exact in every floating type.
    constexpr From kTop =
        static_cast<From>(std::uint64_t{1} << (static_cast<unsigned>(std::numeric_limits<To>::digits) - 1)) *
        2;
    if (x >= kTop) return std::numeric_limits<To>::max();
    if (x <= static_cast<From>(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
    return x == x ? static_cast<To>(x) : To{0};
  } else {
    return static_cast<To>(x);
  }
}

template <class From, class To>
void cast(const void* in, void* out, std::int64_t count) {
  const From* from = static_cast<const From*>(in);
  To* to = static_cast<To*>(out);
  if constexpr (std::is_same_v<From, To>) {
    if (count > 0 && in != out) std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(To));
  } else if constexpr (kIsHalf<From> && std::is_same_v<To, float>) {
    to_f32(from, to, count);
  } else if constexpr (std::is_same_v<From, float> && kIsHalf<To>) {
    from_f32(from, to, count);
  } else if constexpr (kIsHalf<From>) {
    by_pieces(count, [&](std::int64_t at, std::int64_t n) {
      float piece[kHalfPiece];
      to_f32(from + at, piece, n);
      cast<float, To>(piece, to + at, n);
    });
  } else if constexpr (kIsHalf<To>) {
    by_pieces(count, [&](std::int64_t at, std::int64_t n) {
      float piece[kHalfPiece];
      for (std::int64_t i = 0; i < n; ++i) {
        if constexpr (std::is_same_v<From, double> || std::is_same_v<From, std::int64_t>) {
          piece[i] = to_odd_f32(from[at + i]);
        } else if constexpr (std::is_same_v<From, std::int32_t>) {
          piece[i] = to_odd_f32(static_cast<double>(from[at + i]));
        } else {
          piece[i] = static_cast<float>(from[at + i]);
        }
      }
      from_f32(piece, to + at, n);
    });
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i] = cast_one<To>(from[i]);
  }
}

}  // namespace

UnaryLoop cast_loop(DType from, DType to) {
  return visit_dtype(from, [&]<class From>(From) {
    return visit_dtype(to, []<class To>(To) -> UnaryLoop { return cast<From, To>; });
  });
}

}  // namespace lockstep::kernels
