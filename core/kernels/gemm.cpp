#include "lockstep/core/kernels/gemm.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <type_traits>
#include <vector>

#include "lockstep/core/error.h"

extern "C" {
// Fortran's names, which every BLAS has; the last two arguments are the lengths of the two strings.
void sgemm_(const char* transpose_a, const char* transpose_b, const int* m, const int* n, const int* k,
            const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
            const float* beta, float* c, const int* ldc, std::size_t, std::size_t);
void dgemm_(const char* transpose_a, const char* transpose_b, const int* m, const int* n, const int* k,
            const double* alpha, const double* a, const int* lda, const double* b, const int* ldb,
            const double* beta, double* c, const int* ldc, std::size_t, std::size_t);
// Weak: null where the BLAS is another one.
__attribute__((weak)) void openblas_set_num_threads(int threads);
}

namespace lockstep::kernels {
namespace {

struct Problem {
  bool transpose_a, transpose_b;
  std::int64_t m, n, k;
  std::int64_t lda, ldb, ldc;
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
  const T one = 1, zero = 0;
  if constexpr (std::is_same_v<T, float>) {
    sgemm_(&tb, &ta, &n, &m, &k, &one, b, &ldb, a, &lda, &zero, c, &ldc, 1, 1);
  } else {
    dgemm_(&tb, &ta, &n, &m, &k, &one, b, &ldb, a, &lda, &zero, c, &ldc, 1, 1);
  }
}

// How elements are multiplied and added: floats for the 16-bit types, unsigned for integers, where overflow wraps.
template <class T>
struct Accumulate {
  using Type = std::uint64_t;
  static Type load(T value) { return static_cast<std::uint64_t>(static_cast<std::int64_t>(value)); }
  static T store(Type value) { return static_cast<T>(value); }
};
template <class T>
struct AccumulateFloat {
  using Type = float;
  static Type load(T value) { return static_cast<float>(value); }
  static T store(Type value) { return T(value); }
};
template <>
struct Accumulate<F16> : AccumulateFloat<F16> {};
template <>
struct Accumulate<BF16> : AccumulateFloat<BF16> {};
template <>
struct Accumulate<std::int32_t> {
  using Type = std::uint32_t;
  static Type load(std::int32_t value) { return static_cast<std::uint32_t>(value); }
  static std::int32_t store(Type value) { return static_cast<std::int32_t>(value); }
};

// op(B) is converted once; then each row of C is a sum of scaled rows of op(B), in the order of k.
template <class T>
void loops(const Problem& p, const T* a, const T* b, T* c) {
  using Sum = typename Accumulate<T>::Type;
  std::vector<Sum> right(static_cast<std::size_t>(p.k) * static_cast<std::size_t>(p.n));
  std::vector<Sum> row(static_cast<std::size_t>(p.n));
  for (std::int64_t i = 0; i < p.k; ++i) {
    for (std::int64_t j = 0; j < p.n; ++j) {
      const std::int64_t from = p.transpose_b ? j * p.ldb + i : i * p.ldb + j;
      right[static_cast<std::size_t>(i * p.n + j)] = Accumulate<T>::load(b[from]);
    }
  }
  for (std::int64_t i = 0; i < p.m; ++i) {
    std::fill(row.begin(), row.end(), Sum{0});
    for (std::int64_t l = 0; l < p.k; ++l) {
      const Sum factor = Accumulate<T>::load(a[p.transpose_a ? l * p.lda + i : i * p.lda + l]);
      const Sum* from = right.data() + l * p.n;
      for (std::int64_t j = 0; j < p.n; ++j) row[static_cast<std::size_t>(j)] += factor * from[j];
    }
    for (std::int64_t j = 0; j < p.n; ++j)
      c[i * p.ldc + j] = Accumulate<T>::store(row[static_cast<std::size_t>(j)]);
  }
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
          const void* a, std::int64_t lda, const void* b, std::int64_t ldb, void* c, std::int64_t ldc) {
  const Problem p{transpose_a, transpose_b, m, n, k, lda, ldb, ldc};
  if (dtype == DType::kBool)
    throw InvalidArgument("gemm: bool has no products: convert to another dtype first");
  check(p);
  if (m == 0 || n == 0) return;
  visit_dtype(dtype, [&]<class T>(T) {
    auto* out = static_cast<T*>(c);
    if (k == 0) {
      for (std::int64_t i = 0; i < m; ++i) std::fill_n(out + i * ldc, n, T{});
    } else if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
      blas(p, static_cast<const T*>(a), static_cast<const T*>(b), out);
    } else if constexpr (!std::is_same_v<T, bool>) {
      loops(p, static_cast<const T*>(a), static_cast<const T*>(b), out);
    }
  });
}

}  // namespace lockstep::kernels
