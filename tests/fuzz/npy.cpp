// Refused, or a tensor within the limits that reads back as it was.
#include "lockstep/io/files/npy.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "lockstep/core/error.h"

using namespace lockstep;

namespace {

void finding(const char* what) {
  std::fprintf(stderr, "finding: %s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  constexpr ReadLimits kLimits{.base_bytes = 1 << 10, .bytes_per_byte = 1};
  Tensor tensor;
  try {
    tensor = read_npy(bytes, kLimits);
  } catch (const Error&) {
    return 0;
  }
  if (tensor.num_bytes() > kLimits.memory_for(size)) finding("a tensor above the limits");
  if (!read_npy(write_npy(tensor)).bit_equal(tensor))
    finding("a tensor is written otherwise than it was read");
  return 0;
}
