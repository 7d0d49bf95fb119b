// core/kernels/simd/vector_table.cpp - the loops that exist once for every instruction set.
#include "lockstep/core/kernels/simd/internal/vector_table.h"

#undef HWY_TARGET_INCLUDE
// NOLINTNEXTLINE(readability-identifier-naming)
#define HWY_TARGET_INCLUDE "lockstep/core/kernels/simd/internal/vector_loops.h"
#include <hwy/foreach_target.h>
// After foreach_target.h: the same once more, for the instruction set that the compiler was told to use.
#include "lockstep/core/kernels/simd/internal/vector_loops.h"

namespace lockstep::kernels {

HWY_EXPORT(table_of_target);

const VectorTable& vector_table() {
  static const VectorTable& table = *HWY_DYNAMIC_DISPATCH(table_of_target)();
  return table;
}

}  // namespace lockstep::kernels
