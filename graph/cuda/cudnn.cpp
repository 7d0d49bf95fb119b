// graph/cuda/cudnn.cpp - loads cuDNN.
#include "lockstep/graph/cuda/cudnn.h"

#include "lockstep/graph/cuda/internal/cudnn.h"

#ifdef LOCKSTEP_CUDNN

#include <array>
#include <string>

#include "lockstep/core/dynamic_library.h"

namespace lockstep {

namespace internal::cuda {

CudnnLibrary::CudnnLibrary() {
  DynamicLibrary library(str("libcudnn.so.", CUDNN_MAJOR));
#define LOCKSTEP_CUDNN_LOADED(name) library.load(name, "cudnn" #name);
  LOCKSTEP_CUDNN_FUNCTIONS(LOCKSTEP_CUDNN_LOADED)
  LOCKSTEP_CUDNN_NEWER_FUNCTIONS(LOCKSTEP_CUDNN_LOADED)
#undef LOCKSTEP_CUDNN_LOADED
  found = library.found();
}

const CudnnLibrary& CudnnLibrary::get() {
  static const CudnnLibrary library;
  return library;
}

void check_cudnn(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  const CudnnLibrary& library = CudnnLibrary::get();
  std::string why = library.GetErrorString(status);
#if CUDNN_MAJOR >= 9
  std::array<char, 512> more{};
  library.GetLastErrorString(more.data(), more.size());
  if (more[0] != '\0') why += str(" (", more.data(), ")");
#endif
  throw Error(status == CUDNN_STATUS_ALLOC_FAILED ? ErrorCode::kOutOfMemory : ErrorCode::kInternal,
              str("cuDNN, ", what, ": ", why));
}

}  // namespace internal::cuda

Decision has_cudnn() { return internal::cuda::CudnnLibrary::get().found; }

}  // namespace lockstep

#else

namespace lockstep {

Decision has_cudnn() { return Decision::no("this Lockstep was built without cuDNN"); }

}  // namespace lockstep

#endif
