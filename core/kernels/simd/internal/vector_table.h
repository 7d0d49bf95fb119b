// core/kernels/simd/internal/vector_table.h - the loops that exist once for every instruction set.
//
// vector_table() gives the loops of the best instruction set that this machine has; nothing else in the
// library uses Highway. A loop computes every element in a full vector, the last ones too, so that its bits
// do not depend on where the work is cut. An output may be exactly an input, but must not overlap one
// partially.
//
// Thread safety: any thread; the table never changes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/core/kernels/chain.h"
#include "lockstep/core/kernels/elementwise.h"
#include "lockstep/core/kernels/reduce_replicas.h"

namespace lockstep::kernels {

// The arrays of reduce_replicas(): whole ones, of one dtype.
struct ReplicaArrays {
  const void* const* inputs;
  std::size_t num_inputs;  // at least 1
  void* const* outputs;
  std::size_t num_outputs;
  double divisor;  // divides the result: num_inputs, or 1 for none
};
using ReplicasLoop = void (*)(const ReplicaArrays& arrays, std::int64_t begin, std::int64_t end);

struct VectorTable {
  const char* target = nullptr;  // Highway's name for it: "NEON", "AVX2", ...
  // By op, and by f32 or f64; null if a plain loop does it.
  UnaryLoop unary[kNumUnaryOps][2] = {};
  BinaryLoop binary[kNumBinaryOps][2] = {};
  ChainLoop chain[2] = {};                            // f32, f64
  ReplicasLoop replicas[kNumReplicaReduces][4] = {};  // by floating dtype
  // Between 16-bit floats and f32, rounding to nearest even; the same bits as F16 and BF16.
  void (*f16_to_f32)(const void* in, void* out, std::int64_t count) = nullptr;
  void (*f32_to_f16)(const void* in, void* out, std::int64_t count) = nullptr;
  void (*bf16_to_f32)(const void* in, void* out, std::int64_t count) = nullptr;
  void (*f32_to_bf16)(const void* in, void* out, std::int64_t count) = nullptr;
};

const VectorTable& vector_table();

}  // namespace lockstep::kernels
