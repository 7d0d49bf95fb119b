// core/cuda/internal/commit.h - what decides on a card whether a run commits (Stream::latch, Stream::copy_unless).
//
// Plain functions around kernels: nothing of Lockstep is included where nvcc compiles.
#pragma once

#include <cstddef>

#include <cuda_runtime_api.h>

namespace lockstep::internal::cuda {

cudaError_t launch_latch(cudaStream_t stream, void* decision, const void* words, std::size_t count);
cudaError_t launch_copy_unless(cudaStream_t stream, const void* decision, void* to, const void* from,
                               std::size_t bytes);

}  // namespace lockstep::internal::cuda
