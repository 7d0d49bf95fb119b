// graph/cuda/internal/toolkit_libraries.h - the functions of cuBLASLt and NVRTC, which are loaded when they are first needed.
//
// They are large: a program that links them takes a tenth of a second to start, whether it has a card or not.
// Thread safety: any thread.
#pragma once

#include <cublasLt.h>
#include <nvrtc.h>

namespace lockstep::internal::cuda {

// The functions, by the names of their declarations.
#define LOCKSTEP_CUBLASLT_FUNCTIONS(each)                                                               \
  each(Create) each(GetStatusName) each(Matmul) each(MatmulAlgoCheck) each(MatmulAlgoGetHeuristic)      \
      each(MatmulDescCreate) each(MatmulDescDestroy) each(MatmulDescSetAttribute)                       \
          each(MatmulPreferenceCreate) each(MatmulPreferenceDestroy) each(MatmulPreferenceSetAttribute) \
              each(MatrixLayoutCreate) each(MatrixLayoutDestroy) each(MatrixLayoutSetAttribute)
#define LOCKSTEP_NVRTC_FUNCTIONS(each)                                                            \
  each(CompileProgram) each(CreateProgram) each(DestroyProgram) each(GetCUBIN) each(GetCUBINSize) \
      each(GetErrorString) each(GetProgramLog) each(GetProgramLogSize) each(Version)

// get() throws Error if the library is not there; the message says where it was looked for.
struct CublasLt {
// NOLINTNEXTLINE(bugprone-macro-parentheses): it is declared
#define LOCKSTEP_CUBLASLT_DECLARED(name) decltype(&::cublasLt##name) name = nullptr;
  LOCKSTEP_CUBLASLT_FUNCTIONS(LOCKSTEP_CUBLASLT_DECLARED)
#undef LOCKSTEP_CUBLASLT_DECLARED

  static const CublasLt& get();
};

struct Nvrtc {
// NOLINTNEXTLINE(bugprone-macro-parentheses): it is declared
#define LOCKSTEP_NVRTC_DECLARED(name) decltype(&::nvrtc##name) name = nullptr;
  LOCKSTEP_NVRTC_FUNCTIONS(LOCKSTEP_NVRTC_DECLARED)
#undef LOCKSTEP_NVRTC_DECLARED

  static const Nvrtc& get();
};

}  // namespace lockstep::internal::cuda
