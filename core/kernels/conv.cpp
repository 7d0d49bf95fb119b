// core/kernels/conv.cpp - convolution of images and its two derivatives, on plain memory.
#include "lockstep/core/kernels/conv.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "lockstep/core/error.h"

namespace lockstep::kernels {
namespace {

template <class T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

constexpr double kShard = 200e-6;  // seconds

// Memory of the calling thread that stays for the next call.
template <class T, int kWhich>
T* thread_buffer(std::int64_t elements) {
  thread_local std::vector<T> buffer;
  if (buffer.size() < static_cast<std::size_t>(elements)) buffer.resize(static_cast<std::size_t>(elements));
  return buffer.data();
}

template <class From, class To>
void convert(const From* from, std::int64_t count, To* to) {
  if constexpr (std::is_same_v<From, To>) {
    if (count > 32) {
      std::copy_n(from, count, to);
    } else {  // faster than a call
      for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
    }
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i] = To(static_cast<float>(from[i]));
  }
}

// The elements as numbers to compute with: as they are, or converted into a buffer of the thread.
template <int kWhich, class T>
const Compute<T>* computable(const T* from, std::int64_t count) {
  if constexpr (std::is_same_v<T, Compute<T>>) {
    return from;
  } else {
    auto* buffer = thread_buffer<Compute<T>, kWhich>(count);
    convert(from, count, buffer);
    return buffer;
  }
}

bool is_plain(const ConvShape& s) {
  const auto one_to_one = [](const WindowAxis& axis) {
    return axis.size == 1 && axis.stride == 1 && axis.before == 0 && axis.in == axis.out;
  };
  return s.groups == 1 && one_to_one(s.rows) && one_to_one(s.columns);
}

std::int64_t pixels(const ConvShape& s) { return s.out_rows() * s.columns.out; }

bool is_depthwise(const ConvShape& s) { return s.groups > 1 && s.group_in() == 1 && s.group_out() == 1; }

// Output rows of one product: enough for BLAS to run well, few enough for the windows to stay in the cache.
std::int64_t rows_of_block(const ConvShape& s) {
  constexpr std::int64_t kElements = 128 << 10, kPixels = 128;
  const std::int64_t elements = is_depthwise(s) ? s.window() * s.groups : s.window();
  const std::int64_t wanted = std::max(kPixels, kElements / std::max<std::int64_t>(elements, 1));
  const std::int64_t columns = std::max<std::int64_t>(s.columns.out, 1);
  return std::clamp<std::int64_t>((wanted + columns / 2) / columns, 1,
                                  std::max<std::int64_t>(s.out_rows(), 1));
}

std::int64_t shards_by_time(double seconds, std::int64_t most) {
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(std::llround(seconds / kShard)), 1,
                                  std::max<std::int64_t>(most, 1));
}

// Windows as rows of a matrix: for each output element of the rows [begin, end), the part of its window in
// the filter's rows [filter_begin, filter_end), for one group. `visit` is called for pieces that are
// contiguous in both:
//   visit(offset in x, or -1 for padding; count; offset in the matrix)
template <class Visit>
void each_piece(const ConvShape& s, std::int64_t group, std::int64_t begin, std::int64_t end,
                std::int64_t filter_begin, std::int64_t filter_end, const Visit& visit) {
  const std::int64_t channels = s.group_in();
  const bool joined = s.groups == 1 && s.columns.dilation == 1;  // a row of a window is one piece
  std::int64_t to = 0;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t image = row / s.rows.out, y = row % s.rows.out;
    for (std::int64_t x = 0; x < s.columns.out; ++x) {
      const std::int64_t from = s.columns.start(x);
      const std::int64_t first = s.columns.first(x), last = std::max(first, s.columns.last(x));
      for (std::int64_t i = filter_begin; i < filter_end; ++i, to += s.columns.size * channels) {
        const std::int64_t at = s.rows.start(y) + i * s.rows.dilation;
        if (at < 0 || at >= s.rows.in) {
          visit(-1, s.columns.size * channels, to);
          continue;
        }
        const std::int64_t line =
            ((image * s.rows.in + at) * s.columns.in) * s.in_channels + group * channels;
        if (first > 0) visit(-1, first * channels, to);
        if (joined) {
          visit(line + (from + first) * channels, (last - first) * channels, to + first * channels);
        } else {
          for (std::int64_t j = first; j < last; ++j)
            visit(line + (from + j * s.columns.dilation) * s.in_channels, channels, to + j * channels);
        }
        if (last < s.columns.size) visit(-1, (s.columns.size - last) * channels, to + last * channels);
      }
    }
  }
}

template <class T>
Compute<T>* gather_windows(const ConvShape& s, std::int64_t group, std::int64_t begin, std::int64_t end,
                           std::int64_t filter_begin, std::int64_t filter_end, const T* x) {
  const std::int64_t window = (filter_end - filter_begin) * s.columns.size * s.group_in();
  auto* matrix = thread_buffer<Compute<T>, 0>((end - begin) * s.columns.out * window);
  each_piece(s, group, begin, end, filter_begin, filter_end,
             [=](std::int64_t from, std::int64_t count, std::int64_t to) {
               if (from < 0) {
                 std::fill_n(matrix + to, count, Compute<T>{0});
               } else {
                 convert(x + from, count, matrix + to);
               }
             });
  return matrix;
}

// For a depthwise convolution: f(offset in x, offset in w, offset in y) for each element of each window of
// the output rows [begin, end). All channels follow at these offsets.
template <class F>
void each_tap(const ConvShape& s, std::int64_t begin, std::int64_t end, const F& f) {
  const std::int64_t channels = s.in_channels;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t image = row / s.rows.out, y = row % s.rows.out;
    for (std::int64_t i = s.rows.first(y); i < s.rows.last(y); ++i) {
      const std::int64_t line = (image * s.rows.in + s.rows.start(y) + i * s.rows.dilation) * s.columns.in;
      for (std::int64_t x = 0; x < s.columns.out; ++x) {
        for (std::int64_t j = s.columns.first(x); j < s.columns.last(x); ++j) {
          f((line + s.columns.start(x) + j * s.columns.dilation) * channels,
            (i * s.columns.size + j) * channels, (row * s.columns.out + x) * channels);
        }
      }
    }
  }
}

// to[i] += a[i] * b[i]
template <class C, class A, class B>
void add_products(std::int64_t count, const A* a, const B* b, C* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] += static_cast<C>(a[i]) * static_cast<C>(b[i]);
}

template <class F>
void visit_floating(DType dtype, const F& f) {
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (is_floating(dtype_of<T>)) f(T{});
  });
}

void check_dtype(DType dtype) {
  if (!is_floating(dtype)) throw InvalidArgument(str("conv: expected a floating dtype, got ", dtype));
}

}  // namespace

double ConvShape::multiplications() const {
  return static_cast<double>(out_rows() * columns.out) * static_cast<double>(window()) *
         static_cast<double>(out_channels);
}

double ConvShape::seconds(DType dtype) const {
  const double wide = dtype == DType::kF64 ? 2 : 1;
  const double elements = static_cast<double>(pixels(*this)) * static_cast<double>(window() * groups);
  if (is_depthwise(*this)) return wide * 0.3e-9 * elements;
  const double narrow = std::max(1.0, 24.0 / static_cast<double>(std::max<std::int64_t>(group_out(), 1)));
  return wide * (multiplications() * narrow / 28e9 + (is_plain(*this) ? 0 : 0.3e-9 * elements));
}

// --- forward

ConvForward::ConvForward(DType dtype, const ConvShape& shape) : dtype_(dtype), shape_(shape) {
  check_dtype(dtype);
  if (is_plain(shape)) {
    plain_.emplace(dtype, false, false, pixels(shape), shape.out_channels, shape.in_channels);
    shards_ = plain_->count();
    return;
  }
  block_ = rows_of_block(shape);
  shards_ = shards_by_time(shape.seconds(dtype), (shape.out_rows() + block_ - 1) / block_);
}

void ConvForward::compute(std::int64_t shard, const void* x, const void* w, void* y, void* scratch) const {
  if (plain_) {
    plain_->compute(shard, x, w, y, scratch);
    return;
  }
  visit_floating(dtype_, [&]<class T>(T) {
    using C = Compute<T>;
    const ConvShape& s = shape_;
    const C* filter = computable<1>(static_cast<const T*>(w), s.window() * s.out_channels);
    const std::int64_t blocks = (s.out_rows() + block_ - 1) / block_;
    for (std::int64_t b = blocks * shard / shards_; b < blocks * (shard + 1) / shards_; ++b) {
      const std::int64_t begin = b * block_, end = std::min(s.out_rows(), begin + block_);
      const std::int64_t m = (end - begin) * s.columns.out;
      T* to = static_cast<T*>(y) + begin * s.columns.out * s.out_channels;
      C* sums = nullptr;
      if constexpr (std::is_same_v<T, C>) {
        sums = to;
      } else {
        sums = thread_buffer<C, 2>(m * s.out_channels);
      }
      if (is_depthwise(s)) {
        const std::int64_t start = begin * s.columns.out * s.out_channels;
        std::fill_n(sums, m * s.out_channels, C{0});
        each_tap(s, begin, end, [&](std::int64_t from, std::int64_t tap, std::int64_t at) {
          add_products(s.in_channels, static_cast<const T*>(x) + from, filter + tap, sums + (at - start));
        });
      }
      for (std::int64_t group = 0; group < s.groups && !is_depthwise(s); ++group) {
        const C* windows = gather_windows(s, group, begin, end, 0, s.rows.size, static_cast<const T*>(x));
        gemm(dtype_of<C>, false, false, m, s.group_out(), s.window(), windows, s.window(),
             filter + group * s.group_out(), s.out_channels, sums + group * s.group_out(), s.out_channels);
      }
      if constexpr (!std::is_same_v<T, C>) convert(sums, m * s.out_channels, to);
    }
  });
}

void ConvForward::finish(void* y, const void* scratch) const {
  if (plain_) plain_->finish(y, scratch);
}

// --- backward, input

ConvBackwardInput::ConvBackwardInput(DType dtype, const ConvShape& shape) : dtype_(dtype), shape_(shape) {
  check_dtype(dtype);
  if (is_plain(shape)) {
    plain_.emplace(dtype, false, true, pixels(shape), shape.in_channels, shape.out_channels);
    shards_ = plain_->count();
    return;
  }
  block_ = std::min(rows_of_block(shape), std::max<std::int64_t>(shape.rows.out, 1));
  shards_ = shards_by_time(shape.seconds(dtype), shape.images);
}

// Image by image: windows overlap, and their contributions are added in the order of the output's rows.
void ConvBackwardInput::compute(std::int64_t shard, const void* g, const void* w, void* dx,
                                void* scratch) const {
  if (plain_) {
    plain_->compute(shard, g, w, dx, scratch);
    return;
  }
  visit_floating(dtype_, [&]<class T>(T) {
    using C = Compute<T>;
    const ConvShape& s = shape_;
    const std::int64_t size = s.rows.in * s.columns.in * s.in_channels;
    const C* filter = computable<1>(static_cast<const T*>(w), s.window() * s.out_channels);
    for (std::int64_t image = s.images * shard / shards_; image < s.images * (shard + 1) / shards_; ++image) {
      T* to = static_cast<T*>(dx) + image * size;
      C* sums = nullptr;
      if constexpr (std::is_same_v<T, C>) {
        sums = to;
      } else {
        sums = thread_buffer<C, 2>(size);
      }
      std::fill_n(sums, size, C{0});
      if (is_depthwise(s)) {
        each_tap(s, image * s.rows.out, (image + 1) * s.rows.out,
                 [&](std::int64_t at, std::int64_t tap, std::int64_t from) {
                   add_products(s.in_channels, static_cast<const T*>(g) + from, filter + tap,
                                sums + (at - image * size));
                 });
      }
      for (std::int64_t y = 0; y < s.rows.out && !is_depthwise(s); y += block_) {
        const std::int64_t begin = image * s.rows.out + y;
        const std::int64_t end = image * s.rows.out + std::min(s.rows.out, y + block_);
        const std::int64_t m = (end - begin) * s.columns.out;
        const C* flow = computable<3>(static_cast<const T*>(g) + begin * s.columns.out * s.out_channels,
                                      m * s.out_channels);
        C* windows = thread_buffer<C, 0>(m * s.window());
        for (std::int64_t group = 0; group < s.groups; ++group) {
          gemm(dtype_of<C>, false, true, m, s.window(), s.group_out(), flow + group * s.group_out(),
               s.out_channels, filter + group * s.group_out(), s.out_channels, windows, s.window());
          each_piece(s, group, begin, end, 0, s.rows.size,
                     [=](std::int64_t at, std::int64_t count, std::int64_t from) {
                       if (at < 0) return;
                       C* add_to = sums + (at - image * size);
                       for (std::int64_t i = 0; i < count; ++i) add_to[i] += windows[from + i];
                     });
        }
      }
      if constexpr (!std::is_same_v<T, C>) convert(sums, size, to);
    }
  });
}

void ConvBackwardInput::finish(void* dx, const void* scratch) const {
  if (plain_) plain_->finish(dx, scratch);
}

// --- backward, filter

ConvBackwardFilter::ConvBackwardFilter(DType dtype, const ConvShape& shape) : dtype_(dtype), shape_(shape) {
  constexpr std::int64_t kScratch = 32 << 20, kParts = 8, kSlice = 64;
  check_dtype(dtype);
  if (is_plain(shape)) {
    plain_.emplace(dtype, true, false, shape.in_channels, shape.out_channels, pixels(shape));
    return;
  }
  block_ = rows_of_block(shape);
  if (shape.columns.size * shape.group_in() >= kSlice && !is_depthwise(shape)) slices_ = shape.rows.size;
  const std::int64_t blocks = (shape.out_rows() + block_ - 1) / block_;
  const std::int64_t bytes = std::max<std::int64_t>(filter_size(), 1) * 8;
  const std::int64_t most = std::min({blocks, kParts, std::max<std::int64_t>(kScratch / bytes, 1)});
  parts_ = shards_by_time(shape.seconds(dtype) / static_cast<double>(slices_), most);
}

std::size_t ConvBackwardFilter::scratch_bytes() const {
  if (plain_) return plain_->scratch_bytes();
  return static_cast<std::size_t>(parts_ * filter_size()) * (dtype_ == DType::kF64 ? 8 : 4);
}

void ConvBackwardFilter::compute(std::int64_t shard, const void* x, const void* g, void* dw,
                                 void* scratch) const {
  if (plain_) {
    plain_->compute(shard, x, g, dw, scratch);
    return;
  }
  visit_floating(dtype_, [&]<class T>(T) {
    using C = Compute<T>;
    const ConvShape& s = shape_;
    const std::int64_t part = shard / slices_, slice = shard % slices_;
    const std::int64_t filter_begin = s.rows.size * slice / slices_;
    const std::int64_t filter_end = s.rows.size * (slice + 1) / slices_;
    const std::int64_t line = s.columns.size * s.group_in();  // of one filter row
    const std::int64_t window = (filter_end - filter_begin) * line;
    C* sums = static_cast<C*>(scratch) + part * filter_size() + filter_begin * line * s.out_channels;
    const std::int64_t blocks = (s.out_rows() + block_ - 1) / block_;
    const std::int64_t first = blocks * part / parts_, last = blocks * (part + 1) / parts_;
    if (first == last) std::fill_n(sums, window * s.out_channels, C{0});
    if (is_depthwise(s)) {  // one slice
      std::fill_n(sums, window * s.out_channels, C{0});
      each_tap(s, first * block_, std::min(s.out_rows(), last * block_),
               [&](std::int64_t from, std::int64_t tap, std::int64_t at) {
                 add_products(s.in_channels, static_cast<const T*>(x) + from, static_cast<const T*>(g) + at,
                              sums + tap);
               });
      return;
    }
    for (std::int64_t b = first; b < last; ++b) {
      const std::int64_t begin = b * block_, end = std::min(s.out_rows(), begin + block_);
      const std::int64_t m = (end - begin) * s.columns.out;
      const C* flow = computable<3>(static_cast<const T*>(g) + begin * s.columns.out * s.out_channels,
                                    m * s.out_channels);
      for (std::int64_t group = 0; group < s.groups; ++group) {
        const C* windows =
            gather_windows(s, group, begin, end, filter_begin, filter_end, static_cast<const T*>(x));
        gemm(dtype_of<C>, true, false, window, s.group_out(), m, windows, window,
             flow + group * s.group_out(), s.out_channels, sums + group * s.group_out(), s.out_channels,
             b > first);
      }
    }
  });
}

void ConvBackwardFilter::finish(void* dw, const void* scratch) const {
  if (plain_) {
    plain_->finish(dw, scratch);
    return;
  }
  visit_floating(dtype_, [&]<class T>(T) {
    using C = Compute<T>;
    const auto* parts = static_cast<const C*>(scratch);
    const std::int64_t size = filter_size();
    constexpr std::int64_t kChunk = 256;
    for (std::int64_t at = 0; at < size; at += kChunk) {
      const std::int64_t count = std::min(kChunk, size - at);
      C sums[kChunk];
      std::copy_n(parts + at, count, sums);
      for (std::int64_t part = 1; part < parts_; ++part) {
        const C* more = parts + part * size + at;
        for (std::int64_t i = 0; i < count; ++i) sums[i] += more[i];
      }
      convert(sums, count, static_cast<T*>(dw) + at);
    }
  });
}

}  // namespace lockstep::kernels
