// core/kernels/place.cpp - copies a tensor into a larger one and fills the rest with one value.
#include "lockstep/core/kernels/place.h"

#include <algorithm>
#include <cstring>

#include "lockstep/core/error.h"
#include "lockstep/core/kernels/strided.h"

namespace lockstep::kernels {

Place::Place(std::size_t element_size, const Shape& in, const Shape& out,
             std::span<const std::int64_t> offsets, std::span<const std::int64_t> steps, const void* fill)
    : size_(element_size), empty_(in.num_elements() == 0) {
  LOCKSTEP_CHECK(in.rank() == out.rank() && in.rank() == offsets.size() && in.rank() == steps.size());
  std::memcpy(&fill_, fill, element_size);
  const std::vector<std::int64_t> strides = dense_strides(in);
  for (std::size_t i = 0; i < in.rank(); ++i) {
    Axis axis{out[i], in[i], offsets[i], steps[i], strides[i]};
    LOCKSTEP_CHECK(axis.step != 0);
    if (axis.step < 0) {  // the same from the other end
      axis.offset += (axis.in_extent - 1) * axis.step;
      start_ += (axis.in_extent - 1) * axis.in_stride;
      axis.step = -axis.step;
      axis.in_stride = -axis.in_stride;
    }
    LOCKSTEP_CHECK(empty_ || (axis.offset >= 0 && axis.in_extent > 0 &&
                              axis.offset + (axis.in_extent - 1) * axis.step < axis.out_extent),
                   "Place: axis ", i, " of ", in, " leaves ", out);
    // An axis that the source fills completely is merged with the axis around it.
    const bool whole = axis.out_extent == axis.in_extent && axis.offset == 0 && axis.step == 1;
    if (whole && !axes_.empty() && axes_.back().step == 1 &&
        axes_.back().in_stride == axis.in_stride * axis.in_extent) {
      Axis& around = axes_.back();
      around = {around.out_extent * axis.out_extent, around.in_extent * axis.in_extent,
                around.offset * axis.out_extent, 1, axis.in_stride};
    } else {
      axes_.push_back(axis);
    }
  }
  if (axes_.empty()) axes_.push_back({1, 1, 0, 1, 1});
}

std::int64_t Place::source_of(const Axis& axis, std::int64_t index) {
  const std::int64_t behind = index - axis.offset;
  if (behind < 0 || behind % axis.step != 0 || behind / axis.step >= axis.in_extent) return -1;
  return behind / axis.step;
}

namespace {

template <class T>
void place(const T* in, std::int64_t in_stride, T* out, std::int64_t step, std::int64_t count) {
  if (in_stride == 1 && step == 1) {
    std::memcpy(out, in, static_cast<std::size_t>(count) * sizeof(T));
  } else {
    for (std::int64_t i = 0; i < count; ++i) out[i * step] = in[i * in_stride];
  }
}

}  // namespace

void Place::run(const void* in, void* out, std::int64_t begin, std::int64_t end) const {
  if (begin >= end) return;
  const Axis last = axes_.back();
  const auto work = [&]<class T>(T fill) {
    std::memcpy(&fill, &fill_, sizeof(T));
    const T* source = static_cast<const T*>(in) + start_;
    T* target = static_cast<T*>(out);
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t column = at % last.out_extent;
      const std::int64_t count = std::min(last.out_extent - column, end - at);
      std::int64_t row = at / last.out_extent, from = 0;
      bool inside = !empty_;
      for (std::size_t i = axes_.size() - 1; inside && i-- > 0;) {
        const std::int64_t index = source_of(axes_[i], row % axes_[i].out_extent);
        row /= axes_[i].out_extent;
        inside = index >= 0;
        from += index * axes_[i].in_stride;
      }
      if (!inside) {
        std::fill_n(target + at, count, fill);
      } else {
        // The elements that fall into [column, column + count), from `first` on.
        const auto elements_before = [&](std::int64_t end_column) {
          const std::int64_t room = end_column - last.offset;
          return room <= 0 ? 0 : std::min((room + last.step - 1) / last.step, last.in_extent);
        };
        const std::int64_t first = elements_before(column), stop = elements_before(column + count);
        const std::int64_t head = first < stop ? last.offset + first * last.step - column : count;
        std::int64_t tail = first < stop ? last.offset + (stop - 1) * last.step + 1 - column : count;
        std::fill_n(target + at, head, fill);
        if (last.step > 1) tail = head;  // fill between the elements, too
        std::fill_n(target + at + tail, count - tail, fill);
        if (first < stop) {
          place(source + from + first * last.in_stride, last.in_stride, target + at + head, last.step,
                stop - first);
        }
      }
      at += count;
    }
  };
  switch (size_) {
    case 1: return work(std::uint8_t{});
    case 2: return work(std::uint16_t{});
    case 4: return work(std::uint32_t{});
    case 8: return work(std::uint64_t{});
    default: LOCKSTEP_CHECK(false, "elements of ", size_, " bytes");
  }
}

}  // namespace lockstep::kernels
