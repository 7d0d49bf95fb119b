// graph/cuda/copies.cpp - ops that give their input as it is.
#include <cstddef>

#include "lockstep/core/cuda/stream.h"
#include "lockstep/graph/cuda/internal/kernel_set.h"

namespace lockstep::internal::cuda {

void add_copy_kernels(OpRegistry& registry) {
  for (const char* op : {"copy", "reshape", "expand_dims", "squeeze"}) {
    registry.add_kernel(op, "cuda", [](const NodeView&, std::span<const TensorSpec> outputs) -> KernelFn {
      return [bytes = static_cast<std::size_t>(num_bytes(outputs[0]))](KernelContext& c) {
        if (c.output(0) == c.input(0) || bytes == 0) return;
        lockstep::cuda::check(cudaMemcpyAsync(c.output(0), c.input(0), bytes, cudaMemcpyDeviceToDevice,
                                              lockstep::cuda::native(*c.stream())),
                              *c.stream(), "a copy");
      };
    });
  }
}

}  // namespace lockstep::internal::cuda
