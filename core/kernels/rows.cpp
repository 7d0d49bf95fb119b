// core/kernels/rows.cpp - picks and places rows by index.
#include "lockstep/core/kernels/rows.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "lockstep/core/error.h"

namespace lockstep::kernels {

namespace {

template <class F>
void visit_indices(const Indices& indices, F&& f) {
  if (indices.dtype == DType::kI32) return f(static_cast<const std::int32_t*>(indices.data));
  LOCKSTEP_CHECK(indices.dtype == DType::kI64, "indices of ", indices.dtype);
  f(static_cast<const std::int64_t*>(indices.data));
}

[[noreturn]] void refuse(std::int64_t position, std::int64_t value, std::int64_t rows) {
  throw RefusedData(str("index ", value, " at position ", position, " is outside of [0, ", rows,
                        "), the extent of the axis; negative indices do not count from the end"),
                    position);
}

void check_all(const Indices& indices, std::int64_t rows) {
  visit_indices(indices, [&](const auto* index) {
    for (std::int64_t i = 0; i < indices.count; ++i) {
      const auto row = static_cast<std::int64_t>(index[i]);
      if (row < 0 || row >= rows) refuse(i, row, rows);
    }
  });
}

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, F16> || std::is_same_v<T, BF16>;

// The type in which T is added up.
template <class T>
using Sum = std::conditional_t<kIsHalf<T>, float, T>;

template <class T>
void add_row(const T* from, Sum<T>* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_integral_v<T>) {
      using Wrapping = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
      to[i] = static_cast<T>(static_cast<Wrapping>(to[i]) + static_cast<Wrapping>(from[i]));
    } else {
      to[i] += static_cast<Sum<T>>(from[i]);
    }
  }
}

}  // namespace

void gather_rows(std::size_t element_size, const void* in, const RowsShape& shape, const Indices& indices,
                 void* out, std::int64_t begin, std::int64_t end) {
  if (shape.outer == 0 || shape.inner == 0) return check_all(indices, shape.rows);
  if (begin >= end) return;
  const auto size = static_cast<std::int64_t>(element_size);
  const auto* source = static_cast<const char*>(in);
  auto* target = static_cast<char*>(out) + begin * size;
  visit_indices(indices, [&](const auto* index) {
    std::int64_t row = begin / shape.inner;  // of the output
    std::int64_t column = begin % shape.inner;
    std::int64_t outer = row / indices.count;
    std::int64_t position = row % indices.count;
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t count = std::min(shape.inner - column, end - at);
      const auto picked = static_cast<std::int64_t>(index[position]);
      if (picked < 0 || picked >= shape.rows) refuse(position, picked, shape.rows);
      const std::int64_t from = (outer * shape.rows + picked) * shape.inner + column;
      std::memcpy(target, source + from * size, static_cast<std::size_t>(count * size));
      target += count * size;
      at += count;
      column = 0;
      if (++position == indices.count) {
        position = 0;
        ++outer;
      }
    }
  });
}

void scatter_add_rows(DType dtype, const Indices& indices, const void* values, const RowsShape& shape,
                      void* out, float* sums, std::int64_t begin, std::int64_t end) {
  if (dtype == DType::kBool)
    throw InvalidArgument("scatter_add: bool has no sum: convert to another dtype first");
  LOCKSTEP_CHECK(shape.outer == 1, "scatter_add_rows works along the first axis");
  if (shape.rows == 0 || shape.inner == 0) return check_all(indices, shape.rows);
  if (begin >= end) return;
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, bool>) {
      Sum<T>* total = nullptr;
      if constexpr (kIsHalf<T>) {
        LOCKSTEP_CHECK(sums != nullptr, "scatter_add_rows of ", dtype, " needs room for its sums");
        total = sums;
      } else {
        total = static_cast<T*>(out);
      }
      std::fill(total + begin, total + end, Sum<T>{});
      visit_indices(indices, [&](const auto* index) {
        for (std::int64_t i = 0; i < indices.count; ++i) {
          const auto row = static_cast<std::int64_t>(index[i]);
          if (row < 0 || row >= shape.rows) refuse(i, row, shape.rows);
          const std::int64_t first = std::max(begin, row * shape.inner);
          const std::int64_t last = std::min(end, (row + 1) * shape.inner);
          if (first >= last) continue;
          const T* from = static_cast<const T*>(values) + i * shape.inner + (first - row * shape.inner);
          add_row(from, total + first, last - first);
        }
      });
      if constexpr (kIsHalf<T>) {
        auto* result = static_cast<T*>(out);
        for (std::int64_t i = begin; i < end; ++i) result[i] = T(total[i]);
      }
    }
  });
}

void one_hot_rows(DType dtype, const Indices& indices, std::int64_t depth, void* out, std::int64_t begin,
                  std::int64_t end) {
  visit_dtype(dtype, [&]<class T>(T) {
    T one{};
    if constexpr (kIsHalf<T>) {
      one = T(1.0F);
    } else {
      one = static_cast<T>(1);
    }
    auto* target = static_cast<T*>(out);
    std::fill(target + begin * depth, target + end * depth, T{});
    visit_indices(indices, [&](const auto* index) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto at = static_cast<std::int64_t>(index[i]);
        if (at < 0 || at >= depth) refuse(i, at, depth);
        target[i * depth + at] = one;
      }
    });
  });
}

}  // namespace lockstep::kernels
