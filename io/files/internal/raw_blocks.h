// io/files/internal/raw_blocks.h - the parts that binary files share: little-endian numbers, and tensors as
// raw blocks, each at a multiple of 64 bytes, with zeros in between.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/core/tensor.h"

namespace lockstep::internal {

static_assert(std::endian::native == std::endian::little,
              "raw blocks are little endian, and are not swapped");

inline constexpr std::uint64_t kBlockAlignment = 64;

// The next place where a block may begin.
constexpr std::uint64_t aligned(std::uint64_t offset) {
  return (offset + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}
// The zeros between `offset` and that place.
inline std::string_view gap_behind(std::uint64_t offset) {
  static constexpr std::array<char, kBlockAlignment> kZeros{};
  return {kZeros.data(), static_cast<std::size_t>(aligned(offset) - offset)};
}
// Reads that gap by read(char* to, std::size_t bytes). Is it all zeros?
template <class Read>
bool gap_is_empty(std::uint64_t offset, const Read& read) {
  std::array<char, kBlockAlignment> gap{};
  read(gap.data(), static_cast<std::size_t>(aligned(offset) - offset));
  return std::ranges::all_of(gap, [](char byte) { return byte == 0; });
}

inline std::string_view bytes_of(const Tensor& tensor) {
  return {static_cast<const char*>(tensor.raw()), tensor.num_bytes()};
}
// A bool that is neither 0 nor 1 is not valid: computing with it is undefined behaviour.
inline bool are_truth_values(std::string_view bytes) {
  return std::ranges::all_of(bytes, [](char byte) { return byte == 0 || byte == 1; });
}

inline void put_number(std::string& out, std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) out.push_back(static_cast<char>((value >> (8 * i)) & 0xFFU));
}
template <class T>
void put_number(std::string& out, T value) {
  put_number(out, value, sizeof(T));
}
// The bytes must be there.
inline std::uint64_t number_at(std::string_view bytes, std::size_t at, std::size_t size) {
  std::uint64_t value = 0;
  for (std::size_t i = size; i-- > 0;) value = (value << 8U) | static_cast<unsigned char>(bytes[at + i]);
  return value;
}
template <class T>
T number_at(std::string_view bytes, std::size_t at) {
  return static_cast<T>(number_at(bytes, at, sizeof(T)));
}

}  // namespace lockstep::internal
