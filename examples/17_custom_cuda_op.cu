// The kernel of 17_custom_cuda_op.cpp. nvcc compiles it; nothing of Lockstep is needed here.
#include <cuda_runtime.h>

__global__ void blur(const float* in, float* out, long long n) {
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float before = i > 0 ? in[i - 1] : 0, after = i + 1 < n ? in[i + 1] : 0;
  out[i] = (before + 2 * in[i] + after) / 4;
}

cudaError_t launch_blur(cudaStream_t stream, const float* in, float* out, long long n) {
  if (n == 0) return cudaSuccess;
  constexpr int kThreads = 256;
  blur<<<static_cast<unsigned>((n + kThreads - 1) / kThreads), kThreads, 0, stream>>>(in, out, n);
  return cudaGetLastError();
}
