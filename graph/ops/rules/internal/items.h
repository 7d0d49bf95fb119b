// graph/ops/rules/internal/items.h - a tensor as items along one axis: each has n elements, and `inner` items
// lie side by side.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/core/shape.h"
#include "lockstep/graph/ir/kernel.h"
#include "lockstep/graph/ir/op.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/rules/internal/axes.h"

namespace lockstep::internal {

struct Items {
  std::int64_t n = 1, inner = 1, count = 1;
};

inline Items items_along(const Shape& shape, std::int64_t axis) {
  Items items;
  for (std::size_t i = 0; i < shape.rank(); ++i) {
    const bool along = static_cast<std::int64_t>(i) == axis;
    if (along) items.n = shape[i];
    if (!along) items.count *= shape[i];
    if (static_cast<std::int64_t>(i) > axis) items.inner *= shape[i];
  }
  return items;
}

// The items of input 0 along the attribute `axis`.
inline Items items_of(const NodeView& node) { return items_along(node.input(0).shape, normal_axis(node)); }

// Shards of whole items, about `grain` elements each.
inline Split split_items(const Items& items, std::int64_t grain) {
  const std::int64_t shards = shards_for(items.n * items.count, grain);
  return {std::clamp<std::int64_t>(shards, 1, std::max<std::int64_t>(items.count, 1)), 0, false};
}

// Input 0 as rows: each spans the last axes, those that input 1 has.
struct NormRows {
  std::int64_t count = 1, width = 1;
};
inline NormRows norm_rows(const NodeView& node) {
  NormRows rows;
  rows.width = node.input(1).shape.num_elements();
  const Shape& x = node.input(0).shape;
  for (std::size_t i = 0; i < x.rank() - node.input(1).shape.rank(); ++i) rows.count *= x[i];
  return rows;
}

}  // namespace lockstep::internal
