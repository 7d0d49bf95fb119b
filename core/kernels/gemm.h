// core/kernels/gemm.h - matrix products on plain memory; the one door to BLAS.
//
// f32 and f64 go to BLAS, which is kept to the calling thread: parallelism is the scheduler's. i32, i64 and u8 are
// plain loops that wrap around on overflow; f16 and bf16 are plain loops that accumulate in f32.
//
// Thread safety: any thread, any number at once, on outputs that do not overlap.
#pragma once

#include <cstdint>

#include "lockstep/core/dtype.h"
#include "lockstep/core/export.h"

namespace lockstep::kernels {

// C = op(A) * op(B), all row-major: op(A) is m x k, op(B) is k x n, C is m x n, and op transposes where it is asked
// to (A is then k x m in memory, B is n x k). ld* is the distance between rows in memory, in elements. C must not
// overlap A or B; its old contents are not read, and k == 0 gives zeros.
// Throws InvalidArgument for bool, for a row distance below the row's length and for extents that do not fit BLAS's
// 32-bit integers.
LOCKSTEP_API void gemm(DType dtype, bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n,
                       std::int64_t k, const void* a, std::int64_t lda, const void* b, std::int64_t ldb,
                       void* c, std::int64_t ldc);

// Tells the BLAS to stay on the calling thread, where it is one that has threads. gemm does so by itself; a Runtime
// does it early, so that the library starts no threads in the middle of a step. Process-wide.
LOCKSTEP_API void make_blas_single_threaded();

}  // namespace lockstep::kernels
