// graph/cuda/products/internal/attention_source.h - the texts of the kernels of attention.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/core/dtype.h"

namespace lockstep::internal::cuda {

// Forward; what flows back into queries, and sums of out * flow; then what flows back into keys and values.
enum class AttentionPass : std::uint8_t { kForward, kQueries, kKeys };

struct AttentionText {
  DType dtype = DType::kBF16;
  std::int64_t width = 0, value_width = 0;  // of heads
  double scale = 1, rate = 0;
  bool has_mask = false, has_keys = true;
  bool is_aligned = true;  // all addresses, and steps from row to row, are multiples of 16 bytes
};

// Heads of 16-bit values, as wide for values as for keys, go through the chip in tiles if their width is a multiple of 8 and no
// more than this. Others take a kernel that is slow.
inline constexpr std::int64_t kMostWidth = 128;
bool fits_tiles(const AttentionText& what);
struct AttentionTiles {
  std::int64_t padded = 64;     // elements of a row on the chip
  std::int64_t row_groups = 1;  // of 16 rows, that a warp has
  std::int64_t met = 16;        // rows that they meet at a time
  std::int64_t blocks = 2;      // that run beside each other, at least
  bool keeps_rows = false;      // in registers; else they are read again for each tile
  static constexpr unsigned kThreads = 128;
  // That a block of threads has.
  std::int64_t rows() const { return row_groups * 16 * (kThreads / 32); }
};
AttentionTiles tiles_of(AttentionPass pass, std::int64_t width);

// Its arguments are those of struct Args, in that order. A block of threads for each part of AttentionTiles::rows rows of each head of
// each batch, in tiles; else a block of the usual size for each row.
std::string attention_source(AttentionPass pass, const AttentionText& what);

}  // namespace lockstep::internal::cuda
