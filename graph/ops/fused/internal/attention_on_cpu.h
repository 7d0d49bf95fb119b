// graph/ops/fused/internal/attention_on_cpu.h - how CPUs run the ops of attention.
#pragma once

#include <span>

#include "lockstep/graph/ir/op.h"

namespace lockstep::internal {

KernelFn attention_kernel(const NodeView& node, std::span<const TensorSpec> outputs);
KernelFn attention_grad_kernel(const NodeView& node, std::span<const TensorSpec> outputs);
Cost attention_cost(const NodeView& node, std::span<const TensorSpec> outputs);
Cost attention_grad_cost(const NodeView& node, std::span<const TensorSpec> outputs);
Split attention_split(const NodeView& node, std::span<const TensorSpec> outputs);
Split attention_grad_split(const NodeView& node, std::span<const TensorSpec> outputs);

}  // namespace lockstep::internal
