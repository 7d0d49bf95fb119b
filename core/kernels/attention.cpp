// core/kernels/attention.cpp - attention of one head: products of BLAS, and loops over rows of scores between them.
#include "lockstep/core/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "lockstep/core/error.h"
#include "lockstep/core/kernels/gemm.h"
#include "lockstep/core/kernels/random.h"
#include "lockstep/core/kernels/simd/internal/lanes.h"
#include "lockstep/core/kernels/simd/internal/span_math.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t kRows =
    64;  // of scores at a time: enough for BLAS, and 1000 keys of f32 stay in the second cache
constexpr std::int64_t kLine = 64;  // bytes

// Hands out scratch memory; without any it counts what it would hand out.
template <class S>
class Scratch {
 public:
  explicit Scratch(void* memory) : memory_(static_cast<std::byte*>(memory)) {}
  S* take(std::int64_t count) {
    S* const taken = memory_ == nullptr ? nullptr : reinterpret_cast<S*>(memory_ + bytes_);
    bytes_ += (count * static_cast<std::int64_t>(sizeof(S)) + kLine - 1) / kLine * kLine;
    return taken;
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  std::int64_t bytes_ = 0;
};

// A matrix in the type that is computed in.
template <class S>
struct Matrix {
  S* data = nullptr;
  std::int64_t step = 0;
};
template <class S>
Matrix<const S> read_only(const Matrix<S>& matrix) {
  return {matrix.data, matrix.step};
}

// C (m x n) = op(A) op(B), or added to it.
template <class S>
void multiply(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
              const Matrix<const S>& a, const Matrix<const S>& b, const Matrix<S>& c,
              bool accumulate = false) {
  gemm(dtype_of<S>, transpose_a, transpose_b, m, n, k, a.data, a.step, b.data, b.step, c.data, c.step,
       accumulate);
}

// Rows [begin, begin + rows) of what is given as T: in place, or converted into the buffer.
template <class T, class S>
Matrix<const S> widen(const AttentionInput& from, std::int64_t begin, std::int64_t rows, std::int64_t width,
                      S* buffer) {
  const T* data = static_cast<const T*>(from.data) + begin * from.step;
  if constexpr (std::is_same_v<T, S>) {
    return {data, from.step};
  } else {
    for (std::int64_t row = 0; row < rows; ++row)
      wide_span(data + row * from.step, buffer + row * width, width);
    return {buffer, width};
  }
}

// Where rows of S are to be written before narrow() puts them into their place.
template <class T, class S>
Matrix<S> place_for(const AttentionOutput& to, std::int64_t begin, std::int64_t width, S* buffer) {
  if constexpr (std::is_same_v<T, S>) {
    return {static_cast<T*>(to.data) + begin * to.step, to.step};
  } else {
    return {buffer, width};
  }
}
template <class T, class S>
void narrow(const Matrix<S>& from, std::int64_t begin, std::int64_t rows, std::int64_t width,
            const AttentionOutput& to) {
  if constexpr (!std::is_same_v<T, S>) {
    T* const data = static_cast<T*>(to.data) + begin * to.step;
    for (std::int64_t row = 0; row < rows; ++row)
      narrow_span(from.data + row * from.step, data + row * to.step, width);
  }
}

// Conversions need no memory where there are none.
template <class T, class S>
std::int64_t if_narrow(std::int64_t count) {
  return std::is_same_v<T, S> ? 0 : count;
}

template <class T, class S>
void add_mask(const AttentionHead& head, std::int64_t row, S* scores) {
  const T* const mask = static_cast<const T*>(head.mask.data) + row * head.mask.step;
  const std::int64_t column = head.mask_column;
  for (std::int64_t j = 0; j < head.keys; ++j) scores[j] += static_cast<S>(mask[j * column]);
}

// The rows' scores, one row after the other.
template <class T, class S>
void make_scores(const AttentionHead& head, std::int64_t begin, std::int64_t rows, const Matrix<const S>& q,
                 const Matrix<const S>& k, S* scores) {
  multiply<S>(false, true, rows, head.keys, head.width, q, k, {scores, head.keys});
  const S scale = static_cast<S>(head.scale);
  if (scale != 1)
    map_span(scores, scores, scores, rows * head.keys, [scale](auto x, auto) { return x * scale; });
  if (head.mask.data == nullptr) return;
  for (std::int64_t row = 0; row < rows; ++row) add_mask<T>(head, begin + row, scores + row * head.keys);
}

template <class S>
void drop(const AttentionHead& head, std::int64_t begin, std::int64_t rows, const S* shares, S* dropped) {
  const std::int64_t first = head.first_share + begin * head.keys;
  dropout_part(dtype_of<S>, *head.stream, head.rate, shares, dropped, first, first + rows * head.keys);
}

template <class T>
struct Forward {
  using S = Wide<T>;
  S *scores, *q, *k, *v, *out;
  std::int64_t bytes;

  Forward(const AttentionHead& head, void* memory) {
    Scratch<S> scratch(memory);
    scores = scratch.take(kRows * head.keys);
    q = scratch.take(if_narrow<T, S>(kRows * head.width));
    k = scratch.take(if_narrow<T, S>(head.keys * head.width));
    v = scratch.take(if_narrow<T, S>(head.keys * head.value_width));
    out = scratch.take(if_narrow<T, S>(kRows * head.value_width));
    bytes = scratch.bytes();
  }

  // Scores become shares.
  void share_out(std::int64_t rows, std::int64_t keys, S* logs) const {
    for (std::int64_t row = 0; row < rows; ++row) {
      S* const of_row = scores + row * keys;
      const S largest = reduce_span<MaxOp>(of_row, keys);
      map_span(of_row, of_row, of_row, keys, [largest](auto x, auto) { return x - largest; });
      exp_span(of_row, of_row, keys);
      const S sum = reduce_span<AddOp>(of_row, keys), part = S{1} / sum;
      map_span(of_row, of_row, of_row, keys, [part](auto x, auto) { return x * part; });
      logs[row] = largest + std::log(sum);
    }
  }

  void run(const AttentionHead& head, std::int64_t begin, std::int64_t end, const AttentionOutput& to,
           S* logs) const {
    const Matrix<const S> keys = widen<T>(head.k, 0, head.keys, head.width, k);
    const Matrix<const S> values = widen<T>(head.v, 0, head.keys, head.value_width, v);
    for (std::int64_t row = begin; row < end; row += kRows) {
      const std::int64_t rows = std::min(kRows, end - row);
      make_scores<T, S>(head, row, rows, widen<T>(head.q, row, rows, head.width, q), keys, scores);
      share_out(rows, head.keys, logs + row);
      if (head.stream != nullptr) drop(head, row, rows, scores, scores);
      const Matrix<S> result = place_for<T>(to, row, head.value_width, out);
      multiply<S>(false, false, rows, head.value_width, head.keys, {scores, head.keys}, values, result);
      narrow<T>(result, row, rows, head.value_width, to);
    }
  }
};

template <class T>
struct Backward {
  using S = Wide<T>;
  S *shares, *other, *q, *k, *v, *out, *g, *dq, *dk, *dv;
  std::int64_t bytes;

  Backward(const AttentionHead& head, void* memory) {
    Scratch<S> scratch(memory);
    shares = scratch.take(kRows * head.keys);
    other = scratch.take(kRows * head.keys);
    const auto take = [&](std::int64_t rows, std::int64_t width) {
      return scratch.take(if_narrow<T, S>(rows * width));
    };
    q = take(kRows, head.width);
    k = take(head.keys, head.width);
    v = take(head.keys, head.value_width);
    out = take(kRows, head.value_width);
    g = take(kRows, head.value_width);
    dq = take(kRows, head.width);
    dk = take(head.keys, head.width);
    dv = take(head.keys, head.value_width);
    bytes = scratch.bytes();
  }

  void run(const AttentionHead& head, const AttentionFlow& flow) const {
    const std::int64_t n = head.keys, width = head.width, value_width = head.value_width;
    const Matrix<const S> keys = widen<T>(head.k, 0, n, width, k);
    const Matrix<const S> values = widen<T>(head.v, 0, n, value_width, v);
    const Matrix<S> to_k = place_for<T>(flow.dk, 0, width, dk),
                    to_v = place_for<T>(flow.dv, 0, value_width, dv);
    const auto* const logs = static_cast<const S*>(flow.logs);
    const S scale = static_cast<S>(head.scale);
    std::int64_t row = 0;
    do {  // without queries once, which makes zeros
      const std::int64_t rows = std::min(kRows, head.queries - row);
      const bool more = row > 0;
      const Matrix<const S> queries = widen<T>(head.q, row, rows, width, q);
      const Matrix<const S> back = widen<T>(flow.g, row, rows, value_width, g);
      const Matrix<const S> result = widen<T>(flow.out, row, rows, value_width, out);
      make_scores<T, S>(head, row, rows, queries, keys, shares);
      for (std::int64_t i = 0; i < rows; ++i) {
        S* const of_row = shares + i * n;
        map_span(of_row, of_row, of_row, n, [log = logs[row + i]](auto x, auto) { return x - log; });
      }
      exp_span(shares, shares, rows * n);
      const S* dropped = shares;
      if (head.stream != nullptr) {
        drop(head, row, rows, shares, other);
        dropped = other;
      }
      multiply<S>(true, false, n, value_width, rows, {dropped, n}, back, to_v, more);
      multiply<S>(false, true, rows, n, value_width, back, values, {other, n});
      if (head.stream != nullptr) drop(head, row, rows, other, other);
      for (std::int64_t i = 0; i < rows; ++i) {
        // sum(shares * what flows into them), as the sum of fewer terms.
        const S total = reduce_terms<AddOp>(back.data + i * back.step, result.data + i * result.step,
                                            value_width, [](auto x, auto y) { return x * y; });
        map_span(shares + i * n, other + i * n, shares + i * n, n,
                 [total, scale](auto share, auto x) { return share * (x - total) * scale; });
      }
      const Matrix<S> to_q = place_for<T>(flow.dq, row, width, dq);
      multiply<S>(false, false, rows, width, n, {shares, n}, keys, to_q);
      narrow<T>(to_q, row, rows, width, flow.dq);
      multiply<S>(true, false, n, width, rows, {shares, n}, queries, to_k, more);
      row += kRows;
    } while (row < head.queries);
    narrow<T>(to_k, 0, n, width, flow.dk);
    narrow<T>(to_v, 0, n, value_width, flow.dv);
  }
};

template <class F>
void visit_floating(DType dtype, F&& f) {
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (std::is_integral_v<T>) {
      throw InvalidArgument(str("attention: takes floating values, got ", dtype));
    } else {
      f(T{});
    }
  });
}

}  // namespace

std::size_t attention_scratch_bytes(DType dtype, const AttentionHead& head) {
  std::size_t bytes = 0;
  visit_floating(dtype,
                 [&]<class T>(T) { bytes = static_cast<std::size_t>(Forward<T>(head, nullptr).bytes); });
  return bytes;
}

std::size_t attention_grad_scratch_bytes(DType dtype, const AttentionHead& head) {
  std::size_t bytes = 0;
  visit_floating(dtype,
                 [&]<class T>(T) { bytes = static_cast<std::size_t>(Backward<T>(head, nullptr).bytes); });
  return bytes;
}

void attention(DType dtype, const AttentionHead& head, std::int64_t begin, std::int64_t end,
               const AttentionOutput& out, void* logs, void* scratch) {
  visit_floating(dtype, [&]<class T>(T) {
    Forward<T>(head, scratch).run(head, begin, end, out, static_cast<Wide<T>*>(logs));
  });
}

void attention_grad(DType dtype, const AttentionHead& head, const AttentionFlow& flow, void* scratch) {
  visit_floating(dtype, [&]<class T>(T) { Backward<T>(head, scratch).run(head, flow); });
}

}  // namespace lockstep::kernels
