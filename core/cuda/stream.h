// core/cuda/stream.h - the CUDA stream that a kernel puts its work on.
//
//   [](KernelContext& c) {
//     scale<<<blocks, threads, 0, cuda::native(*c.stream())>>>(static_cast<float*>(c.output(0)), ...);
//     cuda::check(cudaGetLastError(), *c.stream(), "the launch of scale");
//   }
//
// For kernels of the set "cuda", which runs on the cards of this machine (docs/gpu.md). Only in a Lockstep that was built
// with CUDA; in no other header is a type of CUDA. Thread safety: any thread.
#pragma once

#include <cuda_runtime_api.h>

#include "lockstep/core/base/export.h"
#include "lockstep/core/compute_device.h"

namespace lockstep::cuda {

// Makes the stream's card that of the calling thread. Throws Error (kUnavailable) if the card is lost. The stream is one
// of a card.
LOCKSTEP_API cudaStream_t native(Stream& stream);
// The number of its card, as CUDA counts them.
LOCKSTEP_API int card_of(const Stream& stream);
// Throws Error unless the call succeeded; `what` names the call. After some errors the card is lost.
LOCKSTEP_API void check(cudaError_t status, const Stream& stream, const char* what);

}  // namespace lockstep::cuda
