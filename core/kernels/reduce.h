// core/kernels/reduce.h - reductions over axes, on plain memory, in an order that only the shape decides.
//
// A Reduction is one problem: what is computed, over which axes of which shape. How many shards it has
// follows from the shape alone. Shards may run on any thread and in any order; if has_finish(), finish()
// joins what they left in the scratch memory. The result has the same bits however the shards are run.
//
//   const Reduction columns(AxisReduce::kSum, DType::kF32, {1024, 512}, axes);
//   for (std::int64_t i = 0; i < columns.shards(); ++i) columns.run(in, out, scratch, i);
//   if (columns.has_finish()) columns.finish(scratch, out);
//
// The order. Extents of one are dropped and neighbouring axes of one kind (reduced or kept) merged. Then
//   if the last axis is reduced, each of its rows gives one result: blocks of 1024 elements, in each 16
//   interleaved partial results joined by a fixed tree (fewer than 16 elements one after another), the blocks
//   joined one after another; rows are then joined like elements below;
//   if the last axis is kept, the elements are joined one after another in blocks of 64, and the blocks
//   likewise.
//   If there is too little output to cut, the reduced axes are cut into parts of about 65536 elements, each
//   is reduced by itself as above, and the parts are joined like elements.
//
// f16 and bf16 compute in f32 and round once at the end; sums and products of integers wrap around. NaN in
// gives NaN. Thread safety: const, any thread, any number at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lockstep/core/base/export.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/shape.h"

namespace lockstep::kernels {

enum class AxisReduce : std::uint8_t {
  kSum,        // of no elements: 0
  kMean,       // floating; of no elements: NaN
  kProd,       // of no elements: 1
  kMax,        // needs at least one element
  kMin,        // needs at least one element
  kAny,        // bool; of no elements: false
  kAll,        // bool; of no elements: true
  kLogSumExp,  // floating; log(sum(exp(x))) without overflow; of no elements, or of -inf alone: -inf
  kMoments,    // floating; mean and variance (mean of the squared distances from it); of no elements: NaN
};

class LOCKSTEP_API Reduction {
 public:
  // `axes` are sorted, unique and in [0, rank). Throws InvalidArgument for others, for a dtype that the
  // operation does not take, and for a maximum or minimum of no elements.
  Reduction(AxisReduce op, DType dtype, const Shape& shape, std::span<const std::int64_t> axes);

  std::int64_t outputs() const { return outputs_; }
  std::int64_t shards() const { return out_shards_ * parts_; }
  std::size_t scratch_bytes() const;
  bool has_finish() const { return parts_ > 1; }

  // `second` is the variance of kMoments. `out` and `second` point to the whole result.
  void run(const void* in, void* out, void* scratch, std::int64_t shard, void* second = nullptr) const;
  void finish(const void* scratch, void* out, void* second = nullptr) const;
  // All of it on this thread; allocates if has_finish().
  void run_all(const void* in, void* out, void* second = nullptr) const;

 private:
  AxisReduce op_;
  DType dtype_;
  std::shared_ptr<const struct ReduceGeometry> geometry_;
  std::int64_t outputs_ = 1;
  std::int64_t out_shards_ = 1;
  std::int64_t parts_ = 1;
};

// Throws InvalidArgument, in the name of `what`, unless the axes are sorted, unique and in [0, rank).
LOCKSTEP_API void check_axes(const char* what, const Shape& shape, std::span<const std::int64_t> axes);

// The elements [out_begin, out_end) of the sum of `in` over `axes` (sorted, unique, in [0, rank)), counted
// row-major over the axes that stay, in the order above without parts. Every dtype but bool. Throws
// InvalidArgument for other axes, or bool.
LOCKSTEP_API void sum(DType dtype, const void* in, const Shape& in_shape, std::span<const std::int64_t> axes,
                      void* out, std::int64_t out_begin, std::int64_t out_end);

}  // namespace lockstep::kernels
