// core/kernels/simd/internal/lanes.h - sixteen partial results side by side: the inner loops of reductions.
//
// reduce_span() sends element i of a span to partial result i % 16 and joins the sixteen by a fixed tree
// (fewer than sixteen elements are taken one after another), so that the order of the arithmetic is the same
// on every machine, however wide its registers are. The loops are written with the compilers' 16-byte vectors
// and unrolled by hand, because g++ vectorises no such loop at -O2.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "lockstep/core/dtype.h"

namespace lockstep::kernels {

inline constexpr std::int64_t kLanes = 16;

// The type in which a T is computed.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, F16> || std::is_same_v<T, BF16>, float, T>;

// --- the operations; each works on numbers and on vectors of them
struct AddOp {
  template <class V>
  static V apply(V a, V x) {
    return a + x;
  }
  template <class S>
  static constexpr S identity() {
    return S{0};
  }
};
struct MulOp {
  template <class V>
  static V apply(V a, V x) {
    return a * x;
  }
  template <class S>
  static constexpr S identity() {
    return S{1};
  }
};
// NaN wins over everything.
struct MaxOp {
  template <class V>
  static V apply(V a, V x) {
    return ((x > a) | (x != x)) ? x : a;
  }
  template <class S>
  static constexpr S identity() {
    if constexpr (std::is_floating_point_v<S>) return -std::numeric_limits<S>::infinity();
    return std::numeric_limits<S>::lowest();
  }
};
struct MinOp {
  template <class V>
  static V apply(V a, V x) {
    return ((x < a) | (x != x)) ? x : a;
  }
  template <class S>
  static constexpr S identity() {
    if constexpr (std::is_floating_point_v<S>) return std::numeric_limits<S>::infinity();
    return std::numeric_limits<S>::max();
  }
};

// The minimum of zeros and ones.
struct AllOp : MinOp {
  template <class S>
  static constexpr S identity() {
    return S{1};
  }
};

template <class S>
struct VectorOf {
  static constexpr std::int64_t kWidth = 16 / static_cast<std::int64_t>(sizeof(S));
  typedef S Type __attribute__((vector_size(16)));
};
template <class S>
using Vector = typename VectorOf<S>::Type;

template <class S>
inline Vector<S> load_vector(const S* from) {
  Vector<S> v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}
template <class S>
inline void store_vector(S* to, Vector<S> v) {
  std::memcpy(to, &v, sizeof(v));
}

// f(0), f(1), ... with constants, so that arrays indexed by them stay in registers.
template <std::size_t kCount, class F>
inline void unrolled(F&& f) {
  [&]<std::size_t... k>(std::index_sequence<k...>) { (f(std::integral_constant<std::size_t, k>{}), ...); }
  (std::make_index_sequence<kCount>{});
}

// The sixteen partial results as one: halves joined until one is left.
template <class Op, class S>
inline S join_lanes(const S* lanes) {
  S level[kLanes / 2];
  for (std::int64_t i = 0; i < kLanes / 2; ++i) level[i] = Op::apply(lanes[i], lanes[i + kLanes / 2]);
  for (std::int64_t width = kLanes / 4; width > 0; width /= 2) {
    for (std::int64_t i = 0; i < width; ++i) level[i] = Op::apply(level[i], level[i + width]);
  }
  return level[0];
}

// Reduces terms made from one or two spans: term(vector of a, vector of b), which has to work on numbers,
// too.
template <class Op, class S, class Term>
inline S reduce_terms(const S* a, const S* b, std::int64_t count, Term&& term) {
  if (count < kLanes) {
    S total = Op::template identity<S>();
    for (std::int64_t i = 0; i < count; ++i) total = Op::apply(total, term(a[i], b[i]));
    return total;
  }
  constexpr std::size_t kVectors = static_cast<std::size_t>(kLanes / VectorOf<S>::kWidth);
  std::array<Vector<S>, kVectors> sums;
  unrolled<kVectors>([&](auto k) { sums[k] = Vector<S>{} + Op::template identity<S>(); });
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    unrolled<kVectors>([&](auto k) {
      constexpr std::int64_t kAt = static_cast<std::int64_t>(k()) * VectorOf<S>::kWidth;
      sums[k] = Op::apply(sums[k], term(load_vector(a + i + kAt), load_vector(b + i + kAt)));
    });
  }
  S lanes[kLanes];
  std::memcpy(lanes, sums.data(), sizeof(lanes));
  for (std::int64_t lane = 0; i < count; ++i, ++lane) lanes[lane] = Op::apply(lanes[lane], term(a[i], b[i]));
  return join_lanes<Op>(lanes);
}

template <class Op, class S>
inline S reduce_span(const S* in, std::int64_t count) {
  return reduce_terms<Op>(in, in, count, [](auto x, auto) { return x; });
}

// to[i] = f(in[i]...); f works on numbers and on vectors. `to` may be one of the inputs.
template <class S, class F, class... In>
inline void map_spans(S* to, std::int64_t count, F&& f, const In*... in) {
  constexpr std::int64_t kWidth = VectorOf<S>::kWidth;
  std::int64_t i = 0;
  for (; i + 2 * kWidth <= count; i += 2 * kWidth) {
    const Vector<S> first = f(load_vector(in + i)...);
    const Vector<S> second = f(load_vector(in + i + kWidth)...);
    store_vector(to + i, first);
    store_vector(to + i + kWidth, second);
  }
  for (; i < count; ++i) to[i] = f(in[i]...);
}

template <class S, class F>
inline void map_span(const S* a, const S* b, S* to, std::int64_t count, F&& f) {
  map_spans(to, count, std::forward<F>(f), a, b);
}

// into[i] = op(into[i], in[i]).
template <class Op, class S>
inline void fold_span(S* into, const S* in, std::int64_t count) {
  map_span(into, in, into, count, [](auto a, auto x) { return Op::apply(a, x); });
}

// into[i] = op(... op(op(into[i], row 0), row 1) ...), with rows `stride` elements apart.
template <class Op, class S>
inline void fold_rows(S* into, const S* in, std::int64_t stride, std::int64_t rows, std::int64_t width) {
  constexpr std::size_t kVectors = 8;
  constexpr std::int64_t kWidth = VectorOf<S>::kWidth;
  constexpr std::int64_t kStep = kWidth * static_cast<std::int64_t>(kVectors);
  std::int64_t i = 0;
  for (; i + kStep <= width; i += kStep) {
    std::array<Vector<S>, kVectors> sums;
    unrolled<kVectors>(
        [&](auto k) { sums[k] = load_vector(into + i + static_cast<std::int64_t>(k()) * kWidth); });
    const S* row = in + i;
    for (std::int64_t r = 0; r < rows; ++r, row += stride) {
      unrolled<kVectors>([&](auto k) {
        sums[k] = Op::apply(sums[k], load_vector(row + static_cast<std::int64_t>(k()) * kWidth));
      });
    }
    unrolled<kVectors>(
        [&](auto k) { store_vector(into + i + static_cast<std::int64_t>(k()) * kWidth, sums[k]); });
  }
  for (; i + kWidth <= width; i += kWidth) {
    Vector<S> sum = load_vector(into + i);
    for (std::int64_t r = 0; r < rows; ++r) sum = Op::apply(sum, load_vector(in + r * stride + i));
    store_vector(into + i, sum);
  }
  for (; i < width; ++i) {
    S sum = into[i];
    for (std::int64_t r = 0; r < rows; ++r) sum = Op::apply(sum, in[r * stride + i]);
    into[i] = sum;
  }
}

}  // namespace lockstep::kernels
