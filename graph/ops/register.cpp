// graph/ops/register.cpp - the list of all built-in ops.
#include <memory>

#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/ops.h"

namespace lockstep {

void register_builtin_ops(OpRegistry& registry) {
  internal::register_source_ops(registry);
  internal::register_elementwise_ops(registry);
  internal::register_fused_ops(registry);
  internal::register_matmul_ops(registry);
  internal::register_fused_matmul_ops(registry);
  internal::register_attention_ops(registry);
  internal::register_reduction_ops(registry);
  internal::register_scan_ops(registry);
  internal::register_shapes_ops(registry);
  internal::register_indexing_ops(registry);
  internal::register_softmax_ops(registry);
  internal::register_normalization_ops(registry);
  internal::register_global_ops(registry);
  internal::register_collective_ops(registry);
  internal::register_group_collective_ops(registry);
  internal::register_convolution_ops(registry);
  internal::register_random_ops(registry);
  internal::register_variable_ops(registry);
  internal::register_updates_ops(registry);
  internal::register_merged_ops(registry);
  internal::register_gradient_ops(registry);
  internal::register_control_flow_ops(registry);
  internal::register_call_ops(registry);
#ifdef LOCKSTEP_CUDA
  internal::register_cuda_kernels(registry);
#endif
}

OpRegistry& OpRegistry::global() {
  // Never destroyed: graphs in static storage may outlive main. Made whole or not at all.
  static OpRegistry* const registry = [] {
    auto made = std::make_unique<OpRegistry>();
    register_builtin_ops(*made);
    return made.release();
  }();
  return *registry;
}

}  // namespace lockstep
