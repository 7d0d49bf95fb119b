// graph/cuda/copies.cpp - ops that give their input, or what is known before they run, as it is.
#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/error.h"
#include "lockstep/core/tensor.h"
#include "lockstep/graph/cuda/internal/elementwise.h"
#include "lockstep/graph/cuda/internal/jit.h"
#include "lockstep/graph/cuda/internal/kernel_set.h"
#include "lockstep/graph/cuda/internal/moves.h"
#include "lockstep/graph/ops/rules/internal/axes.h"

namespace lockstep::internal::cuda {

void copy_bytes(Stream& stream, void* to, const void* from, std::size_t bytes) {
  if (to == from || bytes == 0) return;
  lockstep::cuda::check(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, lockstep::cuda::native(stream)), stream,
      "a copy");
}

namespace {

KernelFn copy_kernel(const NodeView&, std::span<const TensorSpec> outputs) {
  return [bytes = static_cast<std::size_t>(num_bytes(outputs[0]))](KernelContext& c) {
    copy_bytes(*c.stream(), c.output(0), c.input(0), bytes);
  };
}

// A plan brings constants to the card once; this is for one that it did not.
KernelFn constant_kernel(const NodeView& node, std::span<const TensorSpec>) {
  return [value = node.get<Tensor>("value")](KernelContext& c) {
    if (value.num_bytes() == 0) return;
    lockstep::cuda::check(cudaMemcpyAsync(c.output(0), value.raw(), value.num_bytes(), cudaMemcpyHostToDevice,
                                          lockstep::cuda::native(*c.stream())),
                          *c.stream(), "a copy of a constant");
  };
}

// The number of elements of a shape, which is known when the plan is made.
KernelFn count_kernel(const NodeView& node, std::span<const TensorSpec> outputs, bool of_axes) {
  const std::vector<std::int64_t> dims = node.shape_operand(0);
  double count = 1;
  if (of_axes) {
    for (const std::int64_t axis : reduced_axes(node.get<std::vector<std::int64_t>>("axes"), dims.size()))
      count *= static_cast<double>(dims[static_cast<std::size_t>(axis)]);
  } else {
    for (const std::int64_t dim : dims) count *= static_cast<double>(dim);
  }
  return make_element_kernel({}, outputs, {literal_of(count)});
}

// Known when the plan is made.
KernelFn shape_kernel(const NodeView& node, std::span<const TensorSpec>) {
  const Shape& shape = node.input(0).shape;
  if (shape.rank() == 0) return [](KernelContext&) {};
  const std::string rank = std::to_string(shape.rank());
  const JitKernel kernel(
      str("struct Args { long long* out; long long dims[", rank,
          "]; };\nextern \"C\" __global__ void kernel(const Args a) {\n  for (int i = 0; i < ", rank,
          "; ++i) a.out[i] = a.dims[i];\n}\n"));
  return [kernel, dims = std::vector(shape.dims().begin(), shape.dims().end())](KernelContext& c) {
    Arguments arguments;
    arguments.add(static_cast<const void*>(c.output(0))).add(dims);
    kernel.launch(*c.stream(), 1, 1, arguments);
  };
}

}  // namespace

void add_copy_kernels(OpRegistry& registry) {
  registry.add_kernel("copy", "cuda", copy_kernel);
  for (const std::string& name : registry.names()) {
    const OpDef& op = registry.get(name);
    if (op.traits.alias && registry.kernel(op, "cuda") == nullptr)
      registry.add_kernel(name, "cuda", copy_kernel);
  }
  registry.add_kernel("constant", "cuda", constant_kernel);
  registry.add_kernel("shape_of", "cuda", shape_kernel);
  registry.add_kernel("group", "cuda", [](const NodeView&, std::span<const TensorSpec>) -> KernelFn {
    return [](KernelContext&) {};  // it has no value
  });
  for (const bool of_axes : {true, false}) {
    registry.add_kernel(of_axes ? "num_elements" : "global_count", "cuda",
                        [of_axes](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
                          return count_kernel(node, outputs, of_axes);
                        });
  }
}

}  // namespace lockstep::internal::cuda
