// core/base/sha256.cpp - the hash SHA-256, and HMAC with it.
#include "lockstep/core/base/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace lockstep::internal {
namespace {

constexpr std::size_t kBlock = 64;

// The first 32 bits of the fractions of the cube roots of the first 64 primes.
constexpr std::array<std::uint32_t, 64> kRounds = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t load_big_endian(const std::byte* from) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | std::to_integer<std::uint32_t>(from[i]);
  return value;
}

template <class T>
void store_big_endian(T value, std::byte* to) {
  for (std::size_t i = 0; i < sizeof value; ++i)
    to[i] = static_cast<std::byte>(value >> (8 * (sizeof value - 1 - i)) & 0xFF);
}

}  // namespace

void Sha256::take_block(const std::byte* block) {
  std::array<std::uint32_t, 64> w;
  for (std::size_t i = 0; i < 16; ++i) w[i] = load_big_endian(block + 4 * i);
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t first = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                                ((e & f) ^ (~e & g)) + kRounds[i] + w[i];
    const std::uint32_t second =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + first;
    d = c;
    c = b;
    b = a;
    a = first + second;
  }
  const std::array<std::uint32_t, 8> added = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state_[i] += added[i];
}

Sha256& Sha256::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t at = added_ % kBlock;
    const std::size_t some = std::min(bytes.size(), kBlock - at);
    std::memcpy(block_.data() + at, bytes.data(), some);
    added_ += some;
    bytes = bytes.subspan(some);
    if (added_ % kBlock == 0) take_block(block_.data());
  }
  return *this;
}

Sha256Hash Sha256::hash() {
  const std::uint64_t bits = added_ * 8;
  constexpr std::array<std::byte, kBlock> kPadding = {std::byte{0x80}};
  const std::size_t at = added_ % kBlock;
  add(std::span(kPadding).first(at < 56 ? 56 - at : 120 - at));
  std::array<std::byte, 8> length;
  store_big_endian(bits, length.data());
  add(length);
  Sha256Hash hash;
  for (std::size_t i = 0; i < state_.size(); ++i) store_big_endian(state_[i], hash.data() + 4 * i);
  return hash;
}

HmacSha256::HmacSha256(std::span<const std::byte> secret) {
  std::array<std::byte, kBlock> key = {};
  if (secret.size() > kBlock) {
    const Sha256Hash shorter = Sha256().add(secret).hash();
    std::ranges::copy(shorter, key.begin());
  } else {
    std::ranges::copy(secret, key.begin());
  }
  const auto masked = [&key](std::byte mask) {
    std::array<std::byte, kBlock> result = key;
    for (std::byte& byte : result) byte ^= mask;
    return result;
  };
  inner_.add(masked(std::byte{0x36}));
  outer_.add(masked(std::byte{0x5C}));
}

HmacSha256& HmacSha256::add(std::span<const std::byte> bytes) {
  inner_.add(bytes);
  return *this;
}

Sha256Hash HmacSha256::hash() { return outer_.add(inner_.hash()).hash(); }

bool are_equal(const Sha256Hash& a, const Sha256Hash& b) {
  std::byte difference{0};
  for (std::size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == std::byte{0};
}

std::string to_hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

}  // namespace lockstep::internal
