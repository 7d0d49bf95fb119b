// core/kernels/reduce.h - sums over axes, on plain memory, in an order that only the shape decides.
//
// The order. Extents of one are dropped and neighbouring axes of one kind (summed or kept) merged. Then
//   where the last axis is summed, each of its rows is one sum: blocks of 1024 elements, in each 16 interleaved
//   partial sums joined by a fixed tree, the blocks added one after another; rows are then added like elements below;
//   where the last axis is kept, the elements are added one after another in blocks of 64, and the blocks likewise.
// So an element of the output is the same however the output is cut into ranges, on any thread.
// f16 and bf16 accumulate in f32 and round once at the end; integers wrap around; no elements sum to 0.
//
// Thread safety: any thread, any number at once, on ranges of the output that do not overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/core/dtype.h"
#include "lockstep/core/export.h"
#include "lockstep/core/shape.h"

namespace lockstep::kernels {

// The elements [out_begin, out_end) of the sum of `in` over `axes` (sorted, unique, in [0, rank)), counted row-major
// over the axes that stay. Every dtype but bool. Throws InvalidArgument for other axes, or bool.
LOCKSTEP_API void sum(DType dtype, const void* in, const Shape& in_shape, std::span<const std::int64_t> axes,
                      void* out, std::int64_t out_begin, std::int64_t out_end);

// The sum of everything, in pieces: each tile of the input gives one partial sum, and the partials, in the order of
// the tiles, give the result. The tiles are the caller's choice, by shape and never by the number of threads, since
// the result depends on them. A partial is a float for f16, bf16 and f32, a double for f64, an int64 for integers.
constexpr std::size_t size_of_partial(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32 ? 4 : 8;
}
LOCKSTEP_API void sum_tile(DType dtype, const void* in, std::int64_t begin, std::int64_t end, void* partial);
LOCKSTEP_API void combine_tiles(DType dtype, const void* partials, std::int64_t count, void* out);

}  // namespace lockstep::kernels
