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
    // An axis that both sides walk as one with the axis around it is merged into that.
    if (!axes_.empty() && axes_.back().in_step == axis.in_step * axis.extent &&
        axes_.back().out_step == axis.out_step * axis.extent) {
      axes_.back() = {axes_.back().extent * axis.extent, axis.in_step, axis.out_step};
    } else {
      axes_.push_back(axis);
    }
  }
  if (axes_.empty()) axes_.push_back({1, 1, 1});
}

void StridedCopy::run(const void* in, void* out, std::int64_t begin, std::int64_t end) const {
  LOCKSTEP_CHECK(0 <= begin && begin <= end && end <= units_, "StridedCopy: units [", begin, ", ", end,
                 ") of ", units_);
  if (begin == end) return;
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
