// core/kernels/pool.h - maxima and averages over windows of images, on plain memory.
//
// Images are [images, rows, columns, channels], dense and row-major. Windows that reach beyond an image take
// what lies inside: padding is never a maximum and does not count in an average. Every window must reach
// inside.
//
// The functions that give an element per window work on ranges of output rows, counted over all images; those
// that give an element per input work on ranges of images, since windows overlap. Results do not depend on
// the cuts. f16 and bf16 compute in f32 and round once.
//
// Thread safety: any thread, any number at once, on ranges of the output that do not overlap.
#pragma once

#include <cstdint>

#include "lockstep/core/base/export.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/kernels/window.h"

namespace lockstep::kernels {

struct PoolShape {
  std::int64_t images = 1;
  WindowAxis rows, columns;  // dilation 1
  std::int64_t channels = 1;
  std::int64_t out_rows() const { return images * rows.out; }  // of all images
};

// The largest element of each window; a NaN is larger than anything. Every dtype but bool.
LOCKSTEP_API void max_pool(DType dtype, const PoolShape& shape, const void* x, void* y,
                           std::int64_t begin_row, std::int64_t end_row);
// For each window, the element of u at the place of x's first largest element; u has the shape of x. Floating
// dtypes.
LOCKSTEP_API void max_pool_pick(DType dtype, const PoolShape& shape, const void* x, const void* u, void* y,
                                std::int64_t begin_row, std::int64_t end_row);
// The other way round: each element of g is added to dx at the place of x's first largest element of its
// window.
LOCKSTEP_API void max_pool_backward(DType dtype, const PoolShape& shape, const void* x, const void* g,
                                    void* dx, std::int64_t begin_image, std::int64_t end_image);

// The average of each window. Floating dtypes.
LOCKSTEP_API void avg_pool(DType dtype, const PoolShape& shape, const void* x, void* y,
                           std::int64_t begin_row, std::int64_t end_row);
// Each element of g is spread evenly over its window in dx.
LOCKSTEP_API void avg_pool_backward(DType dtype, const PoolShape& shape, const void* g, void* dx,
                                    std::int64_t begin_image, std::int64_t end_image);

}  // namespace lockstep::kernels
