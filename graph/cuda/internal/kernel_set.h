// graph/cuda/internal/kernel_set.h - the parts of the kernel set "cuda", by the folder's sources.
#pragma once

#include "lockstep/graph/ir/op.h"

namespace lockstep::internal::cuda {

void add_element_kernels(OpRegistry& registry);  // all ops with OpDef::source, and fused
void add_update_kernels(OpRegistry& registry);   // assign, sgd, adam, ...
void add_copy_kernels(OpRegistry& registry);     // copy, constant, all aliases, ...
void add_move_kernels(OpRegistry& registry);     // all ops with OpDef::moves
void add_product_kernels(OpRegistry& registry);  // matmul
void add_reduction_kernels(OpRegistry& registry);
void add_softmax_kernels(OpRegistry& registry);
void add_layer_norm_kernels(OpRegistry& registry);
void add_indexing_kernels(OpRegistry& registry);  // gather, one_hot, argmax, argmin
void add_replica_kernels(OpRegistry& registry);   // all_reduce, reduce_replicas
void add_random_kernels(OpRegistry& registry);    // random_uniform, dropout, ...

}  // namespace lockstep::internal::cuda
