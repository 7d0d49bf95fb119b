// graph/cuda/replicas.cpp - the values of replicas combined, where all of them lie in the memory of one card.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/internal/elementwise.h"
#include "lockstep/graph/cuda/internal/jit.h"
#include "lockstep/graph/cuda/internal/kernel_set.h"
#include "lockstep/graph/cuda/internal/prelude.h"
#include "lockstep/graph/cuda/internal/types.h"
#include "lockstep/graph/ops/rules/internal/axes.h"
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
  require_all_here(node);
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
  return one_after_another(std::move(kernels));
}

// A part of what reduction_over_replicas gives. Element i of the part lies in the whole at i + offset, and for each `row`
// elements of the part another `skip` elements further on.
struct Part {
  std::int64_t elements, offset, row, skip;
};

KernelFn part_kernel(const NodeView& node, const TensorSpec& output, std::size_t t, std::size_t number,
                     const Part& part) {
  if (part.elements == 0) return [](KernelContext&) {};
  require_all_here(node);
  const std::size_t replicas = replicas_of(node), tensors = node.num_inputs() / replicas;
  std::string text =
      str(kPrelude, "typedef ", names_of(output.dtype).computed, " T;\n", "struct Args { const void* in[",
          replicas, "]; void* out; long long n, offset, row, skip; };\n",
          "extern \"C\" __global__ void kernel(const Args a) {\n"
          "  const long long step = (long long)gridDim.x * blockDim.x;\n"
          "  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += step) {\n"
          "    const long long at = i + a.offset + i / a.row * a.skip;\n");
  for (std::size_t r = 0; r < replicas; ++r)
    text += str("    const T x", r, " = ", load_text(output.dtype, str("a.in[", r, "]"), "at"), ";\n");
  text += str("    ", store_text(output.dtype, "a.out", "i", expression_of(reduce_of(node), replicas)),
              ";\n  }\n}\n");
  return [kernel = JitKernel(std::move(text)), replicas, tensors, t, number, part](KernelContext& c) {
    Arguments arguments;
    for (std::size_t r = 0; r < replicas; ++r) arguments.add(c.input(r * tensors + t));
    arguments.add(static_cast<const void*>(c.output(number)));
    arguments.add(part.elements).add(part.offset).add(part.row).add(part.skip);
    kernel.launch(*c.stream(), blocks_for(part.elements, kThreads), kThreads, arguments);
  };
}

KernelFn reduce_chunk_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  const std::vector<std::int64_t> offsets = chunk_offsets(node, outputs);
  std::vector<KernelFn> kernels;
  for (std::size_t t = 0; t < outputs.size(); ++t) {
    const std::int64_t elements = outputs[t].shape.num_elements();
    kernels.push_back(
        part_kernel(node, outputs[t], t, t, {elements, offsets[t], std::max<std::int64_t>(elements, 1), 0}));
  }
  return one_after_another(std::move(kernels));
}

KernelFn reduce_scatter_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  check_pieces(node);
  require_all_here(node);
  const std::size_t replicas = replicas_of(node), tensors = node.num_inputs() / replicas;
  std::vector<KernelFn> kernels;
  for (std::size_t output = 0; output < outputs.size(); ++output) {
    const Shape& shape = outputs[output].shape;
    std::int64_t row = 1;
    for (auto d = static_cast<std::size_t>(normal_axis(node.get_or<std::int64_t>("axis", 0), shape.rank()));
         d < shape.rank(); ++d)
      row *= shape[d];
    const auto others = static_cast<std::int64_t>(replicas - 1),
               mine = static_cast<std::int64_t>(output / tensors);
    kernels.push_back(part_kernel(node, outputs[output], output % tensors, output,
                                  {shape.num_elements(), mine * row, row, others * row}));
  }
  return one_after_another(std::move(kernels));
}

// Which replica asks is known when the node is called.
KernelFn replica_id_kernel(const NodeView&, std::span<const TensorSpec>) {
  const JitKernel kernel(
      "struct Args { int* out; long long replica; };\n"
      "extern \"C\" __global__ void kernel(const Args a) { *a.out = int(a.replica); }\n");
  return [kernel](KernelContext& c) {
    Arguments arguments;
    arguments.add(static_cast<const void*>(c.output(0))).add(std::int64_t{c.replica()});
    kernel.launch(*c.stream(), 1, 1, arguments);
  };
}

}  // namespace

void add_replica_kernels(OpRegistry& registry) {
  for (const char* op : {"reduce_replicas", "all_reduce"})
    registry.add_kernel(op, "cuda", reduction_over_replicas);
  registry.add_kernel("reduce_chunk", "cuda", reduce_chunk_kernel);
  registry.add_kernel("reduce_scatter", "cuda", reduce_scatter_kernel);
  registry.add_kernel("replica_id", "cuda", replica_id_kernel);
}

}  // namespace lockstep::internal::cuda
