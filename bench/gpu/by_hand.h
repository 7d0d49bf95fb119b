// bench/gpu/by_hand.h - the kernels that this benchmark brings along.
//
// Thread safety: any thread; each call puts one kernel on the stream.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

namespace lockstep::bench {

// out = in + in, of 4 floats.
void launch_add(cudaStream_t stream, const float* in, float* out);

// Numbers in [-0.05, 0.05), f32 or bf16: factors of products, which take longer (more power) than zeros.
void launch_fill(cudaStream_t stream, void* out, std::size_t count, bool bf16, std::uint32_t seed);

}  // namespace lockstep::bench
