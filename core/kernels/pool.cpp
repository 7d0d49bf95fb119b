// core/kernels/pool.cpp - maxima and averages over windows of images, on plain memory.
#include "lockstep/core/kernels/pool.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <vector>

#include "lockstep/core/error.h"

namespace lockstep::kernels {
namespace {

// The type in which elements are compared and added.
template <class T>
using Compute = std::conditional_t<std::is_same_v<T, F16> || std::is_same_v<T, BF16>, float, T>;

constexpr std::int64_t kChannels = 64;  // looked at together: loops over them become vector instructions

// One window: the part of it that lies inside the image, and its offset in x, in elements.
struct Place {
  const PoolShape& s;
  std::int64_t row, column;          // of the output
  std::int64_t first_row, last_row;  // of the window, inside
  std::int64_t first_column, last_column;
  std::int64_t corner;  // offset of its element (0, 0), which may be padding

  Place(const PoolShape& shape, std::int64_t out_row, std::int64_t out_column)
      : s(shape), row(out_row), column(out_column) {
    const std::int64_t image = row / s.rows.out, y = row % s.rows.out;
    first_row = s.rows.first(y);
    last_row = s.rows.last(y);
    first_column = s.columns.first(column);
    last_column = s.columns.last(column);
    corner = ((image * s.rows.in + s.rows.start(y)) * s.columns.in + s.columns.start(column)) * s.channels;
  }
  std::int64_t count() const { return (last_row - first_row) * (last_column - first_column); }
  std::int64_t output() const { return (row * s.columns.out + column) * s.channels; }
  // f(offset) for each element, row by row.
  template <class F>
  void each(const F& f) const {
    for (std::int64_t i = first_row; i < last_row; ++i) {
      for (std::int64_t j = first_column; j < last_column; ++j)
        f(corner + (i * s.columns.in + j) * s.channels);
    }
  }
};

template <class F>
void each_window(const PoolShape& s, std::int64_t begin_row, std::int64_t end_row, const F& f) {
  for (std::int64_t row = begin_row; row < end_row; ++row) {
    for (std::int64_t column = 0; column < s.columns.out; ++column) f(Place(s, row, column));
  }
}

// f(first channel, number of channels), piece by piece.
template <class F>
void each_piece(std::int64_t channels, const F& f) {
  for (std::int64_t c = 0; c < channels; c += kChannels) f(c, std::min(kChannels, channels - c));
}

template <class C>
bool larger(C value, C best) {
  if constexpr (std::is_floating_point_v<C>) {
    return value > best || (value != value && best == best);
  } else {
    return value > best;
  }
}

// The first largest elements of a window, and where they are.
template <class T>
struct Maxima {
  std::array<Compute<T>, kChannels> value;
  std::array<std::int64_t, kChannels> where;

  void find(const Place& place, const T* x, std::int64_t channel, std::int64_t count) {
    bool first = true;
    place.each([&](std::int64_t offset) {
      const T* from = x + offset + channel;
      for (std::int64_t c = 0; c < count; ++c) {
        const auto at = static_cast<std::size_t>(c);
        const auto element = static_cast<Compute<T>>(from[c]);
        const bool better = first || larger(element, value[at]);
        value[at] = better ? element : value[at];
        where[at] = better ? offset + channel + c : where[at];
      }
      first = false;
    });
  }
};

// Sums for one image after another: `add(image, sums, start)` adds to zeros, which then become the elements
// of dx from `start` on.
template <class T, class Add>
void each_image(const PoolShape& s, T* dx, std::int64_t begin_image, std::int64_t end_image, const Add& add) {
  using C = Compute<T>;
  const std::int64_t size = s.rows.in * s.columns.in * s.channels;
  for (std::int64_t image = begin_image; image < end_image; ++image) {
    T* to = dx + image * size;
    if constexpr (std::is_same_v<T, C>) {
      std::fill_n(to, size, T{});
      add(image, to, image * size);
    } else {
      thread_local std::vector<C> sums;
      sums.assign(static_cast<std::size_t>(size), C{0});
      add(image, sums.data(), image * size);
      for (std::int64_t i = 0; i < size; ++i) to[i] = T(sums[static_cast<std::size_t>(i)]);
    }
  }
}

template <class F>
void visit_floating(const char* what, DType dtype, const F& f) {
  if (!is_floating(dtype)) throw InvalidArgument(str(what, ": expected a floating dtype, got ", dtype));
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (is_floating(dtype_of<T>)) f(T{});
  });
}

}  // namespace

void max_pool(DType dtype, const PoolShape& shape, const void* x, void* y, std::int64_t begin_row,
              std::int64_t end_row) {
  if (dtype == DType::kBool) throw InvalidArgument("max_pool: bool has no order: convert to another dtype");
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, bool>) {
      std::array<Compute<T>, kChannels> best{};
      each_window(shape, begin_row, end_row, [&](const Place& place) {
        T* to = static_cast<T*>(y) + place.output();
        each_piece(shape.channels, [&](std::int64_t channel, std::int64_t count) {
          bool first = true;
          place.each([&](std::int64_t offset) {
            const T* from = static_cast<const T*>(x) + offset + channel;
            for (std::int64_t c = 0; c < count; ++c) {
              const auto at = static_cast<std::size_t>(c);
              const auto element = static_cast<Compute<T>>(from[c]);
              best[at] = first || larger(element, best[at]) ? element : best[at];
            }
            first = false;
          });
          for (std::int64_t c = 0; c < count; ++c) to[channel + c] = T(best[static_cast<std::size_t>(c)]);
        });
      });
    }
  });
}

void max_pool_pick(DType dtype, const PoolShape& shape, const void* x, const void* u, void* y,
                   std::int64_t begin_row, std::int64_t end_row) {
  visit_floating("max_pool_pick", dtype, [&]<class T>(T) {
    Maxima<T> maxima{};
    each_window(shape, begin_row, end_row, [&](const Place& place) {
      T* to = static_cast<T*>(y) + place.output();
      each_piece(shape.channels, [&](std::int64_t channel, std::int64_t count) {
        maxima.find(place, static_cast<const T*>(x), channel, count);
        for (std::int64_t c = 0; c < count; ++c)
          to[channel + c] = static_cast<const T*>(u)[maxima.where[static_cast<std::size_t>(c)]];
      });
    });
  });
}

void max_pool_backward(DType dtype, const PoolShape& shape, const void* x, const void* g, void* dx,
                       std::int64_t begin_image, std::int64_t end_image) {
  visit_floating("max_pool_backward", dtype, [&]<class T>(T) {
    using C = Compute<T>;
    Maxima<T> maxima{};
    each_image(
        shape, static_cast<T*>(dx), begin_image, end_image,
        [&](std::int64_t image, C* sums, std::int64_t start) {
          each_window(shape, image * shape.rows.out, (image + 1) * shape.rows.out, [&](const Place& place) {
            const T* from = static_cast<const T*>(g) + place.output();
            each_piece(shape.channels, [&](std::int64_t channel, std::int64_t count) {
              maxima.find(place, static_cast<const T*>(x), channel, count);
              for (std::int64_t c = 0; c < count; ++c)
                sums[maxima.where[static_cast<std::size_t>(c)] - start] += static_cast<C>(from[channel + c]);
            });
          });
        });
  });
}

void avg_pool(DType dtype, const PoolShape& shape, const void* x, void* y, std::int64_t begin_row,
              std::int64_t end_row) {
  visit_floating("avg_pool", dtype, [&]<class T>(T) {
    using C = Compute<T>;
    std::array<C, kChannels> sums{};
    each_window(shape, begin_row, end_row, [&](const Place& place) {
      T* to = static_cast<T*>(y) + place.output();
      const C number = static_cast<C>(place.count());
      each_piece(shape.channels, [&](std::int64_t channel, std::int64_t count) {
        sums.fill(C{0});
        place.each([&](std::int64_t offset) {
          const T* from = static_cast<const T*>(x) + offset + channel;
          for (std::int64_t c = 0; c < count; ++c)
            sums[static_cast<std::size_t>(c)] += static_cast<C>(from[c]);
        });
        for (std::int64_t c = 0; c < count; ++c)
          to[channel + c] = T(sums[static_cast<std::size_t>(c)] / number);
      });
    });
  });
}

void avg_pool_backward(DType dtype, const PoolShape& shape, const void* g, void* dx, std::int64_t begin_image,
                       std::int64_t end_image) {
  visit_floating("avg_pool_backward", dtype, [&]<class T>(T) {
    using C = Compute<T>;
    std::array<C, kChannels> share{};
    each_image(shape, static_cast<T*>(dx), begin_image, end_image,
               [&](std::int64_t image, C* sums, std::int64_t start) {
                 each_window(
                     shape, image * shape.rows.out, (image + 1) * shape.rows.out, [&](const Place& place) {
                       const T* from = static_cast<const T*>(g) + place.output();
                       const C number = static_cast<C>(place.count());
                       each_piece(shape.channels, [&](std::int64_t channel, std::int64_t count) {
                         for (std::int64_t c = 0; c < count; ++c)
                           share[static_cast<std::size_t>(c)] = static_cast<C>(from[channel + c]) / number;
                         place.each([&](std::int64_t offset) {
                           C* to = sums + (offset - start + channel);
                           for (std::int64_t c = 0; c < count; ++c)
                             to[c] += share[static_cast<std::size_t>(c)];
                         });
                       });
                     });
               });
  });
}

}  // namespace lockstep::kernels
