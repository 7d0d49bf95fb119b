// graph/cuda/toolkit_libraries.cpp - loads cuBLASLt and NVRTC.
#include "lockstep/graph/cuda/internal/toolkit_libraries.h"

#include <string>

#include <cuda_runtime_api.h>

#include "lockstep/core/dynamic_library.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::cuda {

namespace {

// Where the system looks, or else where they lay when Lockstep was built.
DynamicLibrary open(const std::string& file) {
  DynamicLibrary library(file);
  if (library.found()) return library;
  DynamicLibrary of_build(str(LOCKSTEP_CUDA_LIBRARIES "/", file));
  return of_build.found() ? of_build : library;
}

void check(const DynamicLibrary& library) {
  if (!library.found())
    throw Error(ErrorCode::kNotFound,
                str(library.found().reason(), "; it is a part of the CUDA Toolkit ", CUDART_VERSION / 1000,
                    ": install it, or say in LD_LIBRARY_PATH where it lies"));
}

CublasLt load_cublaslt() {
  CublasLt result;
  DynamicLibrary library = open(str("libcublasLt.so.", CUBLAS_VER_MAJOR));
#define LOCKSTEP_CUBLASLT_LOADED(name) library.load(result.name, "cublasLt" #name);
  LOCKSTEP_CUBLASLT_FUNCTIONS(LOCKSTEP_CUBLASLT_LOADED)
#undef LOCKSTEP_CUBLASLT_LOADED
  check(library);
  return result;
}

Nvrtc load_nvrtc() {
  Nvrtc result;
  DynamicLibrary library = open(str("libnvrtc.so.", CUDART_VERSION / 1000));
#define LOCKSTEP_NVRTC_LOADED(name) library.load(result.name, "nvrtc" #name);
  LOCKSTEP_NVRTC_FUNCTIONS(LOCKSTEP_NVRTC_LOADED)
#undef LOCKSTEP_NVRTC_LOADED
  check(library);
  return result;
}

}  // namespace

// Tried again by the next call after one that threw.
const CublasLt& CublasLt::get() {
  static const CublasLt library = load_cublaslt();
  return library;
}

const Nvrtc& Nvrtc::get() {
  static const Nvrtc library = load_nvrtc();
  return library;
}

}  // namespace lockstep::internal::cuda
