// graph/cuda/indices/sorting.cu - numbers sorted by their keys.
#include <cub/device/device_radix_sort.cuh>

#include "lockstep/graph/cuda/indices/internal/sorting.h"

namespace lockstep::internal::cuda {

cudaError_t sort_by_key(void* room, std::size_t& bytes, const std::int64_t* keys, std::int64_t* sorted_keys,
                        const std::int32_t* numbers, std::int32_t* sorted_numbers, std::int32_t count,
                        cudaStream_t stream) {
  return cub::DeviceRadixSort::SortPairs(room, bytes, keys, sorted_keys, numbers, sorted_numbers, count, 0,
                                         static_cast<int>(8 * sizeof(std::int64_t)), stream);
}

}  // namespace lockstep::internal::cuda
