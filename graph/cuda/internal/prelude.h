// graph/cuda/internal/prelude.h - what the sources of generated kernels begin with.
#pragma once

namespace lockstep::internal::cuda {

extern const char* const kPrelude;

}  // namespace lockstep::internal::cuda
