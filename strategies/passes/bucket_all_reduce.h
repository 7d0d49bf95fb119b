// strategies/passes/bucket_all_reduce.h - many small all-reduces become a few large ones.
//
//   a' = all_reduce[sum](a)
//   b' = all_reduce[sum](b)         -->     a', b', c' = all_reduce[sum](a, b, c)
//   c' = all_reduce[sum](c)
//
// Joins reductions of one level (a replicated region, or a region inside one) that have one op, equal
// attributes, dtype and device, and come after equally many reductions: such nodes do not depend on one
// another, and joining them makes no cycle. Nothing is copied into one buffer: a joined node takes several
// values. Results keep their bits, since replicas are summed element by element in their order.
//
// Values are taken in the order in which they become ready, which is that of the backward pass, so that the
// first pack can travel while the rest is computed. A pack is closed as soon as it is larger than
// `bytes_per_pack`; a value is never split. Readiness and sizes follow from the graph alone: all workers make
// the same packs.
//
// Which nodes: role kCollective, same_on_all, a string attribute `reduce`, any number of inputs, an
// output for each. Linear, except for sorting the reductions.
// Thread safety: as any Pass.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

struct BucketAllReduceOptions {
  static constexpr std::int64_t kDefaultBytes = std::int64_t{4} << 20;
  std::int64_t bytes_per_pack = kDefaultBytes;  // 0: everything in one pack; unknown shapes count as 0 bytes
  std::int64_t num_packs = 0;  // above 0: this many packs of about equal bytes, instead of bytes_per_pack
};

// Throws BadOptionValue for numbers below 0, or if num_packs is given together with a bytes_per_pack other
// than the default.
LOCKSTEP_API std::unique_ptr<Pass> make_bucket_all_reduce(BucketAllReduceOptions options = {});

}  // namespace lockstep
