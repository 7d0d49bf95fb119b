#include "fuzz/fuzz_graph.h"

using namespace lockstep;

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  fuzz::register_test_op();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::check_bytes(fuzz::view(data, size), GraphFormat::kText);
  return 0;
}
