// graph/cuda/replicas.cpp - the values of replicas combined, where all of them lie in the memory of one card.
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/internal/elementwise.h"
#include "lockstep/graph/cuda/internal/kernel_set.h"
#include "lockstep/graph/ops/rules/internal/replica_tensors.h"

namespace lockstep::internal::cuda {

namespace {

// In the order of the replicas, as on the CPU.
std::string expression_of(ReduceOp op, std::size_t replicas) {
  std::string text = "x0";
  for (std::size_t r = 1; r < replicas; ++r) {
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kMean: text += str(" + x", r); break;
      case ReduceOp::kProd: text = str("(", text, ") * x", r); break;
      case ReduceOp::kMax: text = str("ls_max(", text, ", x", r, ")"); break;
      case ReduceOp::kMin: text = str("ls_min(", text, ", x", r, ")"); break;
    }
  }
  return op == ReduceOp::kMean ? str("(", text, ") / T(", replicas, ")") : text;
}

// Tensor t of replica r is input r * tensors + t; each result goes to all of its outputs.
KernelFn reduction_over_replicas(const NodeView& node, std::span<const TensorSpec> outputs) {
  const std::size_t replicas = replicas_of(node), tensors = node.num_inputs() / replicas;
  const std::string expression = expression_of(reduce_of(node), replicas);
  std::vector<KernelFn> kernels;
  for (std::size_t t = 0; t < tensors; ++t) {
    ElementSteps steps;
    steps.shape = outputs[t].shape;
    ElementSteps::Step step;
    for (std::size_t r = 0; r < replicas; ++r) {
      const TensorSpec& spec = node.input(r * tensors + t);
      steps.reads.push_back({spec.dtype, spec.shape, r * tensors + t, {}});
      step.inputs.push_back(r);
    }
    step.expressions = {expression};
    step.outputs = {outputs[t].dtype};
    steps.steps.push_back(std::move(step));
    for (std::size_t o = t; o < outputs.size(); o += tensors)
      steps.writes.push_back({replicas, o, outputs[o].dtype});
    kernels.push_back(make_element_kernel(steps));
  }
  return [kernels](KernelContext& c) {
    for (const KernelFn& kernel : kernels) kernel(c);
  };
}

}  // namespace

void add_replica_kernels(OpRegistry& registry) {
  for (const char* op : {"reduce_replicas", "all_reduce"})
    registry.add_kernel(op, "cuda", reduction_over_replicas);
}

}  // namespace lockstep::internal::cuda
