// graph/ops/rules/internal/products.h - what ops that multiply matrices share: their shapes, and how CPUs compute them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/core/kernels/gemm.h"
#include "lockstep/graph/ir/op.h"

namespace lockstep::internal {

// Inputs 0 and 1 are the matrices, and these attributes say how they are read.
inline bool transposes_a(const NodeView& node) { return node.get_or("transpose_a", false); }
inline bool transposes_b(const NodeView& node) { return node.get_or("transpose_b", false); }

// The shape of the product; fails if there is none.
Shape product_shape(const NodeView& node);

// A node of known shapes: equal products, each cut into tiles, or several of them to a shard. If all left matrices meet one
// right matrix, their rows are the rows of one product.
class ProductTiles {
 public:
  // Told of each part of the result when it is complete. Matrices of a batch count as one, each below the one before it.
  using Then = std::function<void(KernelContext&, const kernels::GemmTiles::Tile& done)>;

  ProductTiles(const NodeView& node, const TensorSpec& output);

  std::int64_t batch() const { return batch_; }
  std::int64_t shards() const;
  std::size_t scratch_bytes() const { return tiles_.scratch_bytes(); }
  bool needs_finish() const { return tiles_.needs_finish(); }
  Cost cost(const NodeView& node, const TensorSpec& output) const;

  // Shard c.shard(), which counts the shards of products alone if there are several matrices.
  void compute(KernelContext& c, const Then& then) const;
  void finish(KernelContext& c, const Then& then) const;

 private:
  kernels::GemmTiles tiles_;
  std::int64_t m_, n_;                        // of one matrix of the result
  std::int64_t batch_;                        // matrices in the result
  std::int64_t a_bytes_, b_bytes_, c_bytes_;  // of one matrix
  std::int64_t per_shard_;                    // matrices, if one is a single tile
  bool empty_;
  std::vector<std::int64_t> as_, bs_;  // the matrices that each of several products is of
};

}  // namespace lockstep::internal
