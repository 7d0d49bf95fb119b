// Refused, or an array within the limits whose rows are the same in whatever pieces they are read.
#include <cstdint>
#include <vector>

#include "fuzz_file.h"
#include "lockstep/core/tensor.h"
#include "lockstep/io/formats/array_rows.h"

using namespace lockstep;
using testing::finding;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::filesystem::path& path = testing::fuzz_file(data, size);
  std::unique_ptr<ArrayRows> rows;
  try {
    rows = open_idx_rows(path, {.base_bytes = 1 << 16, .bytes_per_byte = 8});
  } catch (const Error&) {
    return 0;
  }
  if (rows->rows() == 0 || rows->row().shape.num_elements() == 0) return 0;
  Tensor all = Tensor::empty(rows->row().dtype, rows->row().shape.with_inserted(0, rows->rows()));
  if (all.num_bytes() > (1 << 16) + 8 * size) finding("an array above the limits");
  rows->read(0, rows->rows(), all.raw());
  Tensor last = Tensor::empty(rows->row().dtype, rows->row().shape.with_inserted(0, 1));
  rows->read(rows->rows() - 1, 1, last.raw());
  if (!last.bit_equal(all.slice(rows->rows() - 1, rows->rows()))) finding("another row");
  return 0;
}
