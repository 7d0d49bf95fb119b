#include <algorithm>
#include <cstring>

#include "fuzz/fuzz_graph.h"
#include "lockstep/io/files/crc32c.h"

using namespace lockstep;

namespace {

constexpr std::size_t kHeaderBytes = 32;

template <class T>
void put(std::string& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

// The same bytes with checksums that are right, as somebody who forges a file would have it: otherwise no
// change would get past them.
std::string with_checksums(std::string_view bytes) {
  std::string forged(bytes);
  std::uint64_t record_bytes = 0;
  std::memcpy(&record_bytes, forged.data() + 16, sizeof record_bytes);
  record_bytes = std::min<std::uint64_t>(record_bytes, forged.size() - kHeaderBytes);
  put(forged, 16, record_bytes);
  put(forged, 24, crc32c(std::string_view(forged).substr(kHeaderBytes, record_bytes)));
  put(forged, 28, crc32c(std::string_view(forged).substr(0, 28)));
  return forged;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  fuzz::register_test_op();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes = fuzz::view(data, size);
  fuzz::check_bytes(bytes, GraphFormat::kBinary);
  if (size > kHeaderBytes) fuzz::check_bytes(with_checksums(bytes), GraphFormat::kBinary);
  return 0;
}
