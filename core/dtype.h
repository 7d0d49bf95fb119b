// core/dtype.h - the element types of tensors.
//
// f16 and bf16 are storage types: F16 and BF16 convert to and from float (round to nearest even) and have no
// arithmetic of their own. bool is stored as one byte, 0 or 1.
// Thread safety: plain values and pure functions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string_view>

#include "lockstep/core/base/export.h"

namespace lockstep {

enum class DType : std::uint8_t { kF16, kBF16, kF32, kF64, kI32, kI64, kU8, kBool };
inline constexpr DType kAllDTypes[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64,
                                       DType::kI32, DType::kI64,  DType::kU8,  DType::kBool};

struct F16 {
  std::uint16_t bits = 0;
  F16() = default;
  explicit F16(float value);
  explicit operator float() const;
  friend bool operator==(F16 a, F16 b) { return static_cast<float>(a) == static_cast<float>(b); }
};

struct BF16 {
  std::uint16_t bits = 0;
  BF16() = default;
  explicit BF16(float value);
  explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U); }
  friend bool operator==(BF16 a, BF16 b) { return static_cast<float>(a) == static_cast<float>(b); }
};

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64: return 8;
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kF16:
    case DType::kBF16: return 2;
    case DType::kU8:
    case DType::kBool: return 1;
  }
  return 0;
}

constexpr bool is_floating(DType dtype) { return dtype <= DType::kF64; }
constexpr bool is_integer(DType dtype) {
  return dtype == DType::kI32 || dtype == DType::kI64 || dtype == DType::kU8;
}

// "f16", "bf16", "f32", "f64", "i32", "i64", "u8", "bool", and back.
LOCKSTEP_API std::string_view to_string(DType dtype);
LOCKSTEP_API std::optional<DType> parse_dtype(std::string_view name);
LOCKSTEP_API std::ostream& operator<<(std::ostream& out, DType dtype);

// The DType of a C++ element type: dtype_of<float> == DType::kF32.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<F16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct DTypeOf<BF16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::kU8;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::kBool;
};
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

// Calls f with a value-initialised element of the dtype's C++ type: visit_dtype(dtype, [&]<class T>(T) { ...
// }).
template <class F>
decltype(auto) visit_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF16: return f(F16{});
    case DType::kBF16: return f(BF16{});
    case DType::kF32: return f(float{});
    case DType::kF64: return f(double{});
    case DType::kI32: return f(std::int32_t{});
    case DType::kI64: return f(std::int64_t{});
    case DType::kU8: return f(std::uint8_t{});
    case DType::kBool: break;
  }
  return f(bool{});
}

// --- conversions: every case is computed and one chosen, so that loops over them become vector instructions

inline F16::F16(float value) {
  const auto whole = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (whole >> 16U) & 0x8000U;
  const std::uint32_t magnitude = whole & 0x7FFFFFFFU;
  // A NaN stays one: quiet, with as much of its payload as fits.
  const std::uint32_t nan = 0x7E00U | ((magnitude >> 13U) & 0x03FFU);
  // Below 2^-14 the result is subnormal, a multiple of 2^-24. That is the spacing of floats in [0.5, 1), so
  // adding one half rounds to nearest even at the right bit.
  const std::uint32_t tiny =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000U;
  // Rounding may carry into the exponent, and from the largest value to infinity; both are right.
  const std::uint32_t rounded = magnitude + 0x0FFFU + ((magnitude >> 13U) & 1U);
  std::uint32_t half = (rounded - (112U << 23U)) >> 13U;
  half = magnitude < 0x38800000U ? tiny : half;
  half = magnitude >= 0x47800000U ? 0x7C00U : half;  // 65536 and up
  half = magnitude > 0x7F800000U ? nan : half;
  bits = static_cast<std::uint16_t>(sign | half);
}

inline F16::operator float() const {
  const std::uint32_t sign = (static_cast<std::uint32_t>(bits) & 0x8000U) << 16U;
  const std::uint32_t magnitude = (static_cast<std::uint32_t>(bits) & 0x7FFFU) << 13U;
  // The same digits read as a float give a value that is too small by 2^112; this holds for subnormals, too.
  const auto scaled = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112F);
  const std::uint32_t quiet = magnitude > 0x0F800000U ? 0x00400000U : 0U;  // NaNs, as processors do it
  const std::uint32_t special = magnitude | 0x7F800000U | quiet;
  return std::bit_cast<float>(sign | (magnitude >= 0x0F800000U ? special : scaled));
}

inline BF16::BF16(float value) {
  const auto whole = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t nan = (whole >> 16U) | 0x0040U;
  const std::uint32_t rounded = (whole + 0x7FFFU + ((whole >> 16U) & 1U)) >> 16U;
  bits = static_cast<std::uint16_t>((whole & 0x7FFFFFFFU) > 0x7F800000U ? nan : rounded);
}

namespace internal {

// Converts to f32 on the way to a 16-bit float. The last bit records whether anything was lost (round to
// odd), so that the second rounding gives what a single one would.
inline float to_odd_f32(double x) {
  const auto nearest = static_cast<float>(x);
  const double back = static_cast<double>(nearest);
  const auto bits = std::bit_cast<std::uint32_t>(nearest);
  const bool exact = back == x || x != x;
  if (exact || (bits & 1U) != 0) return nearest;
  const bool beyond = (back < 0 ? -back : back) > (x < 0 ? -x : x);
  return std::bit_cast<float>(beyond ? bits - 1 : bits + 1);
}

}  // namespace internal

}  // namespace lockstep
