// graph/text/internal/text_syntax.h - definitions that the printer and the parser of the text form share.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/core/dtype.h"

namespace lockstep::internal::text_syntax {

// The deepest nesting of regions: the parser recurses once per level.
inline constexpr int kMaxRegionDepth = 256;

inline constexpr std::uint8_t kNameStart = 1;
inline constexpr std::uint8_t kNameBody = 2;

// Which bytes may start and continue a name that needs no quotes.
inline constexpr std::array<std::uint8_t, 256> kNameBytes = [] {
  std::array<std::uint8_t, 256> table{};
  for (std::size_t c = 0; c < 256; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    const bool other = (c >= '0' && c <= '9') || c == '/' || c == '.' || c == '-';
    table[c] = static_cast<std::uint8_t>((letter ? kNameStart : 0) | (letter || other ? kNameBody : 0));
  }
  return table;
}();
inline bool starts_name(char c) { return (kNameBytes[static_cast<unsigned char>(c)] & kNameStart) != 0; }
inline bool continues_name(char c) { return (kNameBytes[static_cast<unsigned char>(c)] & kNameBody) != 0; }
inline bool is_bare_name(std::string_view name) {
  if (name.empty() || !starts_name(name[0])) return false;
  for (const char c : name) {
    if (!continues_name(c)) return false;
  }
  return true;
}

// How a floating type is laid out, and the NaN that prints as plain "nan".
struct FloatFormat {
  std::uint64_t exponent_mask;  // all ones: infinity or NaN
  std::uint64_t fraction_mask;
  std::uint64_t default_nan;
  constexpr bool is_nan(std::uint64_t bits) const {
    return (bits & exponent_mask) == exponent_mask && (bits & fraction_mask) != 0;
  }
};
constexpr FloatFormat float_format(DType dtype) {
  switch (dtype) {
    case DType::kF16: return {0x7c00, 0x03ff, 0x7e00};
    case DType::kBF16: return {0x7f80, 0x007f, 0x7fc0};
    case DType::kF32: return {0x7f800000, 0x007fffff, 0x7fc00000};
    default: return {0x7ff0000000000000, 0x000fffffffffffff, 0x7ff8000000000000};
  }
}

}  // namespace lockstep::internal::text_syntax
