// core/kernels/conv.h - convolution of images and its two derivatives, on plain memory.
//
// x is [images, rows, columns, in_channels], the filter w is [rows, columns, in_channels / groups,
// out_channels] and y is [images, out rows, out columns, out_channels], all dense and row-major. With groups,
// the k-th part of the output channels sees the k-th part of the input channels only.
//
// Windows are laid out as the rows of a matrix, a block of output rows at a time, and BLAS does the rest. A
// filter of one element without stride or padding is a matrix product as it is; if each channel is a group (a
// depthwise convolution), plain loops over channels are faster. How the work is cut into shards, and into
// blocks, follows from the shapes alone. Floating dtypes; f16 and bf16 are summed in f32 and rounded once.
//
// Thread safety: any thread, any number of different shards at once. A shard takes at most a few megabytes of
// memory, which its thread keeps for the next one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "lockstep/core/base/export.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/kernels/gemm.h"
#include "lockstep/core/kernels/window.h"

namespace lockstep::kernels {

struct ConvShape {
  std::int64_t images = 1;
  WindowAxis rows, columns;
  std::int64_t in_channels = 1, out_channels = 1, groups = 1;

  std::int64_t group_in() const { return in_channels / groups; }
  std::int64_t group_out() const { return out_channels / groups; }
  std::int64_t window() const { return rows.size * columns.size * group_in(); }  // elements of one group
  std::int64_t out_rows() const { return images * rows.out; }                    // of all images
  LOCKSTEP_API double multiplications() const;
  LOCKSTEP_API double seconds(DType dtype) const;  // of one thread, estimated; for any of the three below
};

// y = conv(x, w).
class LOCKSTEP_API ConvForward {
 public:
  ConvForward(DType dtype, const ConvShape& shape);
  std::int64_t shards() const { return shards_; }
  std::size_t scratch_bytes() const { return plain_ ? plain_->scratch_bytes() : 0; }
  bool needs_finish() const { return plain_ && plain_->needs_finish(); }
  void compute(std::int64_t shard, const void* x, const void* w, void* y, void* scratch) const;
  void finish(void* y, const void* scratch) const;

 private:
  DType dtype_;
  ConvShape shape_;
  std::optional<GemmTiles> plain_;
  std::int64_t block_ = 1;  // output rows of one product
  std::int64_t shards_ = 1;
};

// The gradient of conv with respect to x, given the gradient g with respect to y.
class LOCKSTEP_API ConvBackwardInput {
 public:
  ConvBackwardInput(DType dtype, const ConvShape& shape);
  std::int64_t shards() const { return shards_; }
  std::size_t scratch_bytes() const { return plain_ ? plain_->scratch_bytes() : 0; }
  bool needs_finish() const { return plain_ && plain_->needs_finish(); }
  void compute(std::int64_t shard, const void* g, const void* w, void* dx, void* scratch) const;
  void finish(void* dx, const void* scratch) const;

 private:
  DType dtype_;
  ConvShape shape_;
  std::optional<GemmTiles> plain_;
  std::int64_t block_ = 1;
  std::int64_t shards_ = 1;
};

// The gradient with respect to w. Parts of the images are summed separately, in scratch memory, and joined in
// their order.
class LOCKSTEP_API ConvBackwardFilter {
 public:
  ConvBackwardFilter(DType dtype, const ConvShape& shape);
  std::int64_t shards() const { return plain_ ? plain_->count() : parts_ * slices_; }
  std::size_t scratch_bytes() const;
  bool needs_finish() const { return plain_ ? plain_->needs_finish() : true; }
  void compute(std::int64_t shard, const void* x, const void* g, void* dw, void* scratch) const;
  void finish(void* dw, const void* scratch) const;

 private:
  std::int64_t filter_size() const { return shape_.window() * shape_.out_channels; }

  DType dtype_;
  ConvShape shape_;
  std::optional<GemmTiles> plain_;
  std::int64_t block_ = 1;
  std::int64_t parts_ = 1;   // of all output rows
  std::int64_t slices_ = 1;  // of the filter: its rows, or all of it
};

}  // namespace lockstep::kernels
