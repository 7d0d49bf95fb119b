// graph/cuda/indices/internal/sorting.h - numbers sorted by their keys.
//
// A plain function around CUB: nothing of Lockstep is included where nvcc compiles.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

namespace lockstep::internal::cuda {

// Sorts pairs by key; those of one key keep their order. With `room` null only `bytes` is set, to the room that it needs.
cudaError_t sort_by_key(void* room, std::size_t& bytes, const std::int64_t* keys, std::int64_t* sorted_keys,
                        const std::int32_t* numbers, std::int32_t* sorted_numbers, std::int32_t count,
                        cudaStream_t stream);

}  // namespace lockstep::internal::cuda
