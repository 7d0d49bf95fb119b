// core/kernels/select.cpp - the positions of the largest and smallest elements, on plain memory.
#include "lockstep/core/kernels/select.h"

#include <algorithm>
#include <type_traits>

#include "lockstep/core/error.h"
#include "lockstep/core/kernels/simd/internal/lanes.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t kBlock = 1024;
constexpr std::int64_t kChunk = 256;  // columns side by side

template <class F>
void visit_numeric(const char* what, DType dtype, F&& f) {
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (std::is_same_v<T, bool>) {
      throw InvalidArgument(str(what, ": has no meaning for bool: cast first"));
    } else {
      f(T{});
    }
  });
}

// The index of the first element that Op prefers over all others: finds the extreme value, then its position.
template <class Op, class T>
std::int64_t find_extreme(const T* in, std::int64_t n) {
  using S = Wide<T>;
  S buffer[std::is_same_v<T, S> ? 1 : kBlock];
  S extreme = Op::template identity<S>();
  for (std::int64_t i = 0; i < n; i += kBlock) {
    const std::int64_t count = std::min(kBlock, n - i);
    if constexpr (std::is_same_v<T, S>) {
      extreme = Op::apply(extreme, reduce_span<Op>(in + i, count));
    } else {
      for (std::int64_t j = 0; j < count; ++j) buffer[j] = static_cast<S>(in[i + j]);
      extreme = Op::apply(extreme, reduce_span<Op>(buffer, count));
    }
  }
  const bool nan = extreme != extreme;
  for (std::int64_t i = 0; i < n; ++i) {
    const S x = static_cast<S>(in[i]);
    if (nan ? x != x : x == extreme) return i;
  }
  return 0;
}

template <class Op, class T>
void arg_columns(const T* in, std::int64_t* out, std::int64_t n, std::int64_t inner, std::int64_t begin,
                 std::int64_t end) {
  using S = Wide<T>;
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t column = at % inner;
    const std::int64_t width = std::min({kChunk, inner - column, end - at});
    const T* base = in + at / inner * n * inner + column;
    S best[kChunk];
    for (std::int64_t i = 0; i < width; ++i) {
      best[i] = static_cast<S>(base[i]);
      out[at + i] = 0;
    }
    for (std::int64_t j = 1; j < n; ++j) {
      const T* row = base + j * inner;
      for (std::int64_t i = 0; i < width; ++i) {
        const S x = static_cast<S>(row[i]);
        const bool beats = Op::beats(x, best[i]);
        best[i] = beats ? x : best[i];
        out[at + i] = beats ? j : out[at + i];
      }
    }
    at += width;
  }
}

struct Largest : MaxOp {
  template <class S>
  static bool beats(S x, S best) {
    return (x > best) | ((x != x) & (best == best));
  }
};
struct Smallest : MinOp {
  template <class S>
  static bool beats(S x, S best) {
    return (x < best) | ((x != x) & (best == best));
  }
};

// Does element a of a row come before element b?
template <class T>
bool before(const T* row, std::int64_t a, std::int64_t b) {
  using S = Wide<T>;
  const S x = static_cast<S>(row[a]), y = static_cast<S>(row[b]);
  if (Largest::beats(x, y)) return true;
  if (Largest::beats(y, x)) return false;
  return a < b;
}

// Sifts heap[at] down among the first `size`: the element that before() puts last is on top.
template <class T>
void sink(const T* row, std::int64_t* heap, std::int64_t at, std::int64_t size) {
  const std::int64_t item = heap[at];
  for (std::int64_t child = 2 * at + 1; child < size; child = 2 * at + 1) {
    if (child + 1 < size && before(row, heap[child], heap[child + 1])) ++child;
    if (before(row, heap[child], item)) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = item;
}

template <class T>
void top_of_row(const T* row, std::int64_t n, std::int64_t k, T* values, std::int64_t* heap) {
  if (k == 0) return;
  for (std::int64_t i = 0; i < k; ++i) heap[i] = i;
  for (std::int64_t i = k / 2; i-- > 0;) sink(row, heap, i, k);
  for (std::int64_t i = k; i < n; ++i) {
    if (!Largest::beats(static_cast<Wide<T>>(row[i]), static_cast<Wide<T>>(row[heap[0]]))) continue;
    heap[0] = i;
    sink(row, heap, 0, k);
  }
  for (std::int64_t size = k - 1; size > 0; --size) {
    std::swap(heap[0], heap[size]);
    sink(row, heap, 0, size);
  }
  for (std::int64_t i = 0; i < k; ++i) values[i] = row[heap[i]];
}

}  // namespace

void arg_extreme(DType dtype, bool largest, const void* in, std::int64_t* out, std::int64_t n,
                 std::int64_t inner, std::int64_t begin, std::int64_t end) {
  visit_numeric(largest ? "argmax" : "argmin", dtype, [&]<class T>(T) {
    const auto* from = static_cast<const T*>(in);
    if (inner != 1) {
      largest ? arg_columns<Largest>(from, out, n, inner, begin, end)
              : arg_columns<Smallest>(from, out, n, inner, begin, end);
      return;
    }
    for (std::int64_t i = begin; i < end; ++i) {
      out[i] = largest ? find_extreme<Largest>(from + i * n, n) : find_extreme<Smallest>(from + i * n, n);
    }
  });
}

void top_k(DType dtype, const void* in, std::int64_t n, std::int64_t k, void* values, std::int64_t* indices,
           std::int64_t begin, std::int64_t end) {
  visit_numeric("top_k", dtype, [&]<class T>(T) {
    for (std::int64_t i = begin; i < end; ++i) {
      top_of_row(static_cast<const T*>(in) + i * n, n, k, static_cast<T*>(values) + i * k, indices + i * k);
    }
  });
}

}  // namespace lockstep::kernels
