// graph/cuda/internal/prelude.h - what the sources of generated kernels begin with.
#pragma once

namespace lockstep::internal::cuda {

extern const char* const kPrelude;
// Random words (random.cpp, and kernels that drop elements out); comes after kPrelude.
extern const char* const kDraw;

}  // namespace lockstep::internal::cuda
