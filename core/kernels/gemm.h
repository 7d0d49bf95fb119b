// core/kernels/gemm.h - matrix products on plain memory; the only code of the library that calls BLAS.
//
// f32 and f64 go to BLAS, which stays on the calling thread: parallelism is the scheduler's task. On 64-bit
// Arm without SVE f32 has a kernel of its own, which is faster (internal/gemm_neon.h). f16 and bf16 are
// converted to f32 block by block, go the same way and are rounded once. Integers use plain loops, which wrap
// around on overflow. So do floats if a product is so small that calling BLAS would cost more than the
// product.
//
// A large product is cut into tiles, which any threads compute in any order. How it is cut follows from its
// extents alone, since the order of sums inside BLAS depends on the extents of the call.
//
// Thread safety: any thread, any number at once, on outputs that do not overlap.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/core/base/export.h"
#include "lockstep/core/dtype.h"

namespace lockstep::kernels {

// C = op(A) * op(B), all row-major: op(A) is m x k, op(B) is k x n, C is m x n, and op transposes if it is
// asked to (A is then k x m in memory, B is n x k). ld* is the distance between rows in memory, in elements.
// C must not overlap A or B; its old contents are not read, and k == 0 gives zeros. With `accumulate` the
// product is added to C instead.
// Throws InvalidArgument for bool, for a row distance below the row's length and for extents that do not fit
// BLAS's 32-bit integers.
LOCKSTEP_API void gemm(DType dtype, bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n,
                       std::int64_t k, const void* a, std::int64_t lda, const void* b, std::int64_t ldb,
                       void* c, std::int64_t ldc, bool accumulate = false);

// A dense product and how it is cut: into tiles of C and, if C is small and k large, into parts of k as well,
// whose sums stay separate in scratch memory until all of them are complete.
//
//   const GemmTiles tiles(dtype, false, false, m, n, k);
//   for (i = 0; i < tiles.count(); ++i) tiles.compute(i, a, b, c, scratch);   // in any order, on any threads
//   if (tiles.needs_finish()) tiles.finish(c, scratch);
class LOCKSTEP_API GemmTiles {
 public:
  GemmTiles(DType dtype, bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
            bool may_cut_k = true);

  std::int64_t count() const { return row_tiles() * column_tiles() * parts(); }
  std::size_t scratch_bytes() const;  // 0 if k is not cut
  bool needs_finish() const { return parts() > 1; }
  void compute(std::int64_t tile, const void* a, const void* b, void* c, void* scratch) const;
  void finish(void* c, const void* scratch) const;  // adds the parts in their order

  // The elements of C that compute(tile) makes, or adds a part to.
  struct Tile {
    std::int64_t row = 0, column = 0, rows = 0, columns = 0;
  };
  Tile tile(std::int64_t tile) const;
  std::int64_t rows() const { return rows_; }  // of a tile; the last ones may be smaller
  std::int64_t columns() const { return columns_; }
  std::int64_t depth() const { return depth_; }
  double seconds() const;  // of all tiles on one thread, estimated

 private:
  std::int64_t row_tiles() const { return m_ == 0 ? 1 : (m_ + rows_ - 1) / rows_; }
  std::int64_t column_tiles() const { return n_ == 0 ? 1 : (n_ + columns_ - 1) / columns_; }
  std::int64_t parts() const { return k_ == 0 ? 1 : (k_ + depth_ - 1) / depth_; }

  DType dtype_;
  bool transpose_a_, transpose_b_;
  std::int64_t m_, n_, k_;
  std::int64_t rows_, columns_, depth_;
};

// Tells BLAS to stay on the calling thread, if it has threads of its own. gemm() calls this itself, and so
// does the constructor of GemmTiles, so that the library starts no threads in the middle of a step.
// Process-wide.
LOCKSTEP_API void make_blas_single_threaded();

}  // namespace lockstep::kernels
