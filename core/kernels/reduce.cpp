#include "lockstep/core/kernels/reduce.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "lockstep/core/error.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t kLanes = 16;
constexpr std::int64_t kBlock = 1024;     // elements of a row per block
constexpr std::int64_t kSmallBlock = 64;  // elements one after another per block
constexpr std::int64_t kChunk = 256;      // output elements side by side

// What a T is added up in: unsigned for integers, where overflow wraps.
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double,
                               std::conditional_t<std::is_integral_v<T>, std::uint64_t, float>>;

template <class T>
Sum<T> load(T value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
  } else {
    return static_cast<Sum<T>>(value);
  }
}

template <class T>
T store(Sum<T> value) {
  return T(value);
}
template <>
std::uint8_t store<std::uint8_t>(std::uint64_t value) {
  return static_cast<std::uint8_t>(value);
}
template <>
std::int32_t store<std::int32_t>(std::uint64_t value) {
  return static_cast<std::int32_t>(value);
}

template <class S>
S tree(const S* lanes) {
  S level[kLanes / 2];
  for (std::int64_t i = 0; i < kLanes / 2; ++i) level[i] = lanes[i] + lanes[i + kLanes / 2];
  for (std::int64_t width = kLanes / 4; width > 0; width /= 2) {
    for (std::int64_t i = 0; i < width; ++i) level[i] += level[i + width];
  }
  return level[0];
}

// At most kBlock elements: element i goes to lane i % kLanes.
template <class T>
Sum<T> sum_block(const T* in, std::int64_t count) {
  using S = Sum<T>;
  S lanes[kLanes] = {};
  std::int64_t i = 0;
  if constexpr (std::is_same_v<T, S>) {
    typedef S Vector __attribute__((vector_size(sizeof(S) * kLanes)));
    Vector sums{};
    for (; i + kLanes <= count; i += kLanes) {
      Vector next;
      std::memcpy(&next, in + i, sizeof(next));
      sums += next;
    }
    std::memcpy(lanes, &sums, sizeof(sums));
  } else {
    for (; i + kLanes <= count; i += kLanes) {
      for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += load(in[i + lane]);
    }
  }
  for (std::int64_t lane = 0; i < count; ++i, ++lane) lanes[lane] += load(in[i]);
  return tree(lanes);
}

template <class T>
Sum<T> sum_row(const T* in, std::int64_t count) {
  Sum<T> total{0};
  for (std::int64_t i = 0; i < count; i += kBlock) total += sum_block(in + i, std::min(kBlock, count - i));
  return total;
}

// Some axes of the input, outermost first, and a position on them.
class Axes {
 public:
  void push(std::int64_t extent, std::int64_t stride) {  // from the last axis on
    axes_[rank_++] = Axis{extent, stride};
    count_ *= extent;
  }
  std::int64_t count() const { return count_; }
  std::int64_t offset() const { return offset_; }

  void seek(std::int64_t index) {
    offset_ = 0;
    for (std::size_t i = 0; i < rank_; ++i) {
      axes_[i].index = index % axes_[i].extent;
      index /= axes_[i].extent;
      offset_ += axes_[i].index * axes_[i].stride;
    }
  }
  // Back to the start after the last.
  void next() {
    for (std::size_t i = 0; i < rank_; ++i) {
      Axis& axis = axes_[i];
      offset_ += axis.stride;
      if (++axis.index < axis.extent) return;
      offset_ -= axis.extent * axis.stride;
      axis.index = 0;
    }
  }

 private:
  struct Axis {
    std::int64_t extent, stride;
    std::int64_t index = 0;
  };
  std::size_t rank_ = 0;
  Axis axes_[Shape::kMaxRank];  // the last axis first
  std::int64_t count_ = 1;
  std::int64_t offset_ = 0;
};

struct Plan {
  Axes kept, summed;
  std::int64_t inner = 1;  // extent of the last axis, which is in neither list
  bool inner_summed = true;
};

Plan make_plan(const Shape& shape, std::span<const std::int64_t> axes) {
  Plan plan;
  bool have_inner = false;
  std::int64_t stride = 1;             // of the axis at hand
  std::int64_t extent = 1, start = 1;  // of the merged axis that is not placed yet, and its stride
  bool is_summed = false;
  const auto place = [&] {
    if (extent == 1) return;
    if (!have_inner) {
      plan.inner = extent;
      plan.inner_summed = is_summed;
      have_inner = true;
    } else {
      (is_summed ? plan.summed : plan.kept).push(extent, start);
    }
  };
  std::size_t left = axes.size();
  for (std::size_t axis = shape.rank(); axis-- > 0;) {
    const bool summed = left > 0 && axes[left - 1] == static_cast<std::int64_t>(axis);
    if (summed) --left;
    if (shape[axis] == 1) continue;
    if (summed != is_summed || extent == 1) {
      place();
      extent = 1;
      start = stride;
      is_summed = summed;
    }
    extent *= shape[axis];
    stride *= shape[axis];
  }
  place();
  return plan;
}

template <class T>
void sum_last_axis(const T* in, Plan& plan, T* out, std::int64_t begin, std::int64_t end) {
  plan.kept.seek(begin);
  for (std::int64_t at = begin; at < end; ++at, plan.kept.next()) {
    const T* base = in + plan.kept.offset();
    Sum<T> total{0}, block{0};
    plan.summed.seek(0);
    for (std::int64_t r = 0; r < plan.summed.count(); ++r, plan.summed.next()) {
      if (r > 0 && r % kSmallBlock == 0) {
        total += block;
        block = 0;
      }
      block += sum_row(base + plan.summed.offset(), plan.inner);
    }
    out[at] = store<T>(total + block);
  }
}

template <class T>
void sum_outer_axes(const T* in, Plan& plan, T* out, std::int64_t begin, std::int64_t end) {
  Sum<T> total[kChunk], block[kChunk];
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t column = at % plan.inner;
    const std::int64_t width = std::min({kChunk, plan.inner - column, end - at});
    plan.kept.seek(at / plan.inner);
    const T* base = in + plan.kept.offset() + column;
    std::fill_n(total, width, Sum<T>{0});
    std::fill_n(block, width, Sum<T>{0});
    plan.summed.seek(0);
    for (std::int64_t r = 0; r < plan.summed.count(); ++r, plan.summed.next()) {
      if (r > 0 && r % kSmallBlock == 0) {
        for (std::int64_t i = 0; i < width; ++i) total[i] += block[i];
        std::fill_n(block, width, Sum<T>{0});
      }
      const T* row = base + plan.summed.offset();
      for (std::int64_t i = 0; i < width; ++i) block[i] += load(row[i]);
    }
    for (std::int64_t i = 0; i < width; ++i) out[at + i] = store<T>(total[i] + block[i]);
    at += width;
  }
}

void check_dtype(DType dtype) {
  if (dtype == DType::kBool) throw InvalidArgument("sum: bool has no sum: convert to another dtype first");
}

// How many elements the output has.
std::int64_t check_axes(const Shape& shape, std::span<const std::int64_t> axes) {
  const auto rank = static_cast<std::int64_t>(shape.rank());
  std::int64_t before = -1;
  for (const std::int64_t axis : axes) {
    if (axis <= before || axis >= rank) {
      throw InvalidArgument(
          str("sum: axis ", axis, " of ", shape, ": axes must be sorted, unique and in [0, ", rank, ")"));
    }
    before = axis;
  }
  std::int64_t elements = 1;
  std::size_t next = 0;
  for (std::int64_t axis = 0; axis < rank; ++axis) {
    if (next < axes.size() && axes[next] == axis) {
      ++next;
    } else {
      elements *= shape[static_cast<std::size_t>(axis)];
    }
  }
  return elements;
}

}  // namespace

void sum(DType dtype, const void* in, const Shape& in_shape, std::span<const std::int64_t> axes, void* out,
         std::int64_t out_begin, std::int64_t out_end) {
  check_dtype(dtype);
  const std::int64_t elements = check_axes(in_shape, axes);
  LOCKSTEP_CHECK(0 <= out_begin && out_begin <= out_end && out_end <= elements, "sum: range [", out_begin,
                 ", ", out_end, ") of ", elements, " elements");
  if (out_begin == out_end) return;
  const bool nothing = in_shape.num_elements() == 0;
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, bool>) {
      auto* result = static_cast<T*>(out);
      if (nothing) {
        std::fill(result + out_begin, result + out_end, T{});
        return;
      }
      Plan plan = make_plan(in_shape, axes);
      if (plan.inner_summed) {
        sum_last_axis(static_cast<const T*>(in), plan, result, out_begin, out_end);
      } else {
        sum_outer_axes(static_cast<const T*>(in), plan, result, out_begin, out_end);
      }
    }
  });
}

void sum_tile(DType dtype, const void* in, std::int64_t begin, std::int64_t end, void* partial) {
  check_dtype(dtype);
  LOCKSTEP_CHECK(0 <= begin && begin <= end, "sum_tile: range [", begin, ", ", end, ")");
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, bool>) {
      const Sum<T> result = sum_row(static_cast<const T*>(in) + begin, end - begin);
      std::memcpy(partial, &result, sizeof(result));
    }
  });
}

void combine_tiles(DType dtype, const void* partials, std::int64_t count, void* out) {
  check_dtype(dtype);
  LOCKSTEP_CHECK(count >= 0, "combine_tiles: ", count, " partials");
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, bool>) {
      *static_cast<T*>(out) = store<T>(sum_row(static_cast<const Sum<T>*>(partials), count));
    }
  });
}

}  // namespace lockstep::kernels
