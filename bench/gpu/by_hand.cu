// bench/gpu/by_hand.cu - the kernels that this benchmark brings along.
#include <cuda_bf16.h>

#include "by_hand.h"

namespace lockstep::bench {

namespace {

constexpr int kElements = 4;
constexpr int kThreads = 256;

__global__ void add(const float* in, float* out) {
  if (threadIdx.x < kElements) out[threadIdx.x] = in[threadIdx.x] + in[threadIdx.x];
}

__global__ void fill(void* out, std::size_t count, bool bf16, std::uint32_t seed) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    std::uint32_t h = static_cast<std::uint32_t>(i) * 0x9E3779B1U + seed * 0x85EBCA6BU;
    h = (h ^ (h >> 16)) * 0x7FEB352DU;
    h ^= h >> 15;
    const float number = (static_cast<float>(h >> 8) * 0x1p-23F - 1.0F) * 0.05F;
    if (bf16) {
      static_cast<__nv_bfloat16*>(out)[i] = __float2bfloat16(number);
    } else {
      static_cast<float*>(out)[i] = number;
    }
  }
}

}  // namespace

void launch_add(cudaStream_t stream, const float* in, float* out) { add<<<1, 32, 0, stream>>>(in, out); }

void launch_fill(cudaStream_t stream, void* out, std::size_t count, bool bf16, std::uint32_t seed) {
  fill<<<1024, kThreads, 0, stream>>>(out, count, bf16, seed);
}

}  // namespace lockstep::bench
