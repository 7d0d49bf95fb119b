// core/cuda/commit.cu - what decides on a card whether a run commits.
#include <cstdint>

#include "lockstep/core/cuda/internal/commit.h"

namespace lockstep::internal::cuda {

namespace {

using Word = unsigned long long;
constexpr Word kNothingRefused = ~Word{0};

__global__ void latch(Word* decision, const Word* words, std::size_t count) {
  Word smallest = *decision;
  for (std::size_t i = 0; i < count; ++i) smallest = words[i] < smallest ? words[i] : smallest;
  *decision = smallest;
}

template <class T>
__global__ void copy_unless(const Word* decision, T* to, const T* from, std::size_t count) {
  if (*decision != kNothingRefused) return;
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    to[i] = from[i];
}

template <class T>
void copy_as(cudaStream_t stream, const void* decision, void* to, const void* from, std::size_t bytes) {
  constexpr unsigned kThreads = 256, kMostBlocks = 1024;
  const std::size_t count = bytes / sizeof(T);
  const std::size_t wanted = (count + kThreads - 1) / kThreads;
  const auto blocks = static_cast<unsigned>(wanted < kMostBlocks ? wanted : kMostBlocks);
  copy_unless<T><<<blocks, kThreads, 0, stream>>>(static_cast<const Word*>(decision), static_cast<T*>(to),
                                                  static_cast<const T*>(from), count);
}

bool is_multiple(const void* address, std::size_t bytes, std::size_t of) {
  return reinterpret_cast<std::uintptr_t>(address) % of == 0 && bytes % of == 0;
}

}  // namespace

cudaError_t launch_latch(cudaStream_t stream, void* decision, const void* words, std::size_t count) {
  latch<<<1, 1, 0, stream>>>(static_cast<Word*>(decision), static_cast<const Word*>(words), count);
  return cudaGetLastError();
}

cudaError_t launch_copy_unless(cudaStream_t stream, const void* decision, void* to, const void* from,
                               std::size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  if (is_multiple(to, bytes, sizeof(uint4)) && is_multiple(from, bytes, sizeof(uint4))) {
    copy_as<uint4>(stream, decision, to, from, bytes);
  } else {
    copy_as<unsigned char>(stream, decision, to, from, bytes);
  }
  return cudaGetLastError();
}

}  // namespace lockstep::internal::cuda
