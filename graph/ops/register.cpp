#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/ops.h"

namespace lockstep {

void register_builtin_ops(OpRegistry& registry) {
  register_source_ops(registry);
  register_elementwise_ops(registry);
  register_fused_ops(registry);
  register_matmul_ops(registry);
  register_reduction_ops(registry);
  register_scan_ops(registry);
  register_shapes_ops(registry);
  register_indexing_ops(registry);
  register_softmax_ops(registry);
  register_normalization_ops(registry);
  register_global_ops(registry);
  register_collective_ops(registry);
  register_convolution_ops(registry);
  register_random_ops(registry);
  register_variable_ops(registry);
  register_updates_ops(registry);
  register_gradient_ops(registry);
  register_control_flow_ops(registry);
  register_call_ops(registry);
}

OpRegistry& OpRegistry::global() {
  static OpRegistry* const registry = [] {  // never destroyed: graphs in static storage may outlive main
    static OpRegistry instance;
    register_builtin_ops(instance);
    return &instance;
  }();
  return *registry;
}

}  // namespace lockstep
