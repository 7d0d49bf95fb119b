// graph/cuda/rows/internal/reductions.h - sums over axes, for kernels that need one beside other work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/graph/ir/op.h"

namespace lockstep::internal::cuda {

// From input 0 to output 0, in scratch memory of that size.
KernelFn make_sum_kernel(const TensorSpec& input, const std::vector<std::int64_t>& axes);
std::size_t sum_room(const Shape& input, const std::vector<std::int64_t>& axes);

}  // namespace lockstep::internal::cuda
