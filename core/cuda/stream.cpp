// core/cuda/stream.cpp - the CUDA stream that a kernel puts its work on.
#include "lockstep/core/cuda/stream.h"

#include "lockstep/core/cuda/internal/streams.h"

namespace lockstep::cuda {

cudaStream_t native(Stream& stream) {
  static_cast<internal::cuda::CardStream&>(stream).card().use();
  return static_cast<cudaStream_t>(stream.native());
}

int card_of(const Stream& stream) {
  return static_cast<const internal::cuda::CardStream&>(stream).card().number();
}

void check(cudaError_t status, const Stream& stream, const char* what) {
  static_cast<const internal::cuda::CardStream&>(stream).card().check(status, what);
}

}  // namespace lockstep::cuda
