// Refused, or tensors within the limits that read back as they were.
#include "lockstep/io/files/npz.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "lockstep/core/error.h"

using namespace lockstep;

namespace {

void finding(const char* what) {
  std::fprintf(stderr, "finding: %s\n", what);
  std::abort();
}

void check(std::string_view bytes) {
  constexpr ReadLimits kLimits{.base_bytes = 1 << 16, .bytes_per_byte = 4};
  std::map<std::string, Tensor> tensors;
  try {
    tensors = read_npz(bytes, kLimits);
  } catch (const Error&) {
    return;
  }
  std::uint64_t total = 0;
  for (const auto& [name, tensor] : tensors) total += tensor.num_bytes() + name.size();
  if (total > kLimits.memory_for(bytes.size())) finding("tensors above the limits");
  for (const bool deflate : {false, true}) {
    const std::map<std::string, Tensor> again = read_npz(write_npz(tensors, {.deflate = deflate}));
    if (again.size() != tensors.size()) finding("a tensor is missing from what was written");
    for (const auto& [name, tensor] : tensors) {
      if (!again.at(name).bit_equal(tensor)) finding("a tensor is written otherwise than it was read");
    }
  }
}

std::uint64_t number_at(std::string_view bytes, std::size_t at, std::size_t size) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < size; ++i)
    number |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  return number;
}

// Zip's own checksum, bit by bit: inputs are small.
std::uint32_t checksum(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? 0xEDB88320 : 0);
  }
  return ~crc;
}

// The same bytes with checksums that are right for entries that are stored, as somebody who forges a file would
// have it: otherwise hardly a change would get past them.
std::string with_checksums(std::string_view bytes) {
  std::string forged(bytes);
  for (std::size_t at = 0; (at = forged.find("PK\1\2", at)) != std::string::npos; ++at) {
    if (at + 46 > forged.size()) break;
    const std::uint64_t packed = number_at(forged, at + 20, 4), header = number_at(forged, at + 42, 4);
    if (number_at(forged, at + 10, 2) != 0 || header + 30 > forged.size()) continue;
    const std::uint64_t begin =
        header + 30 + number_at(forged, header + 26, 2) + number_at(forged, header + 28, 2);
    if (begin > forged.size() || packed > forged.size() - begin) continue;
    const std::uint32_t crc = checksum(std::string_view(forged).substr(begin, packed));
    for (unsigned i = 0; i < 4; ++i) forged[at + 16 + i] = static_cast<char>(crc >> (8 * i));
  }
  return forged;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  check(bytes);
  check(with_checksums(bytes));
  return 0;
}
