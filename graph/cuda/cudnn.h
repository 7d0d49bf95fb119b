// graph/cuda/cudnn.h - whether convolutions on cards can be left to cuDNN.
//
// Only in a Lockstep that was built with CUDA. Thread safety: any thread.
#pragma once

#include "lockstep/core/base/export.h"
#include "lockstep/core/error.h"

namespace lockstep {

// Is the library there? It is loaded when this is first asked. The reason of a no says what was looked for, or that Lockstep was
// built without it.
LOCKSTEP_API Decision has_cudnn();

}  // namespace lockstep
