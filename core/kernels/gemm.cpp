// core/kernels/gemm.cpp - matrix products on plain memory; the only code of the library that calls BLAS.
#include "lockstep/core/kernels/gemm.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/kernels/internal/gemm_neon.h"

extern "C" {
// Fortran's names, which every BLAS has; the last two arguments are the lengths of the two strings.
void sgemm_(const char* transpose_a, const char* transpose_b, const int* m, const int* n, const int* k,
            const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
            const float* beta, float* c, const int* ldc, std::size_t, std::size_t);
void dgemm_(const char* transpose_a, const char* transpose_b, const int* m, const int* n, const int* k,
            const double* alpha, const double* a, const int* lda, const double* b, const int* ldb,
            const double* beta, double* c, const int* ldc, std::size_t, std::size_t);
// Weak: null if the BLAS is not OpenBLAS.
__attribute__((weak)) void openblas_set_num_threads(int threads);
}

namespace lockstep::kernels {
namespace {

struct Problem {
  bool transpose_a, transpose_b;
  std::int64_t m, n, k;
  std::int64_t lda, ldb, ldc;
  bool accumulate;
};

void check_extent(const char* name, std::int64_t extent, std::int64_t least) {
  if (extent < least)
    throw InvalidArgument(str("gemm: ", name, " is ", extent, ": expected at least ", least));
  if (extent > std::numeric_limits<int>::max()) {
    throw InvalidArgument(str("gemm: ", name, " is ", extent, ": BLAS takes at most ",
                              std::numeric_limits<int>::max(), "; split the product"));
  }
}

void check(const Problem& p) {
  check_extent("m", p.m, 0);
  check_extent("n", p.n, 0);
  check_extent("k", p.k, 0);
  check_extent("lda", p.lda, p.transpose_a ? p.m : p.k);
  check_extent("ldb", p.ldb, p.transpose_b ? p.k : p.n);
  check_extent("ldc", p.ldc, p.n);
}

template <class T>
void blas(const Problem& p, const T* a, const T* b, T* c) {
  make_blas_single_threaded();
  // BLAS is column-major and sees every row-major matrix transposed: C^T = op(B)^T * op(A)^T.
  const char ta = p.transpose_a ? 'T' : 'N';
  const char tb = p.transpose_b ? 'T' : 'N';
  const int m = static_cast<int>(p.m), n = static_cast<int>(p.n), k = static_cast<int>(p.k);
  const int lda = static_cast<int>(p.lda), ldb = static_cast<int>(p.ldb), ldc = static_cast<int>(p.ldc);
  const T one = 1, beta = p.accumulate ? 1 : 0;
  if constexpr (std::is_same_v<T, float>) {
    sgemm_(&tb, &ta, &n, &m, &k, &one, b, &ldb, a, &lda, &beta, c, &ldc, 1, 1);
  } else {
    dgemm_(&tb, &ta, &n, &m, &k, &one, b, &ldb, a, &lda, &beta, c, &ldc, 1, 1);
  }
}

// Memory of the calling thread that stays for the next call.
template <class T, int kWhich>
T* thread_buffer(std::int64_t elements) {
  thread_local std::vector<T> buffer;
  if (buffer.size() < static_cast<std::size_t>(elements)) buffer.resize(static_cast<std::size_t>(elements));
  return buffer.data();
}

// Each row of C is a sum of scaled rows of B, in the order of k. T has arithmetic that wraps around, or is a
// float.
template <class T>
void sum_of_rows(const Problem& p, const T* a, const T* b, T* c) {
  for (std::int64_t i = 0; i < p.m; ++i) {
    T* row = c + i * p.ldc;
    if (!p.accumulate) std::fill_n(row, p.n, T{0});
    for (std::int64_t l = 0; l < p.k; ++l) {
      const T factor = a[p.transpose_a ? l * p.lda + i : i * p.lda + l];
      const T* from = b + l * p.ldb;
      for (std::int64_t j = 0; j < p.n; ++j) row[j] = static_cast<T>(row[j] + factor * from[j]);
    }
  }
}

// B is read along its rows, in blocks that stay in the cache; a transposed B is turned first, block by block.
template <class T>
void loops(const Problem& p, const T* a, const T* b, T* c) {
  constexpr std::int64_t kDepth = 128, kColumns = 256;
  for (std::int64_t j = 0; j < p.n; j += kColumns) {
    const std::int64_t columns = std::min(kColumns, p.n - j);
    for (std::int64_t l = 0; l < p.k; l += kDepth) {
      Problem part = p;
      part.n = columns;
      part.k = std::min(kDepth, p.k - l);
      part.accumulate = p.accumulate || l > 0;
      const T* right = b + (p.transpose_b ? j * p.ldb + l : l * p.ldb + j);
      if (p.transpose_b) {
        T* turned = thread_buffer<T, 0>(kDepth * kColumns);
        for (std::int64_t y = 0; y < columns; ++y) {
          for (std::int64_t x = 0; x < part.k; ++x) turned[x * columns + y] = right[y * p.ldb + x];
        }
        right = turned;
        part.ldb = columns;
      }
      sum_of_rows(part, a + (p.transpose_a ? l * p.lda : l), right, c + j);
    }
  }
}

template <class T>
void widen_block(const T* from, std::int64_t rows, std::int64_t columns, std::int64_t distance, float* to) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j)
      to[i * columns + j] = static_cast<float>(from[i * distance + j]);
  }
}

template <class T>
void small_or_blas(const Problem& p, const T* a, const T* b, T* c) {
  constexpr std::int64_t kSmall = 8 * 8 * 8;
  if (p.m * p.n * p.k <= kSmall && p.m <= kSmall && p.n <= kSmall && p.k <= kSmall) {
    loops(p, a, b, c);
    return;
  }
  if constexpr (std::is_same_v<T, float>) {
    if (gemm_neon_fits(p.m, p.n, p.k)) {
      gemm_neon(p.transpose_a, p.transpose_b, p.m, p.n, p.k, a, p.lda, b, p.ldb, c, p.ldc, p.accumulate);
      return;
    }
  }
  blas(p, a, b, c);
}

// Blocks of C are summed up in f32 over blocks of k, and rounded at the end.
template <class T>
void through_float(const Problem& p, const T* a, const T* b, T* c) {
  constexpr std::int64_t kRows = 256, kColumns = 512, kDepth = 512;
  float* left = thread_buffer<float, 1>(std::min(kRows, p.m) * std::min(kDepth, p.k));
  float* right = thread_buffer<float, 2>(std::min(kColumns, p.n) * std::min(kDepth, p.k));
  float* sums = thread_buffer<float, 3>(std::min(kRows, p.m) * std::min(kColumns, p.n));
  for (std::int64_t j = 0; j < p.n; j += kColumns) {
    for (std::int64_t i = 0; i < p.m; i += kRows) {
      Problem block = p;
      block.m = std::min(kRows, p.m - i);
      block.n = block.ldc = std::min(kColumns, p.n - j);
      if (p.accumulate) widen_block(c + i * p.ldc + j, block.m, block.n, p.ldc, sums);
      for (std::int64_t l = 0; l < p.k; l += kDepth) {
        block.k = std::min(kDepth, p.k - l);
        block.lda = p.transpose_a ? block.m : block.k;
        block.ldb = p.transpose_b ? block.k : block.n;
        block.accumulate = p.accumulate || l > 0;
        const T* from_a = a + (p.transpose_a ? l * p.lda + i : i * p.lda + l);
        const T* from_b = b + (p.transpose_b ? j * p.ldb + l : l * p.ldb + j);
        widen_block(from_a, p.transpose_a ? block.k : block.m, block.lda, p.lda, left);
        widen_block(from_b, p.transpose_b ? block.n : block.k, block.ldb, p.ldb, right);
        small_or_blas<float>(block, left, right, sums);
      }
      for (std::int64_t y = 0; y < block.m; ++y) {
        for (std::int64_t x = 0; x < block.n; ++x) c[(i + y) * p.ldc + j + x] = T(sums[y * block.n + x]);
      }
    }
  }
}

std::int64_t even_part(std::int64_t extent, std::int64_t pieces, std::int64_t multiple) {
  const std::int64_t part = (extent + pieces - 1) / pieces;
  return std::min(extent, (part + multiple - 1) / multiple * multiple);
}

// Multiply-adds per second on one core, approximately.
double rate(DType dtype) {
  switch (dtype) {
    case DType::kF32: return 28e9;
    case DType::kF64: return 14e9;
    case DType::kF16:
    case DType::kBF16: return 22e9;
    case DType::kI32: return 4e9;
    default: return 1.5e9;
  }
}

// A narrow product takes as long as a wider one: BLAS works on small blocks of C.
double estimated_seconds(DType dtype, std::int64_t m, std::int64_t n, std::int64_t k) {
  return static_cast<double>(std::max<std::int64_t>(m, 8)) *
         static_cast<double>(std::max<std::int64_t>(n, 24)) * static_cast<double>(k + 8) / rate(dtype);
}

}  // namespace

void make_blas_single_threaded() {
  static const bool done = [] {
    if (openblas_set_num_threads != nullptr) openblas_set_num_threads(1);
    return true;
  }();
  static_cast<void>(done);
}

void gemm(DType dtype, bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
          const void* a, std::int64_t lda, const void* b, std::int64_t ldb, void* c, std::int64_t ldc,
          bool accumulate) {
  const Problem p{transpose_a, transpose_b, m, n, k, lda, ldb, ldc, accumulate};
  if (dtype == DType::kBool)
    throw InvalidArgument("gemm: bool has no products: convert to another dtype first");
  check(p);
  if (m == 0 || n == 0) return;
  visit_dtype(dtype, [&]<class T>(T) {
    auto* out = static_cast<T*>(c);
    if (k == 0) {
      for (std::int64_t i = 0; i < m && !accumulate; ++i) std::fill_n(out + i * ldc, n, T{});
    } else if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
      small_or_blas(p, static_cast<const T*>(a), static_cast<const T*>(b), out);
    } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      using U = std::make_unsigned_t<T>;  // wraps around
      loops(p, static_cast<const U*>(a), static_cast<const U*>(b), static_cast<U*>(c));
    } else if constexpr (!std::is_same_v<T, bool>) {
      through_float(p, static_cast<const T*>(a), static_cast<const T*>(b), out);
    }
  });
}

// How to cut. Every tile packs its part of A and B anew, which costs noticeably if a tile has few rows or
// columns. The time of all tiles on one thread relative to one call, f32, one Neoverse V1 core (whole calls:
// 54 to 62 GFLOP/s):
//
//                          rows cut to            columns cut to
//   m x n x k              half   quarter eighth  half   quarter eighth
//   NN   64 x 512 x 784    1.064  1.188   1.436   1.025  1.040   1.067
//   NT   64 x 784 x 512    1.161  1.448   2.061   1.017  1.026   1.057
//   TN  784 x 512 x  64    0.985  0.980   0.988   1.039  1.060   1.083
//   NN  256 x 512 x 784    1.016  1.050   1.144   1.033  1.072   1.114
//   NT  256 x 784 x 512    1.037  1.122   1.309   1.016  1.053   1.071
//   TN  784 x 512 x 256    0.986  0.990   0.989   1.016  1.050   1.093
//   NN 1024 x 512 x 784    1.003  0.993   1.019   1.041  1.056   1.114
//   NT 1024 x 784 x 512    1.007  1.013   1.044   1.035  1.095   1.101
//   TN  784 x 512 x1024    1.006  1.038   1.037   1.029  1.075   1.109
//
// So rows are cut, into tiles of 128 or more, or of 192 or 256 if packing is slow (a transposed B; a
// transposed A and large k). If there are too few rows, columns are cut, into tiles of 256 or more. A tile
// takes 0.2 ms or more; a large product becomes eight tiles, and more only if they would take longer than 5
// ms each. With the cuts below, the products of a network 784-512-512-10 and its gradients, at batches of 64,
// 256 and 1024, take 0.94 to 1.04 of the time of whole calls.
GemmTiles::GemmTiles(DType dtype, bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n,
                     std::int64_t k, bool may_cut_k)
    : dtype_(dtype),
      transpose_a_(transpose_a),
      transpose_b_(transpose_b),
      m_(m),
      n_(n),
      k_(k),
      rows_(std::max<std::int64_t>(m, 1)),
      columns_(std::max<std::int64_t>(n, 1)),
      depth_(std::max<std::int64_t>(k, 1)) {
  make_blas_single_threaded();
  constexpr double kTile = 200e-6, kLongTile = 5e-3;
  constexpr std::int64_t kColumns = 256, kFewRows = 64, kFewColumns = 128, kDepth = 1024, kMany = 8;
  const std::int64_t least_rows = transpose_b ? 256 : transpose_a && k > 512 ? 192 : 128;
  const double seconds = estimated_seconds(dtype, m, n, k);
  if (m == 0 || n == 0 || seconds < 1.5 * kTile) return;
  const std::int64_t wanted =
      std::max(std::min(static_cast<std::int64_t>(std::llround(seconds / kTile)), kMany),
               static_cast<std::int64_t>(seconds / kLongTile));
  // An even number of tiles, so that two threads end at the same time.
  const auto pieces = [](std::int64_t extent, std::int64_t least, std::int64_t most) {
    const std::int64_t count = std::min(extent / least, most);
    return count < 2 ? 1 : count / 2 * 2;
  };
  std::int64_t row_pieces = pieces(m, least_rows, wanted);
  std::int64_t column_pieces = row_pieces > 1 ? 1 : pieces(n, kColumns, std::min(wanted, kMany));
  const auto tiles = [&] { return row_pieces * column_pieces; };
  if (tiles() < 4 && seconds / static_cast<double>(tiles()) > kLongTile) {
    if (column_pieces == 1) column_pieces = pieces(n, kColumns, wanted / tiles());
    if (row_pieces == 1) row_pieces = pieces(m, kFewRows, wanted / tiles());
  }
  if (tiles() == 1 && may_cut_k && (dtype == DType::kF32 || dtype == DType::kF64))
    depth_ = even_part(k, pieces(k, kDepth, std::min(wanted, kMany)), 8);
  // Smaller tiles are better than a thread without work.
  if (tiles() == 1 && depth_ == k) row_pieces = pieces(m, kFewRows, 2);
  if (tiles() == 1 && depth_ == k) column_pieces = pieces(n, kFewColumns, 2);
  if (dtype == DType::kF32 && gemm_neon_fits(m, n, k)) {
    // The cost of copying A is inverse to a tile's columns, of copying B inverse to its rows: with the same
    // number of tiles, squarer ones are better.
    const auto copying = [&](std::int64_t row_count, std::int64_t column_count) {
      return static_cast<double>(row_count) / static_cast<double>(m) +
             static_cast<double>(column_count) / static_cast<double>(n);
    };
    for (std::int64_t count = 1; count <= tiles(); ++count) {
      const std::int64_t others = tiles() / count;
      if (tiles() % count == 0 && m / count >= kFewRows && n / others >= kFewRows &&
          copying(count, others) < copying(row_pieces, column_pieces)) {
        row_pieces = count;
        column_pieces = others;
      }
    }
  }
  rows_ = even_part(m, row_pieces, 8);
  columns_ = even_part(n, column_pieces, 16);
}

std::size_t GemmTiles::scratch_bytes() const {
  return needs_finish() ? static_cast<std::size_t>(parts() * m_ * n_) * size_of(dtype_) : 0;
}

double GemmTiles::seconds() const { return 0.2e-6 + estimated_seconds(dtype_, m_, n_, k_); }

GemmTiles::Tile GemmTiles::tile(std::int64_t tile) const {
  const std::int64_t column = tile / parts() % column_tiles() * columns_;
  const std::int64_t row = tile / parts() / column_tiles() * rows_;
  return {row, column, std::min(rows_, m_ - row), std::min(columns_, n_ - column)};
}

void GemmTiles::compute(std::int64_t tile, const void* a, const void* b, void* c, void* scratch) const {
  const auto [row, column, rows, columns] = this->tile(tile);
  const std::int64_t part = tile % parts(), deep = part * depth_;
  const std::int64_t lda = transpose_a_ ? m_ : k_, ldb = transpose_b_ ? k_ : n_;
  const auto size = static_cast<std::int64_t>(size_of(dtype_));
  const auto* left =
      static_cast<const char*>(a) + size * (transpose_a_ ? deep * lda + row : row * lda + deep);
  const auto* right =
      static_cast<const char*>(b) + size * (transpose_b_ ? column * ldb + deep : deep * ldb + column);
  char* out = static_cast<char*>(needs_finish() ? scratch : c);
  if (needs_finish()) out += size * part * m_ * n_;
  gemm(dtype_, transpose_a_, transpose_b_, rows, columns, std::min(depth_, k_ - deep), left, lda, right, ldb,
       out + size * (row * n_ + column), n_);
}

void GemmTiles::finish(void* c, const void* scratch) const {
  visit_dtype(dtype_, [&]<class T>(T) {
    if constexpr (std::is_floating_point_v<T>) {
      const std::int64_t size = m_ * n_;
      auto* out = static_cast<T*>(c);
      const auto* from = static_cast<const T*>(scratch);
      std::copy_n(from, size, out);
      for (std::int64_t part = 1; part < parts(); ++part) {
        from += size;
        for (std::int64_t i = 0; i < size; ++i) out[i] += from[i];
      }
    }
  });
}

}  // namespace lockstep::kernels
