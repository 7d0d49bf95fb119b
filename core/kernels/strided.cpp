// core/kernels/strided.cpp - copies elements between two memory layouts.
#include "lockstep/core/kernels/strided.h"

#include <algorithm>
#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep::kernels {

namespace {

// Calls f with an unsigned integer of that many bytes.
template <class F>
void visit_size(std::size_t size, F&& f) {
  switch (size) {
    case 1: return f(std::uint8_t{});
    case 2: return f(std::uint16_t{});
    case 4: return f(std::uint32_t{});
    case 8: return f(std::uint64_t{});
    default: LOCKSTEP_CHECK(false, "elements of ", size, " bytes");
  }
}

template <class T>
void copy_row(const T* in, std::int64_t in_step, T* out, std::int64_t out_step, std::int64_t count) {
  if (in_step == 1 && out_step == 1) {
    std::memcpy(out, in, static_cast<std::size_t>(count) * sizeof(T));
  } else if (in_step == 0 && out_step == 1) {
    std::fill_n(out, count, *in);
  } else {
    for (std::int64_t i = 0; i < count; ++i) out[i * out_step] = in[i * in_step];
  }
}

// Bytes of a cache line; the side of the square that is transposed at once.
constexpr std::int64_t kLine = 64;
constexpr std::int64_t kTile = 4 * kLine;  // the side of a unit, which touches few pages of either side

// The N x N block whose rows are at in, in + in_step, ...: its columns go to out, out + out_step, ...
// Interleaving the first half of the rows with the second, as often as N can be halved, transposes them.
template <class T>
void transpose_block(const T* in, std::int64_t in_step, T* out, std::int64_t out_step) {
  constexpr std::size_t kN = 16 / sizeof(T);
  typedef T Row __attribute__((vector_size(16)));
  Row rows[kN], next[kN];
#pragma GCC unroll 16
  for (std::size_t i = 0; i < kN; ++i)
    std::memcpy(&rows[i], in + static_cast<std::int64_t>(i) * in_step, sizeof(Row));
#pragma GCC unroll 4
  for (std::size_t n = 1; n < kN; n *= 2) {
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kN / 2; ++i) {
      const Row a = rows[i], b = rows[i + kN / 2];
      if constexpr (kN == 2) {
        next[2 * i] = __builtin_shufflevector(a, b, 0, 2);
        next[2 * i + 1] = __builtin_shufflevector(a, b, 1, 3);
      } else if constexpr (kN == 4) {
        next[2 * i] = __builtin_shufflevector(a, b, 0, 4, 1, 5);
        next[2 * i + 1] = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      } else if constexpr (kN == 8) {
        next[2 * i] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
        next[2 * i + 1] = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
      } else {
        next[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        next[2 * i + 1] =
            __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
      }
    }
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kN; ++i) rows[i] = next[i];
  }
#pragma GCC unroll 16
  for (std::size_t i = 0; i < kN; ++i)
    std::memcpy(out + static_cast<std::int64_t>(i) * out_step, &rows[i], sizeof(Row));
}

// out[c * out_step + r] = in[r * in_step + c] for r < rows, c < columns.
template <class T>
void transpose_square(const T* in, std::int64_t in_step, T* out, std::int64_t out_step, std::int64_t rows,
                      std::int64_t columns) {
  constexpr auto kN = static_cast<std::int64_t>(16 / sizeof(T));
  constexpr auto kSide = kLine / static_cast<std::int64_t>(sizeof(T));
  if (rows == kSide && columns == kSide) {
    // Through a separate tile, so that each line of source and destination is touched once: if strides are
    // powers of two, few lines stay in the cache together.
    T tile[kSide * kSide];
    for (std::int64_t r = 0; r < kSide; r += kN) {
      for (std::int64_t c = 0; c < kSide; c += kN)
        transpose_block(in + r * in_step + c, in_step, tile + c * kSide + r, kSide);
    }
    for (std::int64_t c = 0; c < kSide; ++c) std::memcpy(out + c * out_step, tile + c * kSide, kLine);
    return;
  }
  const std::int64_t whole_rows = rows / kN * kN, whole_columns = columns / kN * kN;
  for (std::int64_t r = 0; r < whole_rows; r += kN) {
    for (std::int64_t c = 0; c < whole_columns; c += kN) {
      transpose_block(in + r * in_step + c, in_step, out + c * out_step + r, out_step);
    }
  }
  for (std::int64_t c = 0; c < columns; ++c) {
    for (std::int64_t r = c < whole_columns ? whole_rows : 0; r < rows; ++r)
      out[c * out_step + r] = in[r * in_step + c];
  }
}

template <class T>
void transpose_tile(const T* in, std::int64_t in_step, T* out, std::int64_t out_step, std::int64_t rows,
                    std::int64_t columns) {
  constexpr auto kSide = kLine / static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t c = 0; c < columns; c += kSide) {
    for (std::int64_t r = 0; r < rows; r += kSide) {
      transpose_square(in + r * in_step + c, in_step, out + c * out_step + r, out_step,
                       std::min(kSide, rows - r), std::min(kSide, columns - c));
    }
  }
}

std::int64_t tiles_along(std::int64_t extent, std::int64_t side) { return (extent + side - 1) / side; }

}  // namespace

std::vector<std::int64_t> dense_strides(const Shape& shape) {
  std::vector<std::int64_t> strides(shape.rank());
  std::int64_t stride = 1;
  for (std::size_t axis = shape.rank(); axis-- > 0;) {
    strides[axis] = stride;
    stride *= shape[axis];
  }
  return strides;
}

StridedCopy::StridedCopy(std::size_t element_size, std::span<const std::int64_t> extents,
                         std::span<const std::int64_t> in_strides, std::span<const std::int64_t> out_strides)
    : size_(element_size) {
  LOCKSTEP_CHECK(extents.size() == in_strides.size() && extents.size() == out_strides.size());
  for (std::size_t i = 0; i < extents.size(); ++i) {
    units_ *= extents[i];
    if (extents[i] == 1) continue;
    const Axis axis{extents[i], in_strides[i], out_strides[i]};
    // An axis that source and destination both walk as one with the axis around it is merged into that axis.
    if (!axes_.empty() && axes_.back().in_step == axis.in_step * axis.extent &&
        axes_.back().out_step == axis.out_step * axis.extent) {
      axes_.back() = {axes_.back().extent * axis.extent, axis.in_step, axis.out_step};
    } else {
      axes_.push_back(axis);
    }
  }
  if (axes_.empty()) axes_.push_back({1, 1, 1});
  if (units_ > 0) choose_tiles();
}

// Walking the source across its rows wastes most of each cache line it touches, unless whole tiles are
// transposed.
void StridedCopy::choose_tiles() {
  const std::int64_t side = kTile / static_cast<std::int64_t>(size_);
  const Axis last = axes_.back();
  if (last.out_step != 1 || last.in_step == 1 || last.in_step == 0 || last.extent < 4) return;
  const auto dense =
      std::ranges::find_if(axes_, [](const Axis& axis) { return axis.in_step == 1 && axis.extent >= 4; });
  if (dense == axes_.end()) return;
  const Axis other = *dense;
  axes_.erase(dense);
  axes_.insert(axes_.end() - 1, other);
  tiles_ = true;
  units_ = tiles_along(other.extent, side) * tiles_along(last.extent, side);
  for (std::size_t i = 0; i + 2 < axes_.size(); ++i) units_ *= axes_[i].extent;
}

void StridedCopy::run(const void* in, void* out, std::int64_t begin, std::int64_t end) const {
  LOCKSTEP_CHECK(0 <= begin && begin <= end && end <= units_, "StridedCopy: units [", begin, ", ", end,
                 ") of ", units_);
  if (begin == end) return;
  if (tiles_) {
    run_tiles(in, out, begin, end);
  } else {
    run_rows(in, out, begin, end);
  }
}

void StridedCopy::run_tiles(const void* in, void* out, std::int64_t begin, std::int64_t end) const {
  const std::int64_t side = kTile / static_cast<std::int64_t>(size_);
  const Axis columns = axes_[axes_.size() - 2], rows = axes_.back();  // of the source
  const std::int64_t across = tiles_along(rows.extent, side);
  const std::int64_t grid = tiles_along(columns.extent, side) * across;
  visit_size(size_, [&]<class T>(T) {
    for (std::int64_t at = begin; at < end;) {
      std::int64_t rest = at / grid;
      const T* source = static_cast<const T*>(in);
      T* target = static_cast<T*>(out);
      for (std::size_t i = axes_.size() - 2; i-- > 0;) {
        source += rest % axes_[i].extent * axes_[i].in_step;
        target += rest % axes_[i].extent * axes_[i].out_step;
        rest /= axes_[i].extent;
      }
      const std::int64_t stop = std::min(end, at - at % grid + grid);
      for (; at < stop; ++at) {
        const std::int64_t row = at % grid % across * side, column = at % grid / across * side;
        transpose_tile(source + row * rows.in_step + column, rows.in_step,
                       target + column * columns.out_step + row, columns.out_step,
                       std::min(side, rows.extent - row), std::min(side, columns.extent - column));
      }
    }
  });
}

void StridedCopy::run_rows(const void* in, void* out, std::int64_t begin, std::int64_t end) const {
  std::int64_t index[Shape::kMaxRank];
  const std::size_t last = axes_.size() - 1;
  std::int64_t rest = begin, from = 0, to = 0;
  for (std::size_t i = axes_.size(); i-- > 0;) {
    index[i] = rest % axes_[i].extent;
    rest /= axes_[i].extent;
    from += index[i] * axes_[i].in_step;
    to += index[i] * axes_[i].out_step;
  }
  visit_size(size_, [&]<class T>(T) {
    const T* source = static_cast<const T*>(in) + from;
    T* target = static_cast<T*>(out) + to;
    const Axis inner = axes_[last];
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t count = std::min(inner.extent - index[last], end - at);
      copy_row(source, inner.in_step, target, inner.out_step, count);
      at += count;
      if (at >= end) break;
      // To the start of the next row.
      source -= index[last] * inner.in_step;
      target -= index[last] * inner.out_step;
      index[last] = 0;
      for (std::size_t i = last; i-- > 0;) {
        source += axes_[i].in_step;
        target += axes_[i].out_step;
        if (++index[i] < axes_[i].extent) break;
        source -= axes_[i].extent * axes_[i].in_step;
        target -= axes_[i].extent * axes_[i].out_step;
        index[i] = 0;
      }
    }
  });
}

}  // namespace lockstep::kernels
