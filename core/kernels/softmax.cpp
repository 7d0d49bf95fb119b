// core/kernels/softmax.cpp - softmax, its logarithm, and the cross entropy of both, on plain memory.
#include "lockstep/core/kernels/softmax.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "lockstep/core/error.h"
#include "lockstep/core/kernels/simd/internal/lanes.h"
#include "lockstep/core/kernels/simd/internal/span_math.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t kBlock = 1024;   // elements of a row per block of a sum
constexpr std::int64_t kBuffer = 2048;  // elements that are worked on at a time, in the nearest cache
constexpr std::int64_t kChunk = 256;    // columns side by side

template <class F>
void visit_floating(const char* what, DType dtype, F&& f) {
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (std::is_integral_v<T>) {
      throw InvalidArgument(str(what, ": takes floating values, got ", dtype));
    } else {
      f(T{});
    }
  });
}

template <class S>
S sum_row(const S* in, std::int64_t count) {
  S total{0};
  for (std::int64_t i = 0; i < count; i += kBlock)
    total += reduce_span<AddOp>(in + i, std::min(kBlock, count - i));
  return total;
}

template <class S>
S sum_products(const S* a, const S* b, std::int64_t count) {
  S total{0};
  for (std::int64_t i = 0; i < count; i += kBlock) {
    total +=
        reduce_terms<AddOp>(a + i, b + i, std::min(kBlock, count - i), [](auto x, auto y) { return x * y; });
  }
  return total;
}

// --- rows of one block of memory each

// For rows that fit the buffer, as many at a time as fit, or for rows of any length if T computes in T.
// `start(row, x - max)` sees a row before its exponentials are taken, `finish(row, exponentials, sum)`
// afterwards.
template <class T, class Start, class End>
void exponential_rows(const T* in, T* out, std::int64_t n, std::int64_t begin, std::int64_t end,
                      Start&& start, End&& finish) {
  using S = Wide<T>;
  constexpr bool kInPlace = std::is_same_v<T, S>;
  S buffer[kInPlace ? 1 : kBuffer];
  const std::int64_t batch = std::max<std::int64_t>(1, kBuffer / std::max<std::int64_t>(n, 1));
  for (std::int64_t row = begin; row < end; row += batch) {
    const std::int64_t rows = std::min(batch, end - row);
    S* work = buffer;
    if constexpr (kInPlace) work = out + row * n;
    for (std::int64_t i = 0; i < rows; ++i) {
      S* values = work + i * n;
      const S* x = wide_span(in + (row + i) * n, values, n);
      const S largest = reduce_span<MaxOp>(x, n);
      map_span(x, x, values, n, [largest](auto v, auto) { return v - largest; });
      start(row + i, values);
    }
    exp_span(work, work, rows * n);
    for (std::int64_t i = 0; i < rows; ++i) finish(row + i, work + i * n, sum_row(work + i * n, n));
  }
}

// The largest of a row of any length; `buffer` has room for kBlock.
template <class T>
Wide<T> largest_of_row(const T* x, std::int64_t n, Wide<T>* buffer) {
  Wide<T> largest = MaxOp::identity<Wide<T>>();
  for (std::int64_t i = 0; i < n; i += kBlock) {
    const std::int64_t count = std::min(kBlock, n - i);
    largest = MaxOp::apply(largest, reduce_span<MaxOp>(wide_span(x + i, buffer, count), count));
  }
  return largest;
}

// buffer = x - largest, at most kBlock of them.
template <class T>
void take_distances(const T* x, std::int64_t count, Wide<T> largest, Wide<T>* buffer) {
  const Wide<T>* values = wide_span(x, buffer, count);
  map_span(values, values, buffer, count, [largest](auto v, auto) { return v - largest; });
}

// For rows of f16 and bf16 that do not fit: `start(row, first, x - max, count)` sees a row piece by piece,
// and then `finish(row, first, x - max, count, sum)`, which takes the exponentials a second time.
template <class T, class Start, class End>
void exponential_long_rows(const T* in, std::int64_t n, std::int64_t begin, std::int64_t end, Start&& start,
                           End&& finish) {
  using S = Wide<T>;
  S buffer[kBlock];
  for (std::int64_t row = begin; row < end; ++row) {
    const T* x = in + row * n;
    const S largest = largest_of_row(x, n, buffer);
    S sum{0};
    for (std::int64_t i = 0; i < n; i += kBlock) {
      const std::int64_t count = std::min(kBlock, n - i);
      take_distances(x + i, count, largest, buffer);
      start(row, i, buffer, count);
      exp_span(buffer, buffer, count);
      sum += reduce_span<AddOp>(buffer, count);
    }
    for (std::int64_t i = 0; i < n; i += kBlock) {
      const std::int64_t count = std::min(kBlock, n - i);
      take_distances(x + i, count, largest, buffer);
      finish(row, i, buffer, count, sum);
    }
  }
}

// out = in * factor and out = in - amount. `in` is a buffer that is not needed afterwards.
template <class T>
void store_scaled(const Wide<T>* in, Wide<T>* buffer, T* out, std::int64_t count, Wide<T> factor) {
  if constexpr (std::is_same_v<T, Wide<T>>) {
    map_span(in, in, out, count, [factor](auto v, auto) { return v * factor; });
  } else {
    map_span(in, in, buffer, count, [factor](auto v, auto) { return v * factor; });
    from_f32(buffer, out, count);
  }
}

template <class T>
void store_less(Wide<T>* in, T* out, std::int64_t count, Wide<T> amount) {
  if constexpr (std::is_same_v<T, Wide<T>>) {
    map_span(in, in, out, count, [amount](auto v, auto) { return v - amount; });
  } else {
    map_span(in, in, in, count, [amount](auto v, auto) { return v - amount; });
    from_f32(in, out, count);
  }
}

template <class T>
constexpr bool computes_in_itself = std::is_same_v<T, Wide<T>>;

template <class T>
void softmax_rows(const T* in, T* out, std::int64_t n, std::int64_t begin, std::int64_t end) {
  using S = Wide<T>;
  if (computes_in_itself<T> || n <= kBuffer) {
    exponential_rows(
        in, out, n, begin, end, [](std::int64_t, const S*) {},
        [&](std::int64_t row, S* e, S sum) { store_scaled(e, e, out + row * n, n, S{1} / sum); });
  } else {
    exponential_long_rows(
        in, n, begin, end, [](std::int64_t, std::int64_t, const S*, std::int64_t) {},
        [&](std::int64_t row, std::int64_t first, S* distance, std::int64_t count, S sum) {
          exp_span(distance, distance, count);
          store_scaled(distance, distance, out + row * n + first, count, S{1} / sum);
        });
  }
}

template <class T>
void log_softmax_rows(const T* in, T* out, std::int64_t n, std::int64_t begin, std::int64_t end) {
  using S = Wide<T>;
  S buffer[kBlock];
  for (std::int64_t row = begin; row < end; ++row) {
    const T* x = in + row * n;
    const S largest = largest_of_row(x, n, buffer);
    S sum{0};
    for (std::int64_t i = 0; i < n; i += kBlock) {
      const std::int64_t count = std::min(kBlock, n - i);
      take_distances(x + i, count, largest, buffer);
      exp_span(buffer, buffer, count);
      sum += reduce_span<AddOp>(buffer, count);
    }
    const S log_sum = std::log(sum);
    for (std::int64_t i = 0; i < n; i += kBlock) {
      const std::int64_t count = std::min(kBlock, n - i);
      take_distances(x + i, count, largest, buffer);
      store_less(buffer, out + row * n + i, count, log_sum);
    }
  }
}

// --- columns

// Calls f(offset of the first, width) for the items [begin, end), at most kChunk side by side.
template <class F>
void for_each_columns(std::int64_t n, std::int64_t inner, std::int64_t begin, std::int64_t end, F&& f) {
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t column = at % inner;
    const std::int64_t width = std::min({kChunk, inner - column, end - at});
    f(at / inner * n * inner + column, width);
    at += width;
  }
}

template <class T>
void softmax_columns(bool log, const T* in, T* out, std::int64_t n, std::int64_t inner, std::int64_t begin,
                     std::int64_t end) {
  using S = Wide<T>;
  for_each_columns(n, inner, begin, end, [&](std::int64_t offset, std::int64_t width) {
    S largest[kChunk], sum[kChunk], buffer[kChunk];
    std::fill_n(largest, width, MaxOp::identity<S>());
    std::fill_n(sum, width, S{0});
    const auto distances = [&](std::int64_t j) {
      map_span(wide_span(in + offset + j * inner, buffer, width), largest, buffer, width,
               [](auto x, auto m) { return x - m; });
    };
    for (std::int64_t j = 0; j < n; ++j) {
      fold_span<MaxOp>(largest, wide_span(in + offset + j * inner, buffer, width), width);
    }
    for (std::int64_t j = 0; j < n; ++j) {
      distances(j);
      exp_span(buffer, buffer, width);
      fold_span<AddOp>(sum, buffer, width);
    }
    for (std::int64_t i = 0; i < width; ++i) sum[i] = log ? std::log(sum[i]) : S{1} / sum[i];
    for (std::int64_t j = 0; j < n; ++j) {
      distances(j);
      T* to = out + offset + j * inner;
      if (log) {
        map_span(buffer, sum, buffer, width, [](auto v, auto amount) { return v - amount; });
      } else {
        exp_span(buffer, buffer, width);
        map_span(buffer, sum, buffer, width, [](auto v, auto factor) { return v * factor; });
      }
      narrow_span(buffer, to, width);
    }
  });
}

// --- class numbers

template <class F>
void visit_labels(DType dtype, DType label_dtype, F&& f) {
  if (label_dtype == DType::kI32) return f(std::int32_t{});
  if (label_dtype == DType::kI64) return f(std::int64_t{});
  if (label_dtype != dtype) {
    throw InvalidArgument(str("softmax_cross_entropy: labels of ", label_dtype, " beside logits of ", dtype,
                              ": they are class numbers (i32, i64), or weights of the logits' dtype"));
  }
  f(bool{});
}

std::int64_t check_class(std::int64_t label, std::int64_t row, std::int64_t n) {
  if (label < 0 || label >= n) {
    throw RefusedData(str("softmax_cross_entropy: the label of row ", row, " is ", label,
                          ", which is not one of the ", n, " classes [0, ", n, ")"),
                      row);
  }
  return label;
}

// sum(weights * distances); a weight of zero contributes nothing, whatever the distance.
template <class S>
S weighted(const S* weights, const S* distances, std::int64_t count) {
  S total{0};
  for (std::int64_t i = 0; i < count; i += kBlock) {
    total += reduce_terms<AddOp>(weights + i, distances + i, std::min(kBlock, count - i), [](auto w, auto d) {
      const auto product = w * d;
      return w == 0 ? w : product;
    });
  }
  return total;
}

template <class T, class Label>
void cross_entropy(const T* x, const void* labels, std::int64_t n, T* loss, T* probabilities,
                   std::int64_t begin, std::int64_t end) {
  using S = Wide<T>;
  constexpr bool kWeights = std::is_same_v<Label, bool>;
  // Of each row under way: the labelled distance from the largest, and the sum of the labels.
  S distance[kBuffer], weight[kBuffer], buffer[kBuffer];
  const auto see = [&](std::int64_t row, std::int64_t first, const S* values, std::int64_t count) {
    const auto slot = static_cast<std::size_t>(row % kBuffer);
    if constexpr (kWeights) {
      const S* weights = wide_span(static_cast<const T*>(labels) + row * n + first, buffer, count);
      distance[slot] = (first == 0 ? S{0} : distance[slot]) + weighted(weights, values, count);
      weight[slot] = (first == 0 ? S{0} : weight[slot]) + sum_row(weights, count);
    } else {
      const std::int64_t label = check_class(static_cast<const Label*>(labels)[row], row, n);
      if (label >= first && label < first + count) distance[slot] = values[label - first];
      weight[slot] = 1;
    }
  };
  const auto set_loss = [&](std::int64_t row, S sum) {
    const auto slot = static_cast<std::size_t>(row % kBuffer);
    loss[row] = T(weight[slot] * std::log(sum) - distance[slot]);
  };
  if (computes_in_itself<T> || n <= kBuffer) {
    exponential_rows(
        x, probabilities, n, begin, end, [&](std::int64_t row, const S* values) { see(row, 0, values, n); },
        [&](std::int64_t row, S* e, S sum) {
          set_loss(row, sum);
          store_scaled(e, e, probabilities + row * n, n, S{1} / sum);
        });
  } else {
    exponential_long_rows(x, n, begin, end, see,
                          [&](std::int64_t row, std::int64_t first, S* values, std::int64_t count, S sum) {
                            if (first == 0) set_loss(row, sum);
                            exp_span(values, values, count);
                            store_scaled(values, values, probabilities + row * n + first, count, S{1} / sum);
                          });
  }
}

template <class T, class Label>
void cross_entropy_grad(const T* probabilities, const void* labels, const T* g, std::int64_t n, T* out,
                        std::int64_t begin, std::int64_t end) {
  using S = Wide<T>;
  S buffer[kBlock], other[kBlock];
  for (std::int64_t row = begin; row < end; ++row) {
    const T* p = probabilities + row * n;
    T* to = out + row * n;
    const auto scale = static_cast<S>(g[row]);
    if constexpr (std::is_same_v<Label, bool>) {
      const T* weights = static_cast<const T*>(labels) + row * n;
      S total{0};
      for (std::int64_t i = 0; i < n; i += kBlock) {
        const std::int64_t count = std::min(kBlock, n - i);
        total += reduce_span<AddOp>(wide_span(weights + i, buffer, count), count);
      }
      for (std::int64_t i = 0; i < n; i += kBlock) {
        const std::int64_t count = std::min(kBlock, n - i);
        const S* w = wide_span(weights + i, buffer, count);
        map_span(wide_span(p + i, other, count), w, other, count,
                 [total](auto v, auto label) { return v * total - label; });
        store_scaled(other, other, to + i, count, scale);
      }
    } else {
      const std::int64_t label = check_class(static_cast<const Label*>(labels)[row], row, n);
      const S own = static_cast<S>(p[label]) - S{1};
      for (std::int64_t i = 0; i < n; i += kBlock) {
        const std::int64_t count = std::min(kBlock, n - i);
        store_scaled(wide_span(p + i, buffer, count), buffer, to + i, count, scale);
      }
      to[label] = T(own * scale);
    }
  }
}

}  // namespace

void softmax(DType dtype, bool log, const void* in, void* out, std::int64_t n, std::int64_t inner,
             std::int64_t begin, std::int64_t end) {
  visit_floating("softmax", dtype, [&]<class T>(T) {
    const auto* from = static_cast<const T*>(in);
    auto* to = static_cast<T*>(out);
    if (inner != 1) {
      softmax_columns(log, from, to, n, inner, begin, end);
    } else if (log) {
      log_softmax_rows(from, to, n, begin, end);
    } else {
      softmax_rows(from, to, n, begin, end);
    }
  });
}

void softmax_grad(DType dtype, const void* y, const void* g, void* out, std::int64_t n, std::int64_t inner,
                  std::int64_t begin, std::int64_t end) {
  visit_floating("softmax_grad", dtype, [&]<class T>(T) {
    using S = Wide<T>;
    const auto* ys = static_cast<const T*>(y);
    const auto* gs = static_cast<const T*>(g);
    auto* to = static_cast<T*>(out);
    S first[kBlock], second[kBlock];
    if (inner == 1) {
      for (std::int64_t row = begin; row < end; ++row) {
        S sum{0};
        for (std::int64_t i = row * n; i < (row + 1) * n; i += kBlock) {
          const std::int64_t count = std::min(kBlock, (row + 1) * n - i);
          sum += sum_products(wide_span(ys + i, first, count), wide_span(gs + i, second, count), count);
        }
        for (std::int64_t i = row * n; i < (row + 1) * n; i += kBlock) {
          const std::int64_t count = std::min(kBlock, (row + 1) * n - i);
          map_span(wide_span(ys + i, first, count), wide_span(gs + i, second, count), first, count,
                   [sum](auto a, auto b) { return a * (b - sum); });
          narrow_span(first, to + i, count);
        }
      }
      return;
    }
    for_each_columns(n, inner, begin, end, [&](std::int64_t offset, std::int64_t width) {
      S sum[kChunk];
      std::fill_n(sum, width, S{0});
      for (std::int64_t j = 0; j < n; ++j) {
        const std::int64_t at = offset + j * inner;
        map_span(wide_span(ys + at, first, width), wide_span(gs + at, second, width), first, width,
                 [](auto a, auto b) { return a * b; });
        fold_span<AddOp>(sum, first, width);
      }
      for (std::int64_t j = 0; j < n; ++j) {
        const std::int64_t at = offset + j * inner;
        map_span(wide_span(gs + at, second, width), sum, second, width, [](auto b, auto s) { return b - s; });
        map_span(wide_span(ys + at, first, width), second, first, width,
                 [](auto a, auto b) { return a * b; });
        narrow_span(first, to + at, width);
      }
    });
  });
}

void softmax_cross_entropy(DType dtype, const void* x, DType label_dtype, const void* labels, std::int64_t n,
                           void* loss, void* probabilities, std::int64_t begin, std::int64_t end) {
  visit_floating("softmax_cross_entropy", dtype, [&]<class T>(T) {
    visit_labels(dtype, label_dtype, [&]<class Label>(Label) {
      cross_entropy<T, Label>(static_cast<const T*>(x), labels, n, static_cast<T*>(loss),
                              static_cast<T*>(probabilities), begin, end);
    });
  });
}

void softmax_cross_entropy_grad(DType dtype, const void* probabilities, DType label_dtype, const void* labels,
                                const void* g, std::int64_t n, void* out, std::int64_t begin,
                                std::int64_t end) {
  visit_floating("softmax_cross_entropy_grad", dtype, [&]<class T>(T) {
    visit_labels(dtype, label_dtype, [&]<class Label>(Label) {
      cross_entropy_grad<T, Label>(static_cast<const T*>(probabilities), labels, static_cast<const T*>(g), n,
                                   static_cast<T*>(out), begin, end);
    });
  });
}

}  // namespace lockstep::kernels
