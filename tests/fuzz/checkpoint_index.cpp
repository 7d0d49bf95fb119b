// The first 8 bytes of an input are the size that the file claims to have, the rest its header or its index.
#include "lockstep/io/state/internal/checkpoint_index.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "lockstep/core/error.h"

using namespace lockstep;

namespace {

void check_header(std::string_view bytes, std::uint64_t file_bytes) {
  try {
    internal::parse_header(bytes, file_bytes, {}, "fuzz");
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): a refusal is what is hoped for
  }
}

// Refused, or an index that is written as it was read.
void check_index(std::string_view bytes, std::uint32_t version, std::uint64_t file_bytes) {
  CheckpointInfo info;
  try {
    info = internal::parse_index(bytes, version, file_bytes, {}, "fuzz");
  } catch (const Error&) {
    return;
  }
  if (internal::write_index(info) == bytes) return;
  std::fprintf(stderr, "finding: an index is written otherwise than it was read\n");
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::uint64_t file_bytes = 0;
  if (size < sizeof file_bytes) return 0;
  std::memcpy(&file_bytes, data, sizeof file_bytes);
  const std::string_view bytes(reinterpret_cast<const char*>(data) + sizeof file_bytes,
                               size - sizeof file_bytes);
  check_header(bytes, file_bytes);
  for (std::uint32_t version = 1; version <= internal::kCheckpointVersion; ++version)
    check_index(bytes, version, file_bytes);
  return 0;
}
