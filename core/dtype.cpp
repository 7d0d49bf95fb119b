#include "lockstep/core/dtype.h"

namespace lockstep {

F16::F16(float value) {
  const auto whole = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (whole >> 16U) & 0x8000U;
  const std::uint32_t magnitude = whole & 0x7FFFFFFFU;
  std::uint32_t half = 0;
  if (magnitude > 0x7F800000U) {  // a NaN stays one: quiet, with what fits of its payload
    half = 0x7E00U | ((magnitude >> 13U) & 0x03FFU);
  } else if (magnitude >= 0x47800000U) {  // 65536 and up
    half = 0x7C00U;
  } else if (magnitude < 0x38800000U) {
    // Below 2^-14 the result is subnormal, a multiple of 2^-24: which is the spacing of floats in [0.5, 1), so
    // that adding one half rounds to nearest even where it should.
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000U;
  } else {
    // Rounding may carry into the exponent, and from the largest value to infinity; both are right.
    const std::uint32_t rounded = magnitude + 0x0FFFU + ((magnitude >> 13U) & 1U);
    half = (rounded - (112U << 23U)) >> 13U;
  }
  bits = static_cast<std::uint16_t>(sign | half);
}

F16::operator float() const {
  const std::uint32_t sign = (static_cast<std::uint32_t>(bits) & 0x8000U) << 16U;
  const std::uint32_t exponent = (static_cast<std::uint32_t>(bits) >> 10U) & 0x1FU;
  const std::uint32_t mantissa = static_cast<std::uint32_t>(bits) & 0x03FFU;
  if (exponent == 0x1FU) return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13U));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23U) | (mantissa << 13U));
}

BF16::BF16(float value) {
  const auto whole = std::bit_cast<std::uint32_t>(value);
  if ((whole & 0x7FFFFFFFU) > 0x7F800000U) {
    bits = static_cast<std::uint16_t>((whole >> 16U) | 0x0040U);
    return;
  }
  bits = static_cast<std::uint16_t>((whole + 0x7FFFU + ((whole >> 16U) & 1U)) >> 16U);
}

std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::kF16: return "f16";
    case DType::kBF16: return "bf16";
    case DType::kF32: return "f32";
    case DType::kF64: return "f64";
    case DType::kI32: return "i32";
    case DType::kI64: return "i64";
    case DType::kU8: return "u8";
    case DType::kBool: break;
  }
  return "bool";
}

std::optional<DType> parse_dtype(std::string_view name) {
  for (const DType dtype : kAllDTypes) {
    if (to_string(dtype) == name) return dtype;
  }
  return std::nullopt;
}

std::ostream& operator<<(std::ostream& out, DType dtype) { return out << to_string(dtype); }

}  // namespace lockstep
