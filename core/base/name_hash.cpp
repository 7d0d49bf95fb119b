// core/base/name_hash.cpp - a hash for names from untrusted files.
#include "lockstep/core/base/name_hash.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <random>

namespace lockstep {
namespace {

using Key = std::array<std::uint64_t, 4>;

Key draw_key() noexcept {
  Key key{0x9e3779b97f4a7c15U, 0xd1b54a32d192ed03U, 0x8cb92ba72f3d8dd7U, 0xaaaaaaaaaaaaaaabU};
  try {
    std::random_device random;
    for (std::uint64_t& word : key) word = (std::uint64_t{random()} << 32U) | random();
  } catch (...) {  // a machine without a source of randomness: names from files can collide there
  }
  return key;
}

std::uint64_t load8(const char* from) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, sizeof word);
  return word;
}
std::uint64_t load4(const char* from) {
  std::uint32_t word = 0;
  std::memcpy(&word, from, sizeof word);
  return word;
}

// The two halves of the product, folded into one.
std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64U);
}

}  // namespace

// Sixteen bytes at a time are multiplied into the state under the key; the rest is one or two words, which
// may overlap what came before.
std::size_t hash_name(std::string_view name) noexcept {
  static const Key key = draw_key();
  const char* at = name.data();
  std::size_t left = name.size();
  std::uint64_t state = key[0];
  for (; left > 16; left -= 16, at += 16) state = fold(load8(at) ^ key[1], load8(at + 8) ^ state);
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  if (left >= 8) {
    a = load8(at);
    b = load8(at + left - 8);
  } else if (left >= 4) {
    a = load4(at);
    b = load4(at + left - 4);
  } else if (left > 0) {
    const auto byte = [at](std::size_t i) {
      return static_cast<std::uint64_t>(static_cast<unsigned char>(at[i]));
    };
    a = (byte(0) << 16U) | (byte(left / 2) << 8U) | byte(left - 1);
  }
  // The length goes in last: no byte of the name can compensate for it.
  return static_cast<std::size_t>(fold(fold(a ^ key[2], b ^ state) ^ key[3], key[1] ^ name.size()));
}

}  // namespace lockstep
