// core/kernels/broadcast.cpp - finds the elements of the operands that belong to an element of the output.
#include "lockstep/core/kernels/broadcast.h"

#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep::kernels {

namespace {

void check_operand(const Shape& operand, const Shape& out) {
  bool fits = operand.rank() <= out.rank();
  for (std::size_t back = 1; fits && back <= operand.rank(); ++back) {
    const std::int64_t extent = operand[operand.rank() - back];
    fits = extent == 1 || extent == out[out.rank() - back];
  }
  if (!fits) throw InvalidArgument(str("an operand of shape ", operand, " does not broadcast to ", out));
}

}  // namespace

Broadcast::Broadcast(const Shape& out, std::initializer_list<const Shape*> operands) {
  LOCKSTEP_CHECK(operands.size() <= kMaxOperands, "broadcasting ", operands.size(), " operands");
  const std::int64_t total = out.num_elements();
  std::size_t count = 0;
  for (const Shape* operand : operands) {
    check_operand(*operand, out);
    const std::int64_t elements = operand->num_elements();
    moves_[count++] = elements == total;
    flat_ = flat_ && (elements == total || elements == 1);
  }
  if (flat_) return;

  SmallVector<Axis, 6> inner_first;
  std::array<std::int64_t, kMaxOperands> strides;
  strides.fill(1);
  for (std::size_t back = 1; back <= out.rank(); ++back) {
    Axis axis;
    axis.extent = out[out.rank() - back];
    for (std::size_t i = 0; i < count; ++i) {
      const Shape& operand = *operands.begin()[i];
      const std::int64_t extent = back <= operand.rank() ? operand[operand.rank() - back] : 1;
      axis.steps[i] = extent == 1 ? 0 : strides[i];
      strides[i] *= extent;
    }
    if (axis.extent == 1) continue;
    if (inner_first.size() > 0) {
      Axis& inner = inner_first[inner_first.size() - 1];
      bool alike = true;
      for (std::size_t i = 0; i < count; ++i) alike = alike && axis.steps[i] == inner.steps[i] * inner.extent;
      if (alike) {
        inner.extent *= axis.extent;
        continue;
      }
    }
    inner_first.push_back(axis);
  }
  for (std::size_t i = inner_first.size(); i-- > 0;) axes_.push_back(inner_first[i]);
}

Broadcast::Walk::Walk(const Broadcast& plan, std::int64_t begin) : axes_(plan.axes_) {
  for (std::size_t i = 0; i < axes_.size(); ++i) index_.push_back(0);
  for (std::size_t i = axes_.size(); i-- > 0;) {
    index_[i] = begin % axes_[i].extent;
    begin /= axes_[i].extent;
    for (std::size_t k = 0; k < kMaxOperands; ++k) at_[k] += index_[i] * axes_[i].steps[k];
  }
}

// The last axis starts anew, and the others count like an odometer.
void Broadcast::Walk::next_run() {
  const std::size_t last = axes_.size() - 1;
  for (std::size_t k = 0; k < kMaxOperands; ++k) at_[k] -= index_[last] * axes_[last].steps[k];
  index_[last] = 0;
  for (std::size_t i = last; i-- > 0;) {
    const Axis& axis = axes_[i];
    for (std::size_t k = 0; k < kMaxOperands; ++k) at_[k] += axis.steps[k];
    if (++index_[i] < axis.extent) return;
    for (std::size_t k = 0; k < kMaxOperands; ++k) at_[k] -= axis.extent * axis.steps[k];
    index_[i] = 0;
  }
}

void Broadcast::Walk::advance(std::int64_t count) {
  const std::size_t last = axes_.size() - 1;
  while (count >= left()) {
    count -= left();
    next_run();
  }
  index_[last] += count;
  for (std::size_t k = 0; k < kMaxOperands; ++k) at_[k] += count * axes_[last].steps[k];
}

namespace {

template <class Element>
void copy_run(const std::byte* from, bool moves, std::byte* to, std::int64_t count) {
  Element element;
  if (moves) {
    for (std::int64_t i = 0; i < count; ++i) {
      std::memcpy(&element, from + i * std::int64_t{sizeof(Element)}, sizeof(Element));
      std::memcpy(to + i * std::int64_t{sizeof(Element)}, &element, sizeof(Element));
    }
  } else {
    std::memcpy(&element, from, sizeof(Element));
    for (std::int64_t i = 0; i < count; ++i)
      std::memcpy(to + i * std::int64_t{sizeof(Element)}, &element, sizeof(Element));
  }
}

}  // namespace

void Broadcast::Walk::gather(std::size_t operand, const std::byte* data, std::int64_t size, std::byte* to,
                             std::int64_t count) const {
  const std::size_t last = axes_.size() - 1;
  const bool moves = axes_[last].steps[operand] != 0;
  SmallVector<std::int64_t, 6> index = index_;
  std::int64_t at = at_[operand];
  while (count > 0) {
    const std::int64_t run = std::min(count, axes_[last].extent - index[last]);
    const std::byte* from = data + at * size;
    switch (size) {
      case 1: copy_run<std::uint8_t>(from, moves, to, run); break;
      case 2: copy_run<std::uint16_t>(from, moves, to, run); break;
      case 4: copy_run<std::uint32_t>(from, moves, to, run); break;
      default: copy_run<std::uint64_t>(from, moves, to, run); break;
    }
    to += run * size;
    count -= run;
    at -= index[last] * axes_[last].steps[operand];
    index[last] = 0;
    for (std::size_t i = last; i-- > 0;) {
      at += axes_[i].steps[operand];
      if (++index[i] < axes_[i].extent) break;
      at -= axes_[i].extent * axes_[i].steps[operand];
      index[i] = 0;
    }
  }
}

}  // namespace lockstep::kernels
