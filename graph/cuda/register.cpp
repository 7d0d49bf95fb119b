// graph/cuda/register.cpp - the kernel set "cuda".
#include <utility>
#include <vector>

#include "lockstep/graph/cuda/internal/elementwise.h"
#include "lockstep/graph/cuda/internal/kernel_set.h"
#include "lockstep/graph/cuda/internal/moves.h"
#include "lockstep/graph/ir/op.h"
#include "lockstep/graph/ops/fused/internal/tile_program.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"

namespace lockstep::internal {

namespace cuda {

namespace {

KernelFn fused_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  const Graph& region = node.regions()[0];
  const std::vector<TensorSpec> specs = infer_elementwise(region, node.inputs());
  std::vector<std::vector<std::size_t>> groups;  // results of one shape
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    auto group = groups.begin();
    while (group != groups.end() && outputs[group->front()].shape != outputs[i].shape) ++group;
    if (group == groups.end()) group = groups.insert(groups.end(), std::vector<std::size_t>());
    group->push_back(i);
  }
  std::vector<KernelFn> kernels;
  for (std::size_t i = groups.size(); i-- > 0;)  // output 0 may lie in an input: it is written last
    kernels.push_back(make_element_kernel(steps_of(region, specs, groups[i])));
  return one_after_another(std::move(kernels));
}

}  // namespace

void add_element_kernels(OpRegistry& registry) {
  // What an op says about itself is enough, also for ops of users.
  registry.derive_kernels("cuda", [](const OpDef& op) -> KernelMaker {
    if (!op.source.empty()) {
      return [&op](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
        return make_element_kernel(steps_of(op, node, outputs));
      };
    }
    if (op.moves) {
      return [&op](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
        return make_move_kernel(op.moves(node, outputs), outputs);
      };
    }
    return {};
  });
  registry.add_kernel("fused", "cuda", fused_kernel);
  registry.add_kernel("full", "cuda",
                      [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
                        return make_element_kernel({}, outputs, {literal_of(node.get<double>("value"))});
                      });
}

}  // namespace cuda

void register_cuda_kernels(OpRegistry& registry) {
  cuda::add_element_kernels(registry);
  cuda::add_update_kernels(registry);
  cuda::add_copy_kernels(registry);
  cuda::add_product_kernels(registry);
  cuda::add_attention_kernels(registry);
  cuda::add_reduction_kernels(registry);
  cuda::add_softmax_kernels(registry);
  cuda::add_layer_norm_kernels(registry);
  cuda::add_indexing_kernels(registry);
  cuda::add_scan_kernels(registry);
  cuda::add_scatter_kernels(registry);
  cuda::add_pooling_kernels(registry);
  cuda::add_convolution_kernels(registry);
  cuda::add_replica_kernels(registry);
  cuda::add_group_kernels(registry);
  cuda::add_random_kernels(registry);
}

}  // namespace lockstep::internal
