// graph/ops/internal/builtin_ops.h - one registering function per file of graph/ops.
#pragma once

#include "lockstep/graph/ir/op.h"

namespace lockstep::internal {

void register_source_ops(OpRegistry& registry);       // placeholder, constant, replica_id
void register_elementwise_ops(OpRegistry& registry);  // add, exp, where, cast, ...
void register_fused_ops(OpRegistry& registry);        // fused
void register_merged_ops(OpRegistry& registry);       // merged_updates
void register_matmul_ops(OpRegistry& registry);       // matmul
void register_reduction_ops(OpRegistry& registry);    // sum
void register_scan_ops(OpRegistry& registry);         // cumsum, argmax, argmin, top_k
void register_variable_ops(OpRegistry& registry);     // read, assign, assign_add
void register_shapes_ops(OpRegistry& registry);       // with the two below
void register_moving_ops(OpRegistry& registry);       // transpose, flip, tile, concat, split
void register_slicing_ops(OpRegistry& registry);      // slice, unslice, pad
void register_fused_matmul_ops(OpRegistry& registry);
void register_attention_ops(OpRegistry& registry);  // attention, attention_grad
void register_indexing_ops(OpRegistry& registry);
void register_softmax_ops(OpRegistry& registry);
void register_normalization_ops(OpRegistry& registry);
void register_global_ops(OpRegistry& registry);
void register_collective_ops(OpRegistry& registry);
void register_lowered_collective_ops(OpRegistry& registry);  // called by register_collective_ops
void register_group_collective_ops(OpRegistry& registry);
void register_convolution_ops(OpRegistry& registry);
void register_pooling_ops(OpRegistry& registry);  // called by register_convolution_ops
void register_random_ops(OpRegistry& registry);
void register_updates_ops(OpRegistry& registry);
void register_gradient_ops(OpRegistry& registry);
void register_control_flow_ops(OpRegistry& registry);  // cond, while_loop, replicated
void register_call_ops(OpRegistry& registry);          // call

// The kernel set "cuda" of all that have one. The room `cuda` defines it, where it is built.
void register_cuda_kernels(OpRegistry& registry);

// Rules that call gradients() themselves, or go through regions: the room `train` defines them.
GradientFn gradient_of_cond();
GradientFn gradient_of_while();
GradientFn gradient_of_layer_norm_grad();
GradientFn gradient_of_prod_of_others();

// Shards for `work` items when one shard should hold about `grain` of them: from the shape alone.
inline std::int64_t shards_for(std::int64_t work, std::int64_t grain) {
  return work <= grain ? 1 : (work + grain - 1) / grain;
}

}  // namespace lockstep::internal
