// io/files/crc32c.cpp - the checksum of files: CRC-32C (Castagnoli), as iSCSI, ext4 and Snappy's framing use
// it.
#include "lockstep/io/files/crc32c.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

#include "lockstep/io/files/internal/crc32c_table.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#define LOCKSTEP_CRC_TARGET __attribute__((target("sse4.2")))
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
// GCC takes the name of an extension with a plus sign, clang without.
#if defined(__clang__)
#define LOCKSTEP_CRC_TARGET __attribute__((target("crc")))
#else
#define LOCKSTEP_CRC_TARGET __attribute__((target("+crc")))
#endif
#endif

namespace lockstep {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // reflected

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

// tables[k][b] is the effect of byte b followed by k zero bytes.
constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

std::uint64_t load_little_endian(const char* from) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, sizeof word);
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  return word;
}

#if defined(LOCKSTEP_CRC_TARGET)

#if defined(__x86_64__)
bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }
LOCKSTEP_CRC_TARGET std::uint32_t add_word(std::uint32_t crc, std::uint64_t word) {
  return static_cast<std::uint32_t>(_mm_crc32_u64(crc, word));
}
LOCKSTEP_CRC_TARGET std::uint32_t add_byte(std::uint32_t crc, unsigned char byte) {
  return _mm_crc32_u8(crc, byte);
}
#else
bool has_instruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
// The builtins rather than <arm_acle.h>, which hides them unless the whole file is compiled for CRC.
LOCKSTEP_CRC_TARGET std::uint32_t add_word(std::uint32_t crc, std::uint64_t word) {
#if defined(__clang__)
  return __builtin_arm_crc32cd(crc, word);
#else
  return __builtin_aarch64_crc32cx(crc, word);
#endif
}
LOCKSTEP_CRC_TARGET std::uint32_t add_byte(std::uint32_t crc, unsigned char byte) {
#if defined(__clang__)
  return __builtin_arm_crc32cb(crc, byte);
#else
  return __builtin_aarch64_crc32cb(crc, byte);
#endif
}
#endif

LOCKSTEP_CRC_TARGET std::uint32_t by_instruction(std::string_view bytes, std::uint32_t seed) {
  std::uint32_t crc = ~seed;
  const char* at = bytes.data();
  const char* const end = at + bytes.size();
  for (; end - at >= 8; at += 8) crc = add_word(crc, load_little_endian(at));
  for (; at != end; ++at) crc = add_byte(crc, static_cast<unsigned char>(*at));
  return ~crc;
}

#endif

}  // namespace

std::uint32_t internal::crc32c_by_table(std::string_view bytes, std::uint32_t seed) {
  std::uint32_t crc = ~seed;
  const char* at = bytes.data();
  const char* const end = at + bytes.size();
  for (; end - at >= 8; at += 8) {
    const std::uint64_t word = load_little_endian(at) ^ crc;
    crc = 0;
    for (std::size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 0xFF];
  }
  for (; at != end; ++at) crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<unsigned char>(*at)) & 0xFF];
  return ~crc;
}

std::uint32_t crc32c(std::string_view bytes, std::uint32_t seed) {
#if defined(LOCKSTEP_CRC_TARGET)
  static const bool instruction = has_instruction();
  if (instruction) return by_instruction(bytes, seed);
#endif
  return internal::crc32c_by_table(bytes, seed);
}

}  // namespace lockstep
