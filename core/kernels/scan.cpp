// core/kernels/scan.cpp - running sums and products along an axis, on plain memory.
#include "lockstep/core/kernels/scan.h"

#include <algorithm>
#include <type_traits>

#include "lockstep/core/error.h"
#include "lockstep/core/kernels/simd/internal/lanes.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t kChunk = 256;  // columns side by side

// Unsigned for integers, so that overflow wraps.
template <class T>
struct SumOf {
  using Type = Wide<T>;
};
template <>
struct SumOf<std::int32_t> {
  using Type = std::uint32_t;
};
template <>
struct SumOf<std::int64_t> {
  using Type = std::uint64_t;
};
template <>
struct SumOf<std::uint8_t> {
  using Type = std::uint32_t;
};

template <class T>
void scan(const T* in, T* out, std::int64_t n, std::int64_t inner, bool exclusive, bool reverse,
          std::int64_t begin, std::int64_t end) {
  using S = typename SumOf<T>::Type;
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t column = at % inner;
    const std::int64_t width = std::min({kChunk, inner - column, end - at});
    const std::int64_t base = at / inner * n * inner + column;
    S sums[kChunk];
    std::fill_n(sums, width, S{0});
    for (std::int64_t step = 0; step < n; ++step) {
      const std::int64_t row = base + (reverse ? n - 1 - step : step) * inner;
      for (std::int64_t i = 0; i < width; ++i) {
        const S next = sums[i] + static_cast<S>(in[row + i]);
        const S given = exclusive ? sums[i] : next;
        if constexpr (std::is_integral_v<T>) {
          out[row + i] = static_cast<T>(given);
        } else {
          out[row + i] = T(given);
        }
        sums[i] = next;
      }
    }
    at += width;
  }
}

}  // namespace

void cumsum(DType dtype, const void* in, void* out, std::int64_t n, std::int64_t inner, bool exclusive,
            bool reverse, std::int64_t begin, std::int64_t end) {
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (std::is_same_v<T, bool>) {
      throw InvalidArgument("cumsum: has no meaning for bool: cast first");
    } else {
      scan(static_cast<const T*>(in), static_cast<T*>(out), n, inner, exclusive, reverse, begin, end);
    }
  });
}

void prod_of_others(DType dtype, const void* in, void* out, float* products, std::int64_t n,
                    std::int64_t inner, std::int64_t begin, std::int64_t end) {
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (std::is_integral_v<T>) {
      throw InvalidArgument(str("prod_of_others: takes floating values, got ", dtype));
    } else {
      using S = Wide<T>;
      const auto* from = static_cast<const T*>(in);
      auto* to = static_cast<T*>(out);
      S* others = nullptr;  // the products of the elements before, then of all others
      if constexpr (std::is_same_v<T, S>) {
        others = to;
      } else {
        LOCKSTEP_CHECK(products != nullptr || begin == end || n == 0, "prod_of_others of ", dtype,
                       " needs room");
        others = products;
      }
      for (std::int64_t item = begin; item < end; ++item) {
        const std::int64_t base = item / inner * n * inner + item % inner;
        S before{1}, behind{1};
        for (std::int64_t j = 0; j < n; ++j) {
          others[base + j * inner] = before;
          before *= static_cast<S>(from[base + j * inner]);
        }
        for (std::int64_t j = n; j-- > 0;) {
          const std::int64_t at = base + j * inner;
          to[at] = T(others[at] * behind);
          behind *= static_cast<S>(from[at]);
        }
      }
    }
  });
}

}  // namespace lockstep::kernels
