// core/kernels/layer_norm.cpp - rows brought to mean 0 and variance 1, scaled and shifted, on plain memory.
#include "lockstep/core/kernels/layer_norm.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "lockstep/core/error.h"
#include "lockstep/core/kernels/simd/internal/lanes.h"
#include "lockstep/core/kernels/simd/internal/span_math.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t kBlock = 1024;  // elements of a row per block

template <class F>
void visit_floating(DType dtype, F&& f) {
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (std::is_integral_v<T>) {
      throw InvalidArgument(str("layer_norm: takes floating values, got ", dtype));
    } else {
      f(T{});
    }
  });
}

// Calls f(first, count) for the blocks of a row.
template <class F>
void for_each_block(std::int64_t d, F&& f) {
  for (std::int64_t i = 0; i < d; i += kBlock) f(i, std::min(kBlock, d - i));
}

template <class T>
void normalise_rows(const T* x, const T* gamma, const T* beta, double epsilon, std::int64_t d, T* y,
                    Wide<T>* means, Wide<T>* rstds, std::int64_t begin, std::int64_t end) {
  using S = Wide<T>;
  S first[kBlock], second[kBlock], third[kBlock];
  for (std::int64_t row = begin; row < end; ++row) {
    const T* in = x + row * d;
    S sum{0}, squares{0};
    for_each_block(d, [&](std::int64_t i, std::int64_t count) {
      sum += reduce_span<AddOp>(wide_span(in + i, first, count), count);
    });
    const S mean = sum / static_cast<S>(d);
    for_each_block(d, [&](std::int64_t i, std::int64_t count) {
      const S* values = wide_span(in + i, first, count);
      squares += reduce_terms<AddOp>(values, values, count,
                                     [mean](auto v, auto) { return (v - mean) * (v - mean); });
    });
    const S rstd = S{1} / std::sqrt(squares / static_cast<S>(d) + static_cast<S>(epsilon));
    means[row] = mean;
    rstds[row] = rstd;
    for_each_block(d, [&](std::int64_t i, std::int64_t count) {
      S* to = first;
      if constexpr (std::is_same_v<T, S>) to = y + row * d + i;
      map_spans(
          to, count,
          [mean, rstd](auto v, auto scale, auto shift) { return (v - mean) * rstd * scale + shift; },
          wide_span(in + i, first, count), wide_span(gamma + i, second, count),
          wide_span(beta + i, third, count));
      if constexpr (!std::is_same_v<T, S>) from_f32(to, y + row * d + i, count);
    });
  }
}

template <class T>
void gradient_rows(const T* x, const T* gamma, const Wide<T>* means, const Wide<T>* rstds, const T* g,
                   std::int64_t d, T* dx, Wide<T>* partial, std::int64_t begin, std::int64_t end) {
  using S = Wide<T>;
  S* to_gamma = partial;
  S* to_beta = partial + d;
  std::fill_n(partial, 2 * d, S{0});
  S normal[kBlock], scaled[kBlock], buffer[kBlock];
  for (std::int64_t row = begin; row < end; ++row) {
    const S mean = means[row], rstd = rstds[row];
    const T* in = x + row * d;
    const T* flow = g + row * d;
    // normal = the normalised x, scaled = g * gamma
    const auto load = [&](std::int64_t i, std::int64_t count) {
      const S* values = wide_span(in + i, normal, count);
      map_span(values, values, normal, count, [mean, rstd](auto v, auto) { return (v - mean) * rstd; });
      map_span(wide_span(flow + i, scaled, count), wide_span(gamma + i, buffer, count), scaled, count,
               [](auto a, auto b) { return a * b; });
    };
    S total{0}, slope{0};
    for_each_block(d, [&](std::int64_t i, std::int64_t count) {
      load(i, count);
      total += reduce_span<AddOp>(scaled, count);
      slope += reduce_terms<AddOp>(scaled, normal, count, [](auto a, auto b) { return a * b; });
    });
    total /= static_cast<S>(d);
    slope /= static_cast<S>(d);
    for_each_block(d, [&](std::int64_t i, std::int64_t count) {
      if (d > kBlock) load(i, count);
      const S* flows = wide_span(flow + i, buffer, count);
      fold_span<AddOp>(to_beta + i, flows, count);
      map_spans(
          to_gamma + i, count, [](auto sum, auto a, auto n) { return sum + a * n; }, to_gamma + i, flows,
          normal);
      S* to = scaled;
      if constexpr (std::is_same_v<T, S>) to = dx + row * d + i;
      map_spans(
          to, count, [=](auto a, auto n) { return (a - total - n * slope) * rstd; }, scaled, normal);
      if constexpr (!std::is_same_v<T, S>) from_f32(to, dx + row * d + i, count);
    });
  }
}

}  // namespace

void layer_norm(DType dtype, const void* x, const void* gamma, const void* beta, double epsilon,
                std::int64_t d, void* y, void* mean, void* rstd, std::int64_t begin, std::int64_t end) {
  visit_floating(dtype, [&]<class T>(T) {
    normalise_rows(static_cast<const T*>(x), static_cast<const T*>(gamma), static_cast<const T*>(beta),
                   epsilon, d, static_cast<T*>(y), static_cast<Wide<T>*>(mean), static_cast<Wide<T>*>(rstd),
                   begin, end);
  });
}

void layer_norm_grad(DType dtype, const void* x, const void* gamma, const void* mean, const void* rstd,
                     const void* g, std::int64_t d, void* dx, void* partial, std::int64_t begin,
                     std::int64_t end) {
  visit_floating(dtype, [&]<class T>(T) {
    gradient_rows(static_cast<const T*>(x), static_cast<const T*>(gamma), static_cast<const Wide<T>*>(mean),
                  static_cast<const Wide<T>*>(rstd), static_cast<const T*>(g), d, static_cast<T*>(dx),
                  static_cast<Wide<T>*>(partial), begin, end);
  });
}

void layer_norm_join(DType dtype, const void* partials, std::int64_t count, std::int64_t d, void* dgamma,
                     void* dbeta) {
  visit_floating(dtype, [&]<class T>(T) {
    using S = Wide<T>;
    const auto stride = static_cast<std::int64_t>(layer_norm_partial_bytes(d) / sizeof(S));
    S sums[kBlock];
    for (T* to : {static_cast<T*>(dgamma), static_cast<T*>(dbeta)}) {
      const S* from = static_cast<const S*>(partials) + (to == dgamma ? 0 : d);
      for_each_block(d, [&](std::int64_t i, std::int64_t width) {
        std::fill_n(sums, width, S{0});
        fold_rows<AddOp>(sums, from + i, stride, count, width);
        narrow_span(sums, to + i, width);
      });
    }
  });
}

}  // namespace lockstep::kernels
