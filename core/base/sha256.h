// core/base/sha256.h - the hash SHA-256 (FIPS 180-4), and HMAC (RFC 2104) with it: whether two long texts are equal, and whether a
// message comes from somebody who knows a secret.
//
// Thread safety: as for any value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/core/base/export.h"

namespace lockstep::internal {

using Sha256Hash = std::array<std::byte, 32>;

class LOCKSTEP_API Sha256 {
 public:
  Sha256& add(std::span<const std::byte> bytes);
  Sha256& add(std::string_view text) { return add(std::as_bytes(std::span(text))); }
  // Of all that was added; nothing may be added afterwards.
  Sha256Hash hash();

 private:
  void take_block(const std::byte* block);

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> block_ = {};
  std::uint64_t added_ = 0;  // bytes
};

class LOCKSTEP_API HmacSha256 {
 public:
  explicit HmacSha256(std::span<const std::byte> secret);
  HmacSha256& add(std::span<const std::byte> bytes);
  HmacSha256& add(std::string_view text) { return add(std::as_bytes(std::span(text))); }
  Sha256Hash hash();

 private:
  Sha256 inner_, outer_;
};

// Takes equally long whatever differs, so that nobody learns from the time how much of a forged hash was right.
LOCKSTEP_API bool are_equal(const Sha256Hash& a, const Sha256Hash& b);

LOCKSTEP_API std::string to_hex(std::span<const std::byte> bytes);

}  // namespace lockstep::internal
