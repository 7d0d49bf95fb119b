// core/kernels/gemm_neon.cpp - products of f32 matrices on 64-bit Arm.
//
//            k                        n
//         +-----+   blocks of     +-------+         C is made of 8 x 12 pieces that stay in 24 vector registers while
//       m |  A  |   A and B are   |   B   | k       k runs: for each k, 8 numbers of A times 12 of B, which stand side
//         +-----+   copied so:    +-------+         by side in the copies.
//         8 rows a panel,         12 columns a panel,
//         k after k               k after k
//
// GFLOP/s on a Neoverse V1 core without SVE (peak 68), this file and OpenBLAS 0.3.21, best of 15:
//
//   NN   64 x 512 x 784   61.2  57.1      NN 1024 x  512 x  784   66.7  56.9
//   NT   64 x 512 x 512   63.7  53.6      NT 1024 x  512 x  512   68.4  58.9
//   TN  784 x 512 x  64   65.9  58.0      TN  784 x  512 x 1024   65.5  60.2
//   NT  256 x 512 x 512   68.8  60.4      NN 1024 x 1024 x  256   67.2  57.6
//   TN  784 x 512 x 256   68.7  60.4      NN   64 x   10 x  512   38.0  23.5
#include "lockstep/core/kernels/internal/gemm_neon.h"

#if defined(__aarch64__) && defined(__linux__)

#include <algorithm>
#include <array>
#include <vector>

#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

namespace lockstep::kernels {
namespace {

constexpr std::int64_t kRows = 8, kColumns = 12;  // of a piece

// Blocks: one panel of each copy and a piece fit the first-level cache together, the whole copy of A the
// second.
constexpr std::int64_t kBlockRows = 128, kBlockColumns = 43 * kColumns, kBlockDepth = 512;

// One row of a piece. Plain members rather than arrays in a loop, so that every compiler keeps them in
// registers.
struct Row {
  float32x4_t x = vdupq_n_f32(0), y = vdupq_n_f32(0), z = vdupq_n_f32(0);

  template <int kLane>
  void add(float32x4_t a, float32x4_t b0, float32x4_t b1, float32x4_t b2) {
    x = vfmaq_laneq_f32(x, b0, a, kLane);
    y = vfmaq_laneq_f32(y, b1, a, kLane);
    z = vfmaq_laneq_f32(z, b2, a, kLane);
  }
  void store(float* to, bool add) const {
    vst1q_f32(to, add ? vaddq_f32(vld1q_f32(to), x) : x);
    vst1q_f32(to + 4, add ? vaddq_f32(vld1q_f32(to + 4), y) : y);
    vst1q_f32(to + 8, add ? vaddq_f32(vld1q_f32(to + 8), z) : z);
  }
};

// c (8 x 12, rows `ldc` apart) = the product of two panels, or with `add` the old c plus it.
void multiply_panels(std::int64_t k, const float* a, const float* b, float* c, std::int64_t ldc, bool add) {
  Row r0, r1, r2, r3, r4, r5, r6, r7;
  for (std::int64_t l = 0; l < k; ++l, a += kRows, b += kColumns) {
    const float32x4_t a0 = vld1q_f32(a), a1 = vld1q_f32(a + 4);
    const float32x4_t b0 = vld1q_f32(b), b1 = vld1q_f32(b + 4), b2 = vld1q_f32(b + 8);
    r0.add<0>(a0, b0, b1, b2);
    r1.add<1>(a0, b0, b1, b2);
    r2.add<2>(a0, b0, b1, b2);
    r3.add<3>(a0, b0, b1, b2);
    r4.add<0>(a1, b0, b1, b2);
    r5.add<1>(a1, b0, b1, b2);
    r6.add<2>(a1, b0, b1, b2);
    r7.add<3>(a1, b0, b1, b2);
  }
  r0.store(c, add);
  r1.store(c + ldc, add);
  r2.store(c + 2 * ldc, add);
  r3.store(c + 3 * ldc, add);
  r4.store(c + 4 * ldc, add);
  r5.store(c + 5 * ldc, add);
  r6.store(c + 6 * ldc, add);
  r7.store(c + 7 * ldc, add);
}

// The same for a piece at an edge of C, where only rows x columns exist.
void multiply_edge(std::int64_t k, const float* a, const float* b, float* c, std::int64_t ldc, bool add,
                   std::int64_t rows, std::int64_t columns) {
  std::array<float, kRows * kColumns> piece;
  multiply_panels(k, a, b, piece.data(), kColumns, false);
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* from = piece.data() + i * kColumns;
    float* to = c + i * ldc;
    for (std::int64_t j = 0; j < columns; ++j) to[j] = add ? to[j] + from[j] : from[j];
  }
}

float32x4_t low_halves(float32x4_t x, float32x4_t y) {
  return vreinterpretq_f32_f64(vtrn1q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
}
float32x4_t high_halves(float32x4_t x, float32x4_t y) {
  return vreinterpretq_f32_f64(vtrn2q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
}

// Writes one panel of a copy: `count` numbers (the rest of kWidth are zero) for each of `steps`. With
// `along`, the numbers of one step are adjacent in memory, and steps lie `distance` apart; otherwise the
// steps of one number are adjacent, and numbers lie `distance` apart.
template <std::int64_t kWidth>
void pack_panel(bool along, std::int64_t count, std::int64_t steps, const float* from, std::int64_t distance,
                float* to) {
  std::int64_t l = 0;
  if (count == kWidth && along) {
    for (; l < steps; ++l, to += kWidth) {
      for (std::int64_t x = 0; x < kWidth; x += 4) vst1q_f32(to + x, vld1q_f32(from + l * distance + x));
    }
  } else if (count == kWidth) {
    for (; l + 4 <= steps; l += 4, to += 4 * kWidth) {  // blocks of 4 x 4, turned
      for (std::int64_t x = 0; x < kWidth; x += 4) {
        const float* corner = from + x * distance + l;
        const float32x4_t r0 = vld1q_f32(corner), r1 = vld1q_f32(corner + distance);
        const float32x4_t r2 = vld1q_f32(corner + 2 * distance), r3 = vld1q_f32(corner + 3 * distance);
        const float32x4_t even01 = vtrn1q_f32(r0, r1), odd01 = vtrn2q_f32(r0, r1);
        const float32x4_t even23 = vtrn1q_f32(r2, r3), odd23 = vtrn2q_f32(r2, r3);
        vst1q_f32(to + x, low_halves(even01, even23));
        vst1q_f32(to + kWidth + x, low_halves(odd01, odd23));
        vst1q_f32(to + 2 * kWidth + x, high_halves(even01, even23));
        vst1q_f32(to + 3 * kWidth + x, high_halves(odd01, odd23));
      }
    }
  }
  for (; l < steps; ++l, to += kWidth) {
    for (std::int64_t x = 0; x < kWidth; ++x)
      to[x] = x >= count ? 0 : from[along ? l * distance + x : x * distance + l];
  }
}

// All panels of a block. With `along`, neighbouring panels share cache lines and pages, so a few steps of all
// panels are packed before the next steps.
template <std::int64_t kWidth>
void pack(bool along, std::int64_t width, std::int64_t k, const float* from, std::int64_t distance,
          float* to) {
  const std::int64_t steps_at_once = along ? 32 : k;
  for (std::int64_t l = 0; l < k; l += steps_at_once) {
    const std::int64_t steps = std::min(steps_at_once, k - l);
    for (std::int64_t first = 0; first < width; first += kWidth) {
      pack_panel<kWidth>(along, std::min(kWidth, width - first), steps,
                         from + (along ? l * distance + first : first * distance + l), distance,
                         to + first * k + l * kWidth);
    }
  }
}

std::int64_t rounded_up(std::int64_t extent, std::int64_t multiple) {
  return (extent + multiple - 1) / multiple * multiple;
}

}  // namespace

bool gemm_neon_fits(std::int64_t m, std::int64_t n, std::int64_t k) {
  static const bool narrow = (getauxval(AT_HWCAP) & HWCAP_SVE) == 0;
  return narrow && m >= 6 && n >= 10 && k >= 4;  // else too much of a piece is empty
}

void gemm_neon(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
               const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float* c, std::int64_t ldc,
               bool accumulate) {
  // Memory of the calling thread that stays for the next call.
  thread_local std::vector<float> copy_of_a, copy_of_b;
  const std::int64_t depth_blocks = (k + kBlockDepth - 1) / kBlockDepth;
  const std::int64_t depth = (k + depth_blocks - 1) / depth_blocks;
  const auto make_room = [&](std::vector<float>& copy, std::int64_t width, std::int64_t multiple) {
    const auto size = static_cast<std::size_t>(rounded_up(width, multiple) * depth);
    if (copy.size() < size) copy.resize(size);
  };
  make_room(copy_of_a, std::min(m, kBlockRows), kRows);
  make_room(copy_of_b, std::min(n, kBlockColumns), kColumns);
  for (std::int64_t j = 0; j < n; j += kBlockColumns) {
    const std::int64_t columns = std::min(kBlockColumns, n - j);
    for (std::int64_t l = 0; l < k; l += depth) {
      const std::int64_t steps = std::min(depth, k - l);
      const bool add = accumulate || l > 0;
      pack<kColumns>(!transpose_b, columns, steps, b + (transpose_b ? j * ldb + l : l * ldb + j), ldb,
                     copy_of_b.data());
      for (std::int64_t i = 0; i < m; i += kBlockRows) {
        const std::int64_t rows = std::min(kBlockRows, m - i);
        pack<kRows>(transpose_a, rows, steps, a + (transpose_a ? l * lda + i : i * lda + l), lda,
                    copy_of_a.data());
        for (std::int64_t y = 0; y < columns; y += kColumns) {
          const float* right = copy_of_b.data() + y * steps;
          for (std::int64_t x = 0; x < rows; x += kRows) {
            const float* left = copy_of_a.data() + x * steps;
            float* piece = c + (i + x) * ldc + j + y;
            if (rows - x >= kRows && columns - y >= kColumns) {
              multiply_panels(steps, left, right, piece, ldc, add);
            } else {
              multiply_edge(steps, left, right, piece, ldc, add, std::min(kRows, rows - x),
                            std::min(kColumns, columns - y));
            }
          }
        }
      }
    }
  }
}

}  // namespace lockstep::kernels

#else

#include "lockstep/core/error.h"

namespace lockstep::kernels {

bool gemm_neon_fits(std::int64_t, std::int64_t, std::int64_t) { return false; }

void gemm_neon(bool, bool, std::int64_t, std::int64_t, std::int64_t, const float*, std::int64_t, const float*,
               std::int64_t, float*, std::int64_t, bool) {
  LOCKSTEP_CHECK(false, "gemm_neon is not made for this machine");
}

}  // namespace lockstep::kernels

#endif
