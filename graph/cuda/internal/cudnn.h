// graph/cuda/internal/cudnn.h - the functions of cuDNN, which is loaded when it is first needed.
//
// Only for sources that are compiled with cuDNN's headers: cmake/LockstepCuda.cmake names them. Thread safety: any thread.
#pragma once

#ifdef LOCKSTEP_CUDNN

#include <cudnn.h>

#include "lockstep/core/error.h"

namespace lockstep::internal::cuda {

// The functions of the library, by the names of their declarations.
#define LOCKSTEP_CUDNN_FUNCTIONS(each)                                                                \
  each(Create) each(SetStream) each(GetErrorString) each(CreateTensorDescriptor)                      \
      each(DestroyTensorDescriptor) each(SetTensor4dDescriptor) each(CreateFilterDescriptor)          \
          each(DestroyFilterDescriptor) each(SetFilter4dDescriptor) each(CreateConvolutionDescriptor) \
              each(DestroyConvolutionDescriptor) each(SetConvolution2dDescriptor)                     \
                  each(SetConvolutionMathType) each(SetConvolutionGroupCount)                         \
                      each(GetConvolution2dForwardOutputDim) each(GetConvolutionForwardAlgorithm_v7)  \
                          each(GetConvolutionBackwardDataAlgorithm_v7)                                \
                              each(GetConvolutionBackwardFilterAlgorithm_v7)                          \
                                  each(GetConvolutionForwardWorkspaceSize)                            \
                                      each(GetConvolutionBackwardDataWorkspaceSize)                   \
                                          each(GetConvolutionBackwardFilterWorkspaceSize)             \
                                              each(ConvolutionForward) each(ConvolutionBackwardData)  \
                                                  each(ConvolutionBackwardFilter)
#if CUDNN_MAJOR >= 9
#define LOCKSTEP_CUDNN_NEWER_FUNCTIONS(each) each(GetLastErrorString)
#else
#define LOCKSTEP_CUDNN_NEWER_FUNCTIONS(each)
#endif

struct CudnnLibrary {
// NOLINTNEXTLINE(bugprone-macro-parentheses): it is declared
#define LOCKSTEP_CUDNN_DECLARED(name) decltype(&::cudnn##name) name = nullptr;
  LOCKSTEP_CUDNN_FUNCTIONS(LOCKSTEP_CUDNN_DECLARED)
  LOCKSTEP_CUDNN_NEWER_FUNCTIONS(LOCKSTEP_CUDNN_DECLARED)
#undef LOCKSTEP_CUDNN_DECLARED
  Decision found = Decision::yes();

  static const CudnnLibrary& get();

 private:
  CudnnLibrary();
};

// Throws Error unless the call succeeded; `what` names it.
void check_cudnn(cudnnStatus_t status, const char* what);

}  // namespace lockstep::internal::cuda

#endif
