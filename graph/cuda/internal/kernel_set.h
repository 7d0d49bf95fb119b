// graph/cuda/internal/kernel_set.h - the parts of the kernel set "cuda", by the folder's sources.
#pragma once

#include <utility>
#include <vector>

#include "lockstep/graph/ir/op.h"

namespace lockstep::internal::cuda {

inline KernelFn one_after_another(std::vector<KernelFn> kernels) {
  return [kernels = std::move(kernels)](KernelContext& c) {
    for (const KernelFn& kernel : kernels) kernel(c);
  };
}

void add_element_kernels(OpRegistry& registry);    // derived from OpDef::source and OpDef::moves, and fused
void add_update_kernels(OpRegistry& registry);     // assign, sgd, adam, ...
void add_copy_kernels(OpRegistry& registry);       // copy, constant, all aliases, ...
void add_product_kernels(OpRegistry& registry);    // matmul, fused_matmul
void add_attention_kernels(OpRegistry& registry);  // attention, attention_grad
void add_reduction_kernels(OpRegistry& registry);
void add_softmax_kernels(OpRegistry& registry);
void add_layer_norm_kernels(OpRegistry& registry);
void add_indexing_kernels(OpRegistry& registry);  // gather, one_hot, argmax, argmin
void add_scan_kernels(OpRegistry& registry);      // cumsum, top_k
void add_scatter_kernels(OpRegistry& registry);   // scatter_add, assign_rows, sgd_sparse, ...
void add_pooling_kernels(OpRegistry& registry);
void add_convolution_kernels(OpRegistry& registry);
void add_replica_kernels(OpRegistry& registry);  // all_reduce, reduce_scatter, replica_id, ...
void add_group_kernels(OpRegistry& registry);    // group_all_reduce, group_broadcast
void add_random_kernels(OpRegistry& registry);   // random_uniform, dropout, ...

}  // namespace lockstep::internal::cuda
