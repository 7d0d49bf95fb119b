// graph/ops/rules/products.cpp - products of matrices on CPUs, cut into tiles by shape.
#include "lockstep/graph/ops/rules/internal/products.h"

#include <algorithm>

#include "lockstep/core/error.h"
#include "lockstep/graph/ops/rules/internal/shape_rules.h"

namespace lockstep::internal {

namespace {

constexpr double kProductShard = 100e-6;  // seconds of small matrices that make up a shard

struct Extents {
  std::int64_t m, n, k, batch;
};

Extents extents_of(const NodeView& node, const Shape& result) {
  const Shape &a = node.input(0).shape, &b = node.input(1).shape;
  Extents e{result.dim(-2), result.dim(-1), a.dim(transposes_a(node) ? -2 : -1),
            batch_of(result).num_elements()};
  if (!transposes_a(node) && e.batch > 1 && batch_of(b).num_elements() == 1) {
    e.m *= e.batch;
    e.batch = 1;
  }
  return e;
}

// Only a single product is cut along k: several keep the threads busy as they are.
kernels::GemmTiles tiles_of(const NodeView& node, DType dtype, const Extents& e) {
  return {dtype, transposes_a(node), transposes_b(node), e.m, e.n, e.k, e.batch == 1};
}

}  // namespace

Shape product_shape(const NodeView& node) {
  const Shape &a = node.input(0).shape, &b = node.input(1).shape;
  if (a.rank() < 2 || b.rank() < 2) {
    NodeView::fail(str("takes two matrices (rank 2 or more), got ", node.input(0), " and ", node.input(1)));
  }
  const bool ta = transposes_a(node), tb = transposes_b(node);
  const std::int64_t left = a.dim(ta ? -2 : -1), right = b.dim(tb ? -1 : -2);
  if (left != right && left != kUnknown && right != kUnknown) {
    NodeView::fail(str("inner dimensions differ: ", node.input(0), ta ? " (transposed)" : "", " x ",
                       node.input(1), tb ? " (transposed)" : "", " needs ", left, " == ", right));
  }
  const Shape batch = broadcast_shapes(batch_of(a), batch_of(b));
  std::vector<std::int64_t> dims(batch.dims().begin(), batch.dims().end());
  dims.push_back(a.dim(ta ? -1 : -2));
  dims.push_back(b.dim(tb ? -2 : -1));
  return Shape(std::span<const std::int64_t>(dims));
}

ProductTiles::ProductTiles(const NodeView& node, const TensorSpec& output)
    : tiles_(tiles_of(node, output.dtype, extents_of(node, output.shape))),
      empty_(output.shape.num_elements() == 0) {
  const Extents e = extents_of(node, output.shape);
  const auto size = static_cast<std::int64_t>(size_of(output.dtype));
  m_ = e.m;
  n_ = e.n;
  batch_ = e.batch;
  a_bytes_ = e.m * e.k * size;
  b_bytes_ = e.k * e.n * size;
  c_bytes_ = e.m * e.n * size;
  per_shard_ = std::max<std::int64_t>(static_cast<std::int64_t>(kProductShard / tiles_.seconds()), 1);
  if (batch_ > 1) {
    as_ = matrices_of(node.input(0).shape, batch_of(output.shape));
    bs_ = matrices_of(node.input(1).shape, batch_of(output.shape));
  }
}

std::int64_t ProductTiles::shards() const {
  if (empty_) return 1;
  return tiles_.count() > 1 ? batch_ * tiles_.count() : (batch_ + per_shard_ - 1) / per_shard_;
}

Cost ProductTiles::cost(const NodeView& node, const TensorSpec& output) const {
  const auto k = static_cast<double>(node.input(0).shape.dim(transposes_a(node) ? -2 : -1));
  const double multiply_adds = k * static_cast<double>(output.shape.num_elements());
  return {2 * multiply_adds,
          static_cast<double>(num_bytes(node.input(0)) + num_bytes(node.input(1)) + num_bytes(output)),
          static_cast<double>(batch_) * tiles_.seconds(), multiply_adds};
}

void ProductTiles::compute(KernelContext& c, const Then& then) const {
  if (empty_) return;
  const auto one = [&](std::int64_t matrix, std::int64_t tile) {
    const auto i = static_cast<std::size_t>(matrix);
    const std::int64_t from_a = batch_ > 1 ? as_[i] * a_bytes_ : 0,
                       from_b = batch_ > 1 ? bs_[i] * b_bytes_ : 0;
    tiles_.compute(tile, static_cast<const char*>(c.input(0)) + from_a,
                   static_cast<const char*>(c.input(1)) + from_b,
                   static_cast<char*>(c.output(0)) + matrix * c_bytes_, c.scratch());
    if (!then || tiles_.needs_finish()) return;
    kernels::GemmTiles::Tile done = tiles_.tile(tile);
    done.row += matrix * m_;
    then(c, done);
  };
  const std::int64_t tiles = tiles_.count();
  if (batch_ == 1 || tiles > 1) {
    one(c.shard() / tiles, c.shard() % tiles);
    return;
  }
  const auto [begin, end] = c.range(batch_);
  for (std::int64_t matrix = begin; matrix < end; ++matrix) one(matrix, 0);
}

void ProductTiles::finish(KernelContext& c, const Then& then) const {
  tiles_.finish(c.output(0), c.scratch());
  if (then) then(c, {0, 0, m_, n_});
}

}  // namespace lockstep::internal
