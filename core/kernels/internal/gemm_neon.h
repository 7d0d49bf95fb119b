// core/kernels/internal/gemm_neon.h - products of f32 matrices on 64-bit Arm.
//
// A core with 128-bit vectors multiplies at 0.95 to 1.0 of its arithmetic peak here; OpenBLAS 0.3.21 reaches
// 0.8 to 0.9 (the table is in gemm_neon.cpp). On other machines, and on cores with wider (SVE) vectors, BLAS
// is the better choice.
#pragma once

#include <cstdint>

namespace lockstep::kernels {

// Whether this machine and these extents are better served by gemm_neon than by BLAS. Depends on nothing
// else.
bool gemm_neon_fits(std::int64_t m, std::int64_t n, std::int64_t k);

// As gemm() for f32, with m, n and k of at least 1. An element is the sum over blocks of k, in their order;
// how k is cut follows from k alone, so an element's bits do not depend on m, n or on where it stands.
void gemm_neon(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
               const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float* c, std::int64_t ldc,
               bool accumulate);

}  // namespace lockstep::kernels
