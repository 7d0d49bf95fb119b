// core/kernels/broadcast.h - finds the elements of the operands that belong to an element of the output.
//
// A Broadcast is made once for the shapes of an op's output and operands (NumPy broadcasting) and then asked
// for the runs of any range of the output. Along a run each operand either moves with the output or stands
// still, so that a loop over consecutive memory computes it. Equal shapes, and scalars beside them, are one
// single run.
//
//   Broadcast plan(out, {a, b});
//   plan.run<2>(begin, end, {4, 4}, {a_data, b_data}, out_data, 4, [&](operands, moves, out, count) { ... });
//
// Runs that would be short (a last axis of 3, say) are gathered into longer ones, through a small buffer on
// the stack.
//
// Thread safety: const functions from any thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/core/base/export.h"
#include "lockstep/core/base/small_vector.h"
#include "lockstep/core/shape.h"

namespace lockstep::kernels {

class LOCKSTEP_API Broadcast {
 public:
  static constexpr std::size_t kMaxOperands = 3;

  // Throws InvalidArgument if an operand does not broadcast to `out`.
  Broadcast(const Shape& out, std::initializer_list<const Shape*> operands);

  // The whole output is one run: every operand moves with it throughout, or stands still.
  bool flat() const { return flat_; }
  bool moves(std::size_t operand) const { return moves_[operand]; }

  // Calls f(operands, moves, out, count) for every run of [begin, end), with pointers to the first element of
  // each. Pointers are to whole tensors; sizes are bytes of an element.
  template <std::size_t N, class F>
  void run(std::int64_t begin, std::int64_t end, const std::array<std::int64_t, N>& sizes,
           const std::array<const void*, N>& data, void* out, std::int64_t out_size, const F& f) const {
    static_assert(N <= kMaxOperands);
    if (begin >= end) return;
    std::array<const std::byte*, N> operands;
    if (flat_) {
      std::array<bool, N> moves;
      for (std::size_t i = 0; i < N; ++i) {
        moves[i] = moves_[i];
        operands[i] = static_cast<const std::byte*>(data[i]) + (moves[i] ? begin * sizes[i] : 0);
      }
      f(operands, moves, static_cast<std::byte*>(out) + begin * out_size, end - begin);
      return;
    }
    Walk walk(*this, begin);
    if (last().extent < kShort) {
      gathered<N>(walk, begin, end, sizes, data, static_cast<std::byte*>(out), out_size, f);
      return;
    }
    std::array<bool, N> moves;
    for (std::size_t i = 0; i < N; ++i) moves[i] = last().steps[i] != 0;
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t count = std::min(end - at, walk.left());
      for (std::size_t i = 0; i < N; ++i)
        operands[i] = static_cast<const std::byte*>(data[i]) + walk.at(i) * sizes[i];
      f(operands, moves, static_cast<std::byte*>(out) + at * out_size, count);
      at += count;
      walk.next_run();
    }
  }

 private:
  static constexpr std::int64_t kShort = 16;   // a last axis below this is gathered ...
  static constexpr std::int64_t kBlock = 256;  // ... into runs of this many elements

  // Outermost first: extents of the output, and how far each operand moves per step (0 if it is broadcast).
  // Neighbours over which all operands behave alike are merged and extents of one dropped, so that the last
  // axis is the longest run there is; on it an operand moves by 1 or by 0.
  struct Axis {
    std::int64_t extent = 1;
    std::array<std::int64_t, kMaxOperands> steps = {};
  };

  // A place in the output, and the elements of the operands that belong to it.
  class LOCKSTEP_API Walk {
   public:
    Walk(const Broadcast& plan, std::int64_t begin);
    std::int64_t at(std::size_t operand) const { return at_[operand]; }
    std::int64_t left() const {
      return axes_[axes_.size() - 1].extent - index_[axes_.size() - 1];
    }  // of the run
    void next_run();
    // Copies `count` elements of an operand, from here on, into consecutive memory; the walk itself does not
    // move.
    void gather(std::size_t operand, const std::byte* data, std::int64_t size, std::byte* to,
                std::int64_t count) const;
    void advance(std::int64_t count);

   private:
    const SmallVector<Axis, 6>& axes_;
    SmallVector<std::int64_t, 6> index_;
    std::array<std::int64_t, kMaxOperands> at_ = {};
  };

  const Axis& last() const { return axes_[axes_.size() - 1]; }

  template <std::size_t N, class F>
  void gathered(Walk& walk, std::int64_t begin, std::int64_t end, const std::array<std::int64_t, N>& sizes,
                const std::array<const void*, N>& data, std::byte* out, std::int64_t out_size,
                const F& f) const {
    alignas(64) std::byte buffers[N][kBlock * 8];
    std::array<const std::byte*, N> operands;
    std::array<bool, N> moves;
    moves.fill(true);
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t count = std::min(end - at, kBlock);
      for (std::size_t i = 0; i < N; ++i) {
        const auto* whole = static_cast<const std::byte*>(data[i]);
        if (moves_[i]) {
          operands[i] = whole + at * sizes[i];
        } else {
          walk.gather(i, whole, sizes[i], buffers[i], count);
          operands[i] = buffers[i];
        }
      }
      f(operands, moves, out + at * out_size, count);
      at += count;
      if (at < end) walk.advance(count);
    }
  }

  SmallVector<Axis, 6> axes_;
  std::array<bool, kMaxOperands> moves_ = {};  // as many elements as the output, so in the same order
  bool flat_ = true;
};

}  // namespace lockstep::kernels
